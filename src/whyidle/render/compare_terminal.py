"""A comparison on one screen of text."""

from __future__ import annotations

from rich.text import Text

from whyidle.comparison import Comparison, KernelLine, Line
from whyidle.render import compared
from whyidle.render.lines import NARROWEST, WIDEST, Lines
from whyidle.render.numerals import count, digits
from whyidle.render.plain import clean, elide

_CAUSES = 10
_KERNELS = 8
_ROWS = 8
_WIDE = 92
"""Columns from which the bounds of a change have room."""
_STYLES = {"more than noise": "bold", "within noise": "dim", "cannot tell": ""}


def render(comparison: Comparison, *, width: int, color: bool) -> str:
    """The comparison as text of at most ``width`` columns; colour codes only when ``color``."""
    page = Lines(max(NARROWEST, min(width, WIDEST)), color)
    page.line(f"whyidle {clean(comparison.whyidle)} · comparison", style="dim")
    for label, name, side in zip(
        ("before", "after"),
        compared.names(comparison),
        (comparison.before, comparison.after),
        strict=True,
    ):
        page.item(Text(f"{label:<6}", style="dim"), f"{name} · {compared.side(side)}", indent=0)
    page.gap()
    first, *rest = compared.sentences(comparison)
    text = Text(first, style="bold")
    text.append("".join(" " + sentence for sentence in rest), style="not bold")
    page.line(text)
    if not comparison.same:
        _draw_lines(page, comparison)
        _draw_kernels(page, comparison)
        _draw_signs(page, comparison)
        _draw_differences(page, comparison)
    _draw_notes(page, comparison)
    return page.text()


def _draw_lines(page: Lines, comparison: Comparison) -> None:
    per = compared.per(comparison)
    shown = compared.worth(comparison)
    wide = page.width >= _WIDE and any(line.low is not None for line in comparison.states)
    head = ["", "before", "after", "change", *(["between"] if wide else []), ""]
    if shown:
        page.heading(f"What causes cost, {per}")
        page.table(head, [_row(line, comparison, wide=wide) for line in shown[:_CAUSES]])
        if len(shown) > _CAUSES:
            page.line(f"and {len(shown) - _CAUSES} more, in the JSON report", indent=1, style="dim")
    states = [line for line in comparison.states if line.before or line.after]
    if not states:
        return
    page.heading(f"Where the time went, {per}")
    page.table(head, [_row(line, comparison, wide=wide) for line in states])
    page.line("! more than noise   ~ within noise   ? cannot tell", indent=1, style="dim")


def _row(line: Line, comparison: Comparison, *, wide: bool) -> list[Text | str]:
    title = Text(elide(clean(line.title), 80), style=_STYLES[line.verdict])
    between = [compared.interval(line, comparison)] if wide else []
    return [
        title,
        compared.amount(line.before, comparison),
        compared.amount(line.after, comparison),
        Text(compared.signed(line.change, comparison), style=_STYLES[line.verdict]),
        *between,
        compared.MARKS[line.verdict],
    ]


def _draw_kernels(page: Lines, comparison: Comparison) -> None:
    told = comparison.kernels
    if told is None:
        return
    rows = compared.kernels(comparison)
    page.heading(f"Device work that changed, {compared.per(comparison)}")
    if rows:
        head = ["", "calls", "before", "after", "change", ""]
        page.table(head, [_kernel_row(row, comparison, page) for row in rows[:_KERNELS]])
        if len(rows) > _KERNELS:
            page.line(f"and {len(rows) - _KERNELS} more, in the JSON report", indent=1, style="dim")
    page.line(compared.kernel_summary(comparison), indent=1, style="dim")


def _kernel_row(row: KernelLine, comparison: Comparison, page: Lines) -> list[Text | str]:
    room = max(16, page.width - 50)
    name = Text(compared.kernel_name(row, room), style=_STYLES[row.verdict])
    name.append("\n" + compared.place(row, room), style="not bold dim")
    calls = [digits(row.before_calls), digits(row.after_calls)]
    return [
        name,
        calls[0] if calls[0] == calls[1] else f"{calls[0]} -> {calls[1]}",
        compared.amount(row.before, comparison),
        compared.amount(row.after, comparison),
        compared.signed(row.change, comparison),
        compared.MARKS[row.verdict],
    ]


def _draw_signs(page: Lines, comparison: Comparison) -> None:
    if not comparison.signs:
        return
    page.heading("Signs whose cost is not known")
    for line in comparison.signs[:_ROWS]:
        text = Text(elide(clean(line.title), 80), style="bold")
        text.append(f"  {elide(clean(compared.sign_words(line)), 300)}", style="not bold")
        page.item("-", text, indent=1)


def _draw_differences(page: Lines, comparison: Comparison) -> None:
    if not comparison.differences:
        return
    page.heading("What else differs")
    for found in comparison.differences[:_ROWS]:
        values = [elide(clean(v or "not recorded"), 60) for v in (found.before, found.after)]
        page.item("-", f"{clean(found.what)}: {values[0]} -> {values[1]}", indent=1)
    if len(comparison.differences) > _ROWS:
        left = len(comparison.differences) - _ROWS
        page.item("-", f"and {count(left, 'more difference')}, in the JSON report", indent=1)


def _draw_notes(page: Lines, comparison: Comparison) -> None:
    notes = compared.remarks(comparison)
    if notes:
        page.heading("Notes")
        for note in notes[:_ROWS]:
            page.item("-", elide(clean(note), 400), indent=1)
