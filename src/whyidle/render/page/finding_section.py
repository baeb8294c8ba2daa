"""The section of findings: what each cost, where, how sure we are, and what to change."""

from __future__ import annotations

from whyidle.diagnosis import REASON_TITLES, Diagnosis, Finding, Remedy
from whyidle.render import outlook, phrases
from whyidle.render.numerals import count, duration, percent
from whyidle.render.page.markup import badge, block, code, esc, folded
from whyidle.render.plain import clean, elide, reads_as_code
from whyidle.render.slices import finding_marks

_PLACES = 12
_ROWS = 40


def draw_findings(diagnosis: Diagnosis) -> str:
    """All findings, largest first; a sentence instead when there is nothing to tell at all."""
    if not diagnosis.findings and diagnosis.observations:
        return ""
    if diagnosis.findings:
        marked = zip(finding_marks(diagnosis), diagnosis.findings, strict=True)
        inside = "".join(_draw_finding(mark, finding, diagnosis) for mark, finding in marked)
    else:
        inside = "<p>No cause was found in what was recorded.</p>"
    return (
        '<section aria-labelledby="findings-title">'
        f'<h2 id="findings-title">What to change, largest loss first</h2>{inside}</section>'
    )


def _draw_finding(mark: str, finding: Finding, diagnosis: Diagnosis) -> str:
    title_id = f"finding-{mark}"
    title = esc(elide(clean(finding.title), 160))
    head = (
        f'<header>{badge(mark, finding.reason)}<div class="grow">'
        f'<h3 id="{title_id}">{title}</h3>{_draw_chips(finding)}</div>'
        f'<p class="cost"><b>{percent(finding.share)}</b> {esc(_size(finding, diagnosis))}</p>'
        "</header>"
    )
    body = [_draw_places(finding, diagnosis)]
    cost = outlook.job_cost(finding, diagnosis)
    if cost:
        body.append(f"<p><b>{esc(cost[:1].upper() + cost[1:])}.</b></p>")
    error = outlook.replay_error(diagnosis)
    if finding.remedies:
        body.append(draw_remedy(finding.remedies[0], first=True, error=error))
    body += [_draw_others(finding, error), _draw_evidence(finding)]
    inside = "".join(body)
    return f'<article class="card" aria-labelledby="{title_id}">{head}{inside}</article>'


def _size(finding: Finding, diagnosis: Diagnosis) -> str:
    if finding.ledger == "job":
        return f"of the whole run, {duration(finding.lost_s)}"
    each = phrases.per_step(finding, diagnosis)
    total = duration(finding.lost_s)
    return total if each is None else f"{duration(each)} per step, {total}"


def _draw_chips(finding: Finding) -> str:
    meaning = esc(phrases.LEVELS[finding.level])
    chips = [f'<span class="chip is-{finding.level}" title="{meaning}">{finding.level}</span>']
    if finding.reason in REASON_TITLES:
        chips.append(f'<span class="chip">{esc(REASON_TITLES[finding.reason])}</span>')
    if finding.status == "preview":
        hint = "a new rule that has not yet been right on enough runs"
        chips.append(f'<span class="chip" title="{hint}">preview</span>')
    chips.append(code(finding.cause))
    return f'<p class="chips">{" ".join(chips)}</p>'


def _draw_places(finding: Finding, diagnosis: Diagnosis) -> str:
    found = phrases.places(finding, diagnosis)
    if not found:
        return ""
    lines = [
        f"<li>{code(elide(name, 300))} <span>{duration(lost_s)}</span></li>"
        for name, lost_s in found
    ]
    listed = f'<ul class="places">{"".join(lines[:3])}</ul>'
    if len(lines) > 3:
        more = "".join(lines[3:_PLACES])
        left = len(lines) - _PLACES
        more += f"<li>and {count(left, 'more place')}, in the JSON report</li>" if left > 0 else ""
        summary = f"{count(len(lines) - 3, 'more place')}"
        listed += folded(summary, f'<ul class="places">{more}</ul>')
    return f"<h4>Where</h4>{listed}"


def draw_remedy(remedy: Remedy, *, first: bool, error: str | None = None) -> str:
    """A change with its gain, how to make it, and how to prove it; ``error``: of the replay."""
    gain, warning = outlook.gain(remedy), phrases.caution(remedy)
    how = clean(remedy.how)
    body = [f"<h4>Do first</h4><p><b>{esc(remedy.what)}</b></p>" if first else ""]
    if not first:
        body = [f"<p><b>{esc(remedy.what)}</b></p>"]
    if gain:
        beside = f' <span class="small">{esc(error)}</span>' if error else ""
        body.append(f'<p class="gain">{esc(gain[:1].upper() + gain[1:])}{beside}</p>')
    if how and how != clean(remedy.what):
        as_code = reads_as_code(remedy.how)
        body.append(block(remedy.how) if as_code else f"<p>{esc(remedy.how)}</p>")
    if remedy.patch:
        body.append(folded("The change as a diff", block(remedy.patch)))
    if warning:
        body.append(f'<p class="careful">{esc(warning[:1].upper() + warning[1:])}</p>')
    if clean(remedy.prove):
        proof = code(remedy.prove) if reads_as_code(remedy.prove) else esc(remedy.prove)
        body.append(f'<p class="prove">To prove it: {proof}</p>')
    return f'<div class="remedy">{"".join(body)}</div>'


def _draw_others(finding: Finding, error: str | None) -> str:
    others = finding.remedies[1:]
    if not others:
        return ""
    inside = "".join(draw_remedy(remedy, first=False, error=error) for remedy in others)
    return folded(count(len(others), "other change"), inside)


def _draw_evidence(finding: Finding) -> str:
    lines = [
        f"<li>{esc(row.what)} <span>{code(row.source)}"
        + ("" if row.row is None else f", event {row.row:,}")
        + "</span></li>"
        for row in finding.evidence[:_ROWS]
    ]
    if finding.contested_s > 0:
        contested = duration(finding.contested_s)
        lines.append(
            f"<li>{contested} more fits this cause, but another one explains it better</li>"
        )
    if not lines:
        return ""
    summary = f"Evidence ({count(len(finding.evidence), 'row')})"
    return folded(summary, f"<p>{esc(phrases.LEVELS[finding.level])}</p><ul>{''.join(lines)}</ul>")
