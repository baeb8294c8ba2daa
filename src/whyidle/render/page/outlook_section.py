"""What all changes together would bring, and what was seen besides, without seconds."""

from __future__ import annotations

from whyidle.diagnosis import REASON_TITLES, Diagnosis, Observation
from whyidle.render import outlook, phrases, sampled
from whyidle.render.numerals import count, duration
from whyidle.render.page.finding_section import draw_remedy
from whyidle.render.page.markup import code, esc, folded, table
from whyidle.render.plain import clean, elide

_OBSERVED = 30
_SAMPLED = 64
_STRIP = 48
_PLACES = 40
_EVIDENCE = 10


def draw_plan(diagnosis: Diagnosis) -> str:
    """The plan with its predicted step; without one the replay alone, or why there is none."""
    said, replay = outlook.plan(diagnosis), outlook.replay(diagnosis)
    why_none = outlook.no_gain(diagnosis)
    if not said and not replay and not why_none:
        return ""
    title, body = "What the predictions rest on", ""
    if diagnosis.plan is not None and said:
        title = outlook.plan_title(diagnosis)
        steps = "".join(f"<li>{esc(step.what)}</li>" for step in diagnosis.plan.remedies)
        body = (
            f'<p class="gain">{esc(said[:1].upper() + said[1:])}</p>{_bars(diagnosis)}'
            f"<ol>{steps}</ol>"
        )
    rest = f"{replay or ''} {outlook.HOW_PREDICTED}"
    if why_none:
        title, rest = "No prediction", f"{why_none} {replay or ''}"
    return (
        f'<section aria-labelledby="plan-title"><h2 id="plan-title">{esc(title)}</h2>'
        f'{body}<p class="small">{esc(rest)}</p></section>'
    )


def plan_rules(diagnosis: Diagnosis) -> str:
    """CSS that sets the lengths of the plan's bars."""
    plan = diagnosis.plan
    if plan is None or plan.step_s <= 0:
        return ""
    low, high = sorted((plan.predicted.low, plan.predicted.high))
    longest = max(plan.step_s, high)
    lengths = {"now": plan.step_s, "sure": low, "open": high - low}
    return "\n".join(
        f".plan-{name}{{width:{100 * max(0.0, value) / longest:.2f}%}}"
        for name, value in lengths.items()
    )


def _bars(diagnosis: Diagnosis) -> str:
    """The step now and after, to one scale; what is striped may or may not remain."""
    plan = diagnosis.plan
    if plan is None:
        return ""
    rows = (
        ("now", duration(plan.step_s), '<span class="length plan-now"></span>'),
        (
            "then",
            duration(plan.predicted.mid),
            '<span class="length plan-sure"></span><span class="length plan-open"></span>',
        ),
    )
    inside = "".join(
        f'<span>{name}</span><span class="track">{bar}</span><span class="num">{value}</span>'
        for name, value, bar in rows
    )
    return f'<div class="plan-bars" aria-hidden="true">{inside}</div>'


def draw_samples(diagnosis: Diagnosis) -> str:
    """The whole run as samples or a hook saw it, a row per device; empty without either."""
    job = sampled.drawn(diagnosis)
    if job is None:
        return ""
    shown = sampled.worst(job, _SAMPLED)
    rows = [
        (
            esc(sampled.name(device)),
            esc(elide(device.name or "", 60)),
            *sampled.shares(device),
            f'<span class="strip">{sampled.strip(device, _STRIP)}</span>',
        )
        for device in shown
    ]
    what = sampled.noun(job)
    head = (what[:1].upper() + what[1:], "Model", "Busy", "Lost", "Unknown", "Busy over time")
    left = len(job.devices) - len(shown)
    more = f"<p>and {left} more, in the JSON report</p>" if left > 0 else ""
    listed = table("The whole run", head, rows, numbers=(2, 3, 4), hide_caption=True)
    return (
        '<section aria-labelledby="run-title"><h2 id="run-title">'
        f"{sampled.title(job)}</h2><p>{esc(sampled.sentence(job))}</p>{listed}{more}"
        f'<p class="small">{esc(sampled.scope(job))}. {esc(sampled.meaning(job))}</p></section>'
    )


def draw_observations(diagnosis: Diagnosis) -> str:
    """A card for each sign; empty when none was seen."""
    if not diagnosis.observations:
        return ""
    shown = diagnosis.observations[:_OBSERVED]
    inside = "".join(_draw(i, found) for i, found in enumerate(shown))
    left = len(diagnosis.observations) - len(shown)
    if left > 0:
        inside += f"<p>and {count(left, 'more sign')}, in the JSON report</p>"
    return (
        '<section aria-labelledby="signs-title">'
        f'<h2 id="signs-title">{outlook.signs_title(diagnosis)}</h2>'
        f"<p>The evidence shows these, but not what they cost.</p>{inside}</section>"
    )


def _draw(index: int, found: Observation) -> str:
    title_id = f"sign-{index}"
    meaning = esc(phrases.LEVELS[found.level])
    chips = [f'<span class="chip is-{found.level}" title="{meaning}">{found.level}</span>']
    if found.reason in REASON_TITLES:
        chips.append(f'<span class="chip">{esc(REASON_TITLES[found.reason])}</span>')
    if found.status == "preview":
        hint = "a new rule that has not yet been right on enough runs"
        chips.append(f'<span class="chip" title="{hint}">preview</span>')
    chips.append(code(found.cause))
    title = esc(elide(clean(found.title), 160))
    where = outlook.spots(found, _PLACES)
    rows = "".join(
        f"<li>{esc(row.what)} <span>{code(row.source)}"
        + ("" if row.row is None else f", event {row.row:,}")
        + "</span></li>"
        for row in found.evidence[:_EVIDENCE]
    )
    body = [
        f"<p>{esc(found.what)}</p>",
        f'<h4>Where</h4><p class="small">{esc(where)}</p>' if where else "",
        draw_remedy(found.remedies[0], first=True) if found.remedies else "",
        folded(f"Evidence ({count(len(found.evidence), 'row')})", f"<ul>{rows}</ul>")
        if rows
        else "",
    ]
    return (
        f'<article class="card" aria-labelledby="{title_id}"><header><div class="grow">'
        f'<h3 id="{title_id}">{title}</h3><p class="chips">{" ".join(chips)}</p></div></header>'
        f"{''.join(body)}</article>"
    )
