"""A comparison as GitHub-flavoured Markdown, for a pull-request comment or a CI job summary."""

from __future__ import annotations

from whyidle.comparison import Comparison, KernelLine, Line
from whyidle.render import compared
from whyidle.render.markdown import code, folded, table, text
from whyidle.render.numerals import digits
from whyidle.render.plain import clean, elide

_ROWS = 20


def render(comparison: Comparison) -> str:
    """The comparison as Markdown; ends with a line break."""
    before, after = compared.names(comparison)
    first, *rest = compared.sentences(comparison)
    blocks = [
        f"### whyidle: {text(before)} against {text(after)}",
        f"**{text(first)}** " + text(" ".join(rest)),
        f"Before: {text(compared.side(comparison.before))}<br>"
        f"After: {text(compared.side(comparison.after))}",
    ]
    if not comparison.same:
        blocks += [_lines(comparison), _states(comparison), _kernels(comparison)]
        blocks += [_signs(comparison), _differences(comparison)]
        blocks.append(f"<sub>{text(compared.HOW_SURE)}</sub>")
    notes = compared.remarks(comparison)
    if notes:
        blocks.append("Notes:\n\n" + "\n".join(f"- {text(note)}" for note in notes[:_ROWS]))
    return "\n\n".join(block.strip() for block in blocks if block.strip()) + "\n"


_HEAD = ("Before", "After", "Change", "Between", "Verdict")


def _lines(comparison: Comparison) -> str:
    shown = compared.worth(comparison)
    if not shown:
        return ""
    rows = [_row(line, comparison) for line in shown[:_ROWS]]
    left = len(shown) - _ROWS
    more = f"\n\nand {left} more, in the JSON report" if left > 0 else ""
    per = compared.per(comparison)
    return f"#### What causes cost, {per}\n\n" + table(("Cause", *_HEAD), rows, {1, 2, 3, 4}) + more


def _states(comparison: Comparison) -> str:
    rows = [_row(line, comparison) for line in comparison.states if line.before or line.after]
    if not rows:
        return ""
    return folded(
        f"Where the time went, {compared.per(comparison)}",
        table(("Device", *_HEAD), rows, {1, 2, 3, 4}),
    )


def _row(line: Line, comparison: Comparison) -> tuple[str, ...]:
    sure = "**" if line.verdict == "more than noise" else ""
    return (
        f"{sure}{text(elide(clean(line.title), 120))}{sure}",
        compared.amount(line.before, comparison),
        compared.amount(line.after, comparison),
        compared.signed(line.change, comparison),
        compared.interval(line, comparison),
        line.verdict,
    )


def _kernels(comparison: Comparison) -> str:
    rows = compared.kernels(comparison)
    if comparison.kernels is None:
        return ""
    summary = text(compared.kernel_summary(comparison))
    if not rows:
        return summary
    head = ("Device work", "Call path", "Calls", "Before", "After", "Change", "Verdict")
    listed = table(head, [_kernel(row, comparison) for row in rows[:_ROWS]], {2, 3, 4, 5})
    title = f"Device work that changed, {compared.per(comparison)}"
    return folded(title, f"{listed}\n\n{summary}")


def _kernel(row: KernelLine, comparison: Comparison) -> tuple[str, ...]:
    calls = list(dict.fromkeys([digits(row.before_calls), digits(row.after_calls)]))
    return (
        code(compared.kernel_name(row, 80), cell=True),
        code(compared.place(row, 120), cell=True),
        " to ".join(calls),
        compared.amount(row.before, comparison),
        compared.amount(row.after, comparison),
        compared.signed(row.change, comparison),
        row.verdict,
    )


def _signs(comparison: Comparison) -> str:
    if not comparison.signs:
        return ""
    lines = [
        f"- **{text(elide(clean(line.title), 120))}** "
        f"{text(elide(clean(compared.sign_words(line)), 400))}"
        for line in comparison.signs[:_ROWS]
    ]
    return "\n".join(["Signs whose cost is not known:\n", *lines])


def _differences(comparison: Comparison) -> str:
    if not comparison.differences:
        return ""
    rows = [
        (text(elide(clean(d.what), 60)), *(_value(v) for v in (d.before, d.after)))
        for d in comparison.differences[:_ROWS]
    ]
    return folded("What else differs", table(("What", "Before", "After"), rows, set()))


def _value(found: str | None) -> str:
    return "not recorded" if found is None else code(found, cell=True)
