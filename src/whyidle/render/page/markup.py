"""Small pieces of HTML; every text passes ``esc``, so nothing from the evidence is markup."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from importlib import resources

from whyidle.render.colours import PATTERNS, ink
from whyidle.render.numerals import duration, percent
from whyidle.render.plain import clean, clean_block
from whyidle.render.slices import Slice


def esc(text: str) -> str:
    """One line of text as HTML, safe in an element and in a quoted attribute."""
    return html.escape(clean(text), quote=True)


def code(text: str) -> str:
    """A short piece of code in a line."""
    return f"<code>{esc(text)}</code>"


def block(text: str) -> str:
    """A block of code; the script adds a button that copies it."""
    inside = html.escape(clean_block(text), quote=True)
    return f'<pre class="copyable" tabindex="0"><code>{inside}</code></pre>'


def asset(name: str) -> str:
    """The text of a file of this folder."""
    return resources.files(__package__ or "").joinpath(name).read_text(encoding="utf-8")


def folded(summary: str, body: str) -> str:
    """A part that opens on demand; ``summary`` is plain text."""
    return f"<details><summary>{esc(summary)}</summary>{body}</details>"


def table(
    caption: str,
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numbers: Iterable[int] = (),
    hide_caption: bool = False,
) -> str:
    """A table of finished cells; columns in ``numbers`` are set to the right.

    The first cell of every row is its heading. It scrolls sideways where it does not fit.
    """
    right = set(numbers)
    kind = [' class="num"' if i in right else "" for i in range(len(head))]
    top = "".join(f'<th scope="col"{kind[i]}>{esc(cell)}</th>' for i, cell in enumerate(head))
    body = "".join(
        "<tr>"
        + "".join(
            f'<th scope="row"{kind[i]}>{cell}</th>' if i == 0 else f"<td{kind[i]}>{cell}</td>"
            for i, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    hidden = ' class="unseen"' if hide_caption else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{esc(caption)}"><table>'
        f"<caption{hidden}>{esc(caption)}</caption>"
        f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def looks(part: Slice) -> str:
    """The classes that give a part of a bar its colour and pattern."""
    if part.part == "cause":
        return f"part {cause_class(part.mark)} {pattern_class(part.reason)}"
    return f"part {part.part}"


def cause_class(mark: str) -> str:
    """The class that holds the colour of a finding's cause."""
    return f"cause-{mark}"


def pattern_class(reason: int | None) -> str:
    """The class that lays the pattern of a reason over a colour."""
    return f"pattern-{PATTERNS[reason]}" if reason in PATTERNS else "pattern-none"


def swatch(part: Slice) -> str:
    """A small square in the looks of a part; screen readers read the label beside it."""
    inside = f"<b>{esc(part.mark)}</b>" if part.part == "cause" else ""
    return f'<span class="swatch {looks(part)}" aria-hidden="true">{inside}</span>'


def badge(mark: str, reason: int | None) -> str:
    """The number of a finding on its colour; hidden from screen readers, which read the title."""
    looks = f"{cause_class(mark)} {pattern_class(reason)}"
    return f'<span class="badge {looks}" aria-hidden="true"><b>{esc(mark)}</b></span>'


def bar(parts: Sequence[Slice], name: str, label: str) -> str:
    """A bar whose parts have the widths that ``bar_rules`` gives the same ``name``."""
    spoken = ", ".join(f"{part.label} {percent(part.share)}" for part in parts if part.share > 0)
    inside = "".join(
        f'<span class="{looks(part)} {name}-{i}{_slim(part)}" title="{esc(_hint(part))}">'
        + (f"<b>{esc(part.mark)}</b>" if part.part == "cause" and part.share > 0.025 else "")
        + "</span>"
        for i, part in enumerate(parts)
        if part.share > 0
    )
    return f'<div class="bar" role="img" aria-label="{esc(f"{label}: {spoken}")}">{inside}</div>'


def _slim(part: Slice) -> str:
    return " slim" if part.share < 0.08 else ""


def _hint(part: Slice) -> str:
    return f"{part.label}: {percent(part.share)}, {duration(part.seconds)}"


def bar_rules(parts: Sequence[Slice], name: str, scope: str = "") -> str:
    """CSS that sets the widths of a bar drawn under the same ``name``."""
    rules = [
        f"{scope}.bar > .{name}-{i}{{flex-grow:{part.share:.6f}}}"
        for i, part in enumerate(parts)
        if part.share > 0
    ]
    return "\n".join(rules)


def colour_rules(colours: dict[str, str], scope: str = "") -> str:
    """CSS that gives each mark its colour and readable text on it."""
    rules = [
        f"{scope}.{cause_class(mark)}{{background-color:{colour};color:{ink(colour)}}}"
        for mark, colour in colours.items()
    ]
    return "\n".join(rules)
