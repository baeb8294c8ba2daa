"""The timeline of the worst step: the data for the script, and a table for those without it."""

from __future__ import annotations

import json
from typing import Any

from whyidle.diagnosis import Diagnosis, Timeline, TimelineClaim, TimelineSpan
from whyidle.render import phrases
from whyidle.render.colours import OTHER, PATTERNS, ink, reasons, shades
from whyidle.render.numerals import count, duration
from whyidle.render.page.markup import esc, swatch, table
from whyidle.render.plain import clean, elide
from whyidle.render.slices import finding_marks, slices, title_of

DEEPEST = 40
"""Rows of nested host calls that are drawn; deeper calls are left out and counted."""

_ROWS = 40
_LEGEND = 9
_HOST_KINDS = ("op", "python", "annotation", "runtime", "overhead")
_KEYS = (
    ("drag, or ← →", "move"),
    ("+ −, pinch, or wheel after a click", "zoom"),
    ("↑ ↓", "choose a row"),
    ("Shift with ← →", "go from item to item"),
    ("Enter", "zoom to the chosen item"),
    ("0", "whole step"),
)


def draw_timeline(diagnosis: Diagnosis) -> str:
    """The section with the timeline; empty when the diagnosis has none."""
    timeline = diagnosis.timeline
    if timeline is None or timeline.end_ns <= timeline.start_ns:
        return ""
    length = duration((timeline.end_ns - timeline.start_ns) / 1e9)
    device = phrases.device_name(timeline.rank, timeline.device)
    what = "the window" if timeline.step is None else f"step {timeline.step}"
    hints = "".join(f"<li><kbd>{keys}</kbd> {does}</li>" for keys, does in _KEYS)
    notes = "".join(f'<p class="small">{esc(note)}</p>' for note in _notes(timeline))
    label = f"Timeline of {what} on {device}, {length}. The keys are listed below it."
    return (
        '<section aria-labelledby="timeline-title">'
        '<h2 id="timeline-title">The worst step, moment by moment</h2>'
        f"<p>{esc(what[:1].upper() + what[1:])} of {esc(device)}, {length}: {_shown(timeline)}.</p>"
        '<div id="timeline" class="card" hidden>'
        '<div class="toolbar" role="toolbar" aria-label="Timeline view" '
        'aria-controls="timeline-canvas"></div>'
        f'<canvas id="timeline-canvas" tabindex="0" role="application" '
        f'aria-roledescription="timeline" aria-describedby="timeline-keys" '
        f'aria-label="{esc(label)}"></canvas>'
        f"{_draw_legend(diagnosis, timeline)}"
        '<div id="timeline-details" class="details"></div>'
        '<p id="timeline-said" class="unseen" role="status" aria-live="polite"></p>'
        f'<ul id="timeline-keys" class="keys">{hints}</ul></div>'
        f"{notes}{_draw_tables(diagnosis, timeline)}"
        f'<script type="application/json" id="timeline-data">{_data(diagnosis, timeline)}</script>'
        "</section>"
    )


def _shown(timeline: Timeline) -> str:
    if timeline.device == "cpu":
        return "when operators ran, what was lost, and what the thread was doing"
    return "what the device did, what was lost, and what the launching thread was doing"


def _notes(timeline: Timeline) -> list[str]:
    found = [timeline.capped] if timeline.capped else []
    deep = sum(1 for span in timeline.spans if span.depth >= DEEPEST)
    if deep:
        found.append(f"{count(deep, 'call')} nested deeper than {DEEPEST} levels: not drawn.")
    return found


def _draw_legend(diagnosis: Diagnosis, timeline: Timeline) -> str:
    """The looks of the losses drawn, under the marks that the rest of the page uses."""
    seen = {claim.cause for claim in timeline.claims}
    parts = [
        part
        for part in slices(diagnosis, causes=_LEGEND)
        if (part.part == "cause" and part.cause in seen)
        or (part.part == "unexplained" and None in seen)
    ]
    inside = "".join(
        f'<li class="named">{swatch(part)}<span>{esc(elide(part.label, 80))}</span></li>'
        for part in parts
    )
    if any(claim.weight < 1 for claim in timeline.claims):
        inside += (
            f'<li class="named"><span class="swatch low" aria-hidden="true"></span>{_LOW}</li>'
        )
    losses = f'<ul class="legend" aria-label="Losses drawn">{inside}</ul>' if inside else ""
    return losses + _draw_kinds(timeline)


_LOW = "<span>lower than its row: that share of the time was lost, the rest was useful</span>"
_KINDS = {
    "compute": "computing",
    "communication": "communicating",
    "copy": "copying or setting memory",
    "op": "operator",
    "python": "Python",
    "annotation": "named range",
    "runtime": "call of the GPU's driver",
    "overhead": "profiler and other",
}
_ALIKE = {"kernel": "compute", "set": "copy"}


def _draw_kinds(timeline: Timeline) -> str:
    """The colours of device work and of what the host thread was doing, as far as drawn."""
    seen = {_ALIKE.get(span.kind, span.kind) for span in timeline.spans}
    kinds = {kind if kind in _KINDS else "overhead" for kind in seen}
    inside = "".join(
        f'<li class="named"><span class="swatch kind-{kind}" aria-hidden="true"></span>'
        f"<span>{name}</span></li>"
        for kind, name in _KINDS.items()
        if kind in kinds
    )
    return f'<ul class="legend" aria-label="Activity drawn">{inside}</ul>' if inside else ""


def _draw_tables(diagnosis: Diagnosis, timeline: Timeline) -> str:
    longest = sorted(timeline.claims, key=lambda c: c.start_ns - c.end_ns)[:_ROWS]
    titles = {f.cause: f.title for f in diagnosis.findings}
    rows = [
        (
            duration((claim.start_ns - timeline.start_ns) / 1e9),
            duration((claim.end_ns - claim.start_ns) / 1e9),
            esc(_title(claim, titles)),
            esc(claim.state),
            esc(elide(claim.what or "", 200)),
        )
        for claim in longest
    ]
    caption = f"Losses, the longest {len(rows)} of {len(timeline.claims):,}"
    head = ("Starts at", "Lasts", "Cause", "Device", "Where")
    listed = table(caption, head, rows, numbers=(0, 1))
    return (
        '<details id="timeline-tables"><summary>The same as tables</summary>'
        f'<div id="timeline-losses">{listed}</div><div id="timeline-spans"></div></details>'
    )


def _title(claim: TimelineClaim, titles: dict[str, str]) -> str:
    if claim.cause is None:
        return "unexplained"
    return elide(titles.get(claim.cause) or title_of(claim.cause), 120)


def _data(diagnosis: Diagnosis, timeline: Timeline) -> str:
    """The timeline as JSON that cannot end its script element; names are stored once."""
    names: dict[str, int] = {}
    drawn = [span for span in timeline.spans if 0 <= span.depth < DEEPEST]
    lanes, places = _lanes(drawn)
    causes = list(dict.fromkeys(c.cause for c in timeline.claims if c.cause is not None))
    numbers = {cause: i for i, cause in enumerate(causes)}

    def number(text: str | None) -> int:
        return -1 if text is None else names.setdefault(clean(text), len(names))

    spans = [
        [
            places[_lane_key(span)],
            span.depth,
            number(span.kind),
            number(span.name),
            span.start_ns - timeline.start_ns,
            span.end_ns - span.start_ns,
        ]
        for span in drawn
    ]
    claims = [
        [
            -1 if claim.cause is None else numbers[claim.cause],
            number(claim.state),
            round(claim.weight, 4),
            number(claim.what),
            claim.start_ns - timeline.start_ns,
            claim.end_ns - claim.start_ns,
        ]
        for claim in timeline.claims
    ]
    data = {
        "cpu": timeline.device == "cpu",
        "length_ns": timeline.end_ns - timeline.start_ns,
        "lanes": lanes,
        "causes": _causes(diagnosis, causes),
        "spans": spans,
        "claims": claims,
        "names": list(names),
    }
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _lane_key(span: TimelineSpan) -> tuple[bool, str]:
    return span.kind in _HOST_KINDS, span.lane


def _lanes(spans: list[TimelineSpan]) -> tuple[list[dict[str, Any]], dict[tuple[bool, str], int]]:
    """Device lanes first, then host threads, each with how many rows its nesting needs."""
    rows: dict[tuple[bool, str], int] = {}
    for span in spans:
        key = _lane_key(span)
        rows[key] = max(rows.get(key, 0), span.depth + 1)
    keys = sorted(rows, key=lambda key: key[0])
    lanes = [{"label": _lane_label(key), "host": key[0], "rows": rows[key]} for key in keys]
    return lanes, {key: i for i, key in enumerate(keys)}


def _lane_label(key: tuple[bool, str]) -> str:
    name = elide(clean(key[1]), 60)
    if name.isdigit():
        return f"{'thread' if key[0] else 'stream'} {name}"
    return name


def _causes(diagnosis: Diagnosis, causes: list[str]) -> list[dict[str, Any]]:
    known = reasons(diagnosis)
    colours = shades(known)
    marks = {
        finding.cause: mark
        for mark, finding in zip(finding_marks(diagnosis), diagnosis.findings, strict=True)
    }
    titles = {finding.cause: finding.title for finding in diagnosis.findings}
    found = []
    for cause in causes:
        colour = colours.get(cause, OTHER)
        reason = known.get(cause)
        found.append(
            {
                "title": elide(clean(titles.get(cause) or title_of(cause)), 120),
                "mark": marks.get(cause, ""),
                "colour": colour,
                "ink": ink(colour),
                "pattern": PATTERNS.get(reason or 0, "none"),
            }
        )
    return found
