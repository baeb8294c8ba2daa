"""A whole report in one HTML file, which needs no network, and a small one for notebooks.

The page's content security policy allows only the style and the scripts written here, by their
hash; the data of the timeline is JSON that the script shows as text.
"""

from __future__ import annotations

import base64
import hashlib

from whyidle.diagnosis import SCHEMA, Diagnosis
from whyidle.render import phrases
from whyidle.render.colours import OTHER, reasons, shades
from whyidle.render.numerals import percent
from whyidle.render.page import (
    finding_section,
    outlook_section,
    rest_section,
    time_section,
    timeline_section,
)
from whyidle.render.page.markup import asset, bar, bar_rules, colour_rules, esc
from whyidle.render.plain import clean, elide
from whyidle.render.slices import finding_marks, slices

_SCRIPTS = (
    "page.js",
    "timeline_model.js",
    "timeline_chart.js",
    "timeline_tables.js",
    "timeline_controls.js",
)
_STYLES = ("theme.css", "parts.css", "findings.css", "outlook.css", "timeline.css", "media.css")
_LOGO = (
    '<svg class="logo" viewBox="0 0 32 32" aria-hidden="true" focusable="false">'
    '<rect x="2" y="6" width="10" height="20" rx="2"/>'
    '<rect x="20" y="6" width="10" height="20" rx="2"/>'
    '<rect class="gap" x="14.5" y="6" width="3" height="20" rx="1.5"/></svg>'
)


def render(diagnosis: Diagnosis) -> str:
    """The report as one complete page."""
    return whole_page(
        title=phrases.source_names(diagnosis),
        style="\n".join([*map(asset, _STYLES), _rules(diagnosis)]),
        script="\n".join(asset(name) for name in _SCRIPTS),
        body=_sections(diagnosis),
        foot=f"whyidle {diagnosis.whyidle} · {SCHEMA}",
    )


def whole_page(*, title: str, style: str, script: str, body: str, foot: str) -> str:
    """A page of its own that allows nothing but this style and this script.

    ``title`` and ``foot`` are plain text, ``body`` is finished HTML.
    """
    policy = (
        f"default-src 'none'; style-src 'sha256-{_digest(style)}'; "
        f"script-src 'sha256-{_digest(script)}'; base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>whyidle: {esc(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#main">Skip to the report</a>\n'
        f'<header class="top"><p class="brand">{_LOGO}whyidle</p><p class="file">{esc(title)}</p>'
        '<button type="button" id="theme" hidden>Use dark colours</button></header>\n'
        f'<main id="main" tabindex="-1">{body}</main>\n'
        f"<footer><p>{esc(foot)}</p></footer>\n"
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def _sections(diagnosis: Diagnosis) -> str:
    return "\n".join(
        (
            time_section.draw_headline(diagnosis),
            time_section.draw_totals(diagnosis),
            time_section.draw_time(diagnosis),
            finding_section.draw_findings(diagnosis),
            outlook_section.draw_plan(diagnosis),
            outlook_section.draw_observations(diagnosis),
            timeline_section.draw_timeline(diagnosis),
            rest_section.draw_devices(diagnosis),
            outlook_section.draw_samples(diagnosis),
            rest_section.draw_not_judged(diagnosis),
            rest_section.draw_remarks(diagnosis),
            rest_section.draw_words(diagnosis),
            rest_section.draw_sources(diagnosis),
        )
    )


def _rules(diagnosis: Diagnosis) -> str:
    """CSS that only this diagnosis needs: colours of its causes, widths of its bars."""
    rules = [colour_rules(_colours(diagnosis))]
    rules.append(bar_rules(time_section.parts_of(diagnosis), time_section.MAIN_BAR))
    rules.append(outlook_section.plan_rules(diagnosis))
    rules += [bar_rules(parts, name) for name, _, parts in rest_section.device_parts(diagnosis)]
    return "\n".join(rules) + "\n"


def _colours(diagnosis: Diagnosis) -> dict[str, str]:
    known = shades(reasons(diagnosis))
    marked = zip(finding_marks(diagnosis), diagnosis.findings, strict=True)
    return {mark: known.get(finding.cause, OTHER) for mark, finding in marked}


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def fragment(diagnosis: Diagnosis) -> str:
    """What a notebook shows: headline, bar, legend and first remedies; no script.

    The style is bound to this fragment by a name made from its content, so that several in one
    notebook do not disturb each other.
    """
    parts = slices(diagnosis, causes=5)
    first, *rest = phrases.sentences(diagnosis)
    body = f'<p class="head"><b>{esc(first)}</b> {esc(" ".join(rest))}</p>'
    if diagnosis.wall_s > 0:
        body += bar(parts, "whole", "Time by cause") + time_section.draw_legend(parts)
    if diagnosis.findings:
        body += (
            f"<ol>{''.join(_short(diagnosis, i) for i in range(len(diagnosis.findings[:3])))}</ol>"
        )
    body += f'<p class="scope">{esc(phrases.scope(diagnosis))}</p>'
    name = "whyidle-" + hashlib.sha256(body.encode()).hexdigest()[:10]
    scope = f".{name} "
    style = asset("fragment.css").replace(".whyidle-report", f".{name}")
    style += colour_rules(_colours(diagnosis), scope) + "\n" + bar_rules(parts, "whole", scope)
    return f'<div class="whyidle-report {name}"><style>{style}</style>{body}</div>'


def _short(diagnosis: Diagnosis, index: int) -> str:
    finding = diagnosis.findings[index]
    found = phrases.places(finding, diagnosis)
    where = f" in <code>{esc(elide(found[0][0], 120))}</code>" if found else ""
    first = f": {esc(finding.remedies[0].what)}" if finding.remedies else ""
    title = esc(elide(clean(finding.title), 120))
    return f"<li><b>{title}</b> ({percent(finding.share)}){where}{first}</li>"
