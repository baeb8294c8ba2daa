"""A comparison as one HTML file that needs no network, in the looks of the report's page."""

from __future__ import annotations

from whyidle.comparison import SCHEMA, Comparison, KernelLine, Line
from whyidle.diagnosis import REASON_TITLES
from whyidle.render import compared
from whyidle.render.html import whole_page
from whyidle.render.numerals import digits
from whyidle.render.page.markup import asset, code, esc, table
from whyidle.render.plain import clean, elide

_STYLES = ("theme.css", "parts.css", "findings.css", "outlook.css", "compare.css", "media.css")
_CAUSES = 40
_KERNELS = 60
_COMPARED = ("causes", "states", "kernels")
"""Sections whose rows a phone shows as small blocks."""
_CHIPS = {"more than noise": "is-sure", "within noise": "is-noise", "cannot tell": "is-open"}


def render(comparison: Comparison) -> str:
    """The comparison as one complete page."""
    style = "\n".join(map(asset, _STYLES)) + "\n" + _widths(comparison)
    before, after = compared.names(comparison)
    return whole_page(
        title=f"{before} against {after}",
        style=style,
        script=asset("page.js"),
        body=_sections(comparison),
        foot=f"whyidle {comparison.whyidle} · {SCHEMA}",
    )


def _sections(comparison: Comparison) -> str:
    first, *rest = compared.sentences(comparison)
    parts = [f"<h1>{esc(first)}</h1>"]
    if rest:
        parts.append(f'<p class="lead">{esc(" ".join(rest))}</p>')
    parts.append(_sides(comparison))
    if not comparison.same:
        parts += [_causes(comparison), _states(comparison), _kernels(comparison)]
        parts += [_signs(comparison), _differences(comparison)]
    parts += [_notes(comparison), _words()]
    return "\n".join(parts)


def _sides(comparison: Comparison) -> str:
    rows = zip(
        ("Before", "After"),
        compared.names(comparison),
        (comparison.before, comparison.after),
        strict=True,
    )
    inside = "".join(
        f"<dt>{label}</dt><dd><b>{esc(name)}</b> {esc(compared.side(side))}{_bar(side.step_s, i)}"
        "</dd>"
        for i, (label, name, side) in enumerate(rows)
    )
    return f'<dl class="sides">{inside}</dl>'


def _bar(step_s: float | None, index: int) -> str:
    """A bar as long as the step, to the scale of the longer one."""
    if not step_s:
        return ""
    return (
        f'<span class="track" aria-hidden="true"><span class="length side-{index}"></span></span>'
    )


def _widths(comparison: Comparison) -> str:
    steps = [comparison.before.step_s, comparison.after.step_s]
    longest = max((s for s in steps if s), default=0.0)
    return "\n".join(
        f".side-{i}{{width:{100 * step / longest:.2f}%}}"
        for i, step in enumerate(steps)
        if step and longest
    )


_HEAD = ("Before", "After", "Change", "Between", "Verdict")


def _causes(comparison: Comparison) -> str:
    shown = compared.worth(comparison)
    if not shown:
        return ""
    rows = [_row(line, comparison) for line in shown[:_CAUSES]]
    listed = table("Causes", ("Cause", *_HEAD), rows, numbers=range(1, 5), hide_caption=True)
    return _section("causes", f"What causes cost, {compared.per(comparison)}", listed)


def _states(comparison: Comparison) -> str:
    rows = [_row(line, comparison) for line in comparison.states if line.before or line.after]
    if not rows:
        return ""
    listed = table("States", ("Device", *_HEAD), rows, numbers=range(1, 5), hide_caption=True)
    return _section("states", f"Where the time went, {compared.per(comparison)}", listed)


def _row(line: Line, comparison: Comparison) -> tuple[str, ...]:
    reason = REASON_TITLES.get(line.reason or 0)
    told = f' <span class="reason">{esc(reason)}</span>' if reason else ""
    note = f'<br><span class="small">{esc(line.note)}</span>' if line.note else ""
    return (
        f"{esc(elide(clean(line.title), 120))}{told}{note}",
        compared.amount(line.before, comparison),
        compared.amount(line.after, comparison),
        _changed(line, comparison),
        compared.interval(line, comparison),
        _chip(line.verdict),
    )


def _changed(line: Line | KernelLine, comparison: Comparison) -> str:
    """The change; bold, and better or worse by colour, where it is sure."""
    said = esc(compared.signed(line.change, comparison))
    large = abs(line.change or 0.0) >= compared.TINY * compared.base(comparison)
    if line.verdict != "more than noise" or not large or line.change is None:
        return said
    useful = isinstance(line, Line) and line.what in ("useful", "compute")
    kind = "" if useful else "better" if line.change < 0 else "worse"
    return f'<b class="{kind}">{said}</b>'


def _chip(verdict: str) -> str:
    return f'<span class="chip {_CHIPS[verdict]}">{verdict}</span>'


def _kernels(comparison: Comparison) -> str:
    if comparison.kernels is None:
        return ""
    rows = [_kernel(row, comparison) for row in compared.kernels(comparison)[:_KERNELS]]
    summary = f"<p>{esc(compared.kernel_summary(comparison))}</p>"
    head = ("Device work", "Calls", "Before", "After", "Change", "Verdict")
    listed = table("Device work", head, rows, numbers=range(1, 5), hide_caption=True)
    title = f"Device work that changed, {compared.per(comparison)}"
    return _section("kernels", title, (listed if rows else "") + summary)


def _kernel(row: KernelLine, comparison: Comparison) -> tuple[str, ...]:
    calls = list(dict.fromkeys([digits(row.before_calls), digits(row.after_calls)]))
    return (
        f"{code(compared.kernel_name(row, 120))}<br>"
        f'<span class="small">{esc(compared.place(row, 160))}</span>',
        " → ".join(calls),
        compared.amount(row.before, comparison),
        compared.amount(row.after, comparison),
        _changed(row, comparison),
        _chip(row.verdict),
    )


def _signs(comparison: Comparison) -> str:
    inside = "".join(
        f"<li><b>{esc(elide(clean(line.title), 120))}</b> {esc(compared.sign_words(line))}</li>"
        for line in comparison.signs[:_CAUSES]
    )
    if not inside:
        return ""
    return _section("signs", "Signs whose cost is not known", f"<ul>{inside}</ul>")


def _differences(comparison: Comparison) -> str:
    rows = [
        (
            esc(elide(clean(d.what), 80)),
            *(
                "not recorded" if v is None else code(elide(clean(v), 200))
                for v in (d.before, d.after)
            ),
        )
        for d in comparison.differences[:_CAUSES]
    ]
    if not rows:
        return ""
    listed = table("What else differs", ("What", "Before", "After"), rows, hide_caption=True)
    return _section("differences", "What else differs", listed)


def _notes(comparison: Comparison) -> str:
    if not comparison.notes:
        return ""
    inside = "".join(f"<li>{esc(note)}</li>" for note in comparison.notes)
    return _section("notes", "Notes", f"<ul>{inside}</ul>")


def _words() -> str:
    parts = "".join(f"<dt>{v}</dt><dd>{esc(means)}</dd>" for v, means in compared.VERDICTS.items())
    return _section(
        "words", "How sure", f'<p>{esc(compared.HOW_SURE)}</p><dl class="words">{parts}</dl>'
    )


def _section(name: str, title: str, inside: str) -> str:
    kind = f' class="compared {name}"' if name in _COMPARED else ""
    return (
        f'<section{kind} aria-labelledby="{name}-title"><h2 id="{name}-title">{esc(title)}</h2>'
        f"{inside}</section>"
    )
