"""One screen of text: the headline, the time as a bar, what to change, and what was not judged.

The same text is drawn with and without colour; in a pipe nothing is lost but the colour, since
every part of the bar carries the mark of its line in the legend.
"""

from __future__ import annotations

import io
from collections.abc import Iterable

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from whyidle.diagnosis import Diagnosis, Finding, Remedy
from whyidle.render import phrases
from whyidle.render.colours import ink
from whyidle.render.numerals import count, duration, percent
from whyidle.render.phrases import clean, elide, shortened
from whyidle.render.slices import Slice, cells, finding_marks, slices

WIDEST = 110
"""Columns beyond which lines no longer grow; longer ones are hard to read."""

NARROWEST = 20

_DETAILED = 3
_WORTH_CHANGING = 0.001
_RECORDINGS = 4
_NOTES = 3
_BAR_GLYPHS = {"useful": "█", "other": "+", "unexplained": "░", "unrecorded": "·"}


def render(diagnosis: Diagnosis, *, width: int, color: bool) -> str:
    """The report as text of at most ``width`` columns; colour codes only when ``color``."""
    width = max(NARROWEST, min(width, WIDEST))
    page = _Page(width, color)
    _draw_head(page, diagnosis)
    if diagnosis.wall_s > 0:
        _draw_time(page, diagnosis)
    _draw_findings(page, diagnosis)
    _draw_recordings(page, diagnosis)
    _draw_remarks(page, diagnosis)
    return page.text()


class _Page:
    """Lines of text, wrapped to a width, with hanging indents."""

    def __init__(self, width: int, color: bool) -> None:
        self.width = width
        self._color = color
        self._out = io.StringIO()
        self._console = Console(
            file=self._out,
            width=width,
            force_terminal=color,
            color_system="256" if color else None,
            legacy_windows=False,
            highlight=False,
            markup=False,
            emoji=False,
        )

    def line(self, text: Text | str, *, indent: int = 0, style: str = "") -> None:
        """Print one paragraph, every line of it ``indent`` columns from the left."""
        body = text if isinstance(text, Text) else Text(text, style=style)
        body.overflow = "fold"
        self._console.print(Padding(body, (0, 0, 0, indent)) if indent else body)

    def item(self, mark: Text | str, text: Text | str, *, indent: int, style: str = "") -> None:
        """A marked line; what is too long hangs under its own beginning."""
        head = mark if isinstance(mark, Text) else Text(mark)
        body = text if isinstance(text, Text) else Text(text, style=style)
        body.overflow = "fold"
        grid = Table.grid(padding=(0, 1, 0, 0))
        grid.add_column(width=head.cell_len, no_wrap=True)
        grid.add_column(ratio=1)
        grid.add_row(head, body)
        self._console.print(Padding(grid, (0, 0, 0, indent)))

    def detail(self, label: str, text: str, *, style: str = "") -> None:
        """A labelled line of a finding."""
        self.item(Text(f"{label:<8}", style="dim"), text, indent=3, style=style)

    def gap(self) -> None:
        """An empty line between sections."""
        self._console.print()

    def heading(self, text: str) -> None:
        """A section heading after an empty line."""
        self.gap()
        self.line(text, style="bold")

    def text(self) -> str:
        """Everything printed; no blanks at line ends."""
        lines = self._out.getvalue().split("\n")
        return "\n".join(line.rstrip() for line in lines).strip("\n") + "\n"


def _draw_head(page: _Page, diagnosis: Diagnosis) -> None:
    name = f"whyidle {clean(diagnosis.whyidle)} · "
    files = elide(phrases.source_names(diagnosis), max(12, page.width - len(name)))
    page.line(name + files, style="dim")
    page.line(phrases.scope(diagnosis), style="dim")
    page.gap()
    said = phrases.sentences(diagnosis)
    text = Text(said[0], style="bold")
    text.append("".join(" " + sentence for sentence in said[1:]), style="not bold")
    page.line(text)


def _draw_time(page: _Page, diagnosis: Diagnosis) -> None:
    page.heading("Where the time went")
    parts = slices(diagnosis, causes=4)
    page.line(_bar(parts, page.width - 2), indent=1)
    for part in parts:
        page.line(_legend(part, page.width), indent=1)


def _bar(parts: list[Slice], width: int) -> Text:
    bar = Text(no_wrap=True)
    for part, filled in zip(parts, cells(parts, width), strict=True):
        glyph = _BAR_GLYPHS.get(part.part, part.mark)
        style = _ink_style(part) if part.part == "cause" else part.colour
        bar.append(glyph * filled, style=style)
    return bar


def _ink_style(part: Slice) -> str:
    return f"{ink(part.colour)} on {part.colour}"


def _legend(part: Slice, width: int) -> Text:
    glyph = _BAR_GLYPHS.get(part.part, part.mark)
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(glyph, style=_ink_style(part) if part.part == "cause" else part.colour)
    text.append(f" {percent(part.share):>6} ", style="bold")
    if width >= 60:
        text.append(f"{duration(part.seconds):>9}")
    room = max(8, width - 2 - text.cell_len - 2)
    reason = f"  ({part.reason_title})" if part.reason_title and width >= 76 else ""
    label = elide(part.label, room if len(part.label) + len(reason) > room else len(part.label))
    text.append(f"  {label}")
    if reason and len(label) + len(reason) <= room:
        text.append(reason, style="dim")
    return text


def _draw_findings(page: _Page, diagnosis: Diagnosis) -> None:
    if not diagnosis.findings:
        if diagnosis.wall_s > 0:
            page.heading("No cause was found")
        return
    page.heading("What to change, largest loss first")
    marked = list(zip(finding_marks(diagnosis), diagnosis.findings, strict=True))
    large = [pair for pair in marked if pair[1].share >= _WORTH_CHANGING] or marked[:1]
    for mark, finding in large[:_DETAILED]:
        _draw_title(page, mark, finding, diagnosis)
        _draw_details(page, finding, diagnosis)
    rest = diagnosis.findings[len(large[:_DETAILED]) :]
    if rest:
        page.line(_smaller(rest, 2 * (page.width - 3)), indent=3, style="dim")


def _smaller(rest: list[Finding], room: int) -> str:
    """The other causes by their whole ids, as many as fit."""
    line = f"and {len(rest)} smaller: "
    names = [clean(finding.cause) for finding in rest]
    shown = [name for at, name in enumerate(names) if len(line + ", ".join(names[: at + 1])) < room]
    left = len(names) - len(shown)
    return line + ", ".join(shown or names[:1]) + (f" and {left} more" if left and shown else "")


def _draw_title(page: _Page, mark: str, finding: Finding, diagnosis: Diagnosis) -> None:
    text = Text(elide(clean(finding.title), 80), style="bold")
    certain = finding.level + (", preview" if finding.status == "preview" else "")
    text.append(f"  {phrases.cost(finding, diagnosis)} · {certain}", style="not bold")
    page.item(Text(f"{mark:>2}", style="bold"), text, indent=0)


def _draw_details(page: _Page, finding: Finding, diagnosis: Diagnosis) -> None:
    room = max(12, page.width - 12)
    found = phrases.places(finding, diagnosis)
    if found:
        more = f" and {count(len(found) - 1, 'more place')}" if len(found) > 1 else ""
        page.detail("where", phrases.fitted(found[0][0], max(12, room - len(more))) + more)
    if finding.job_cost_s is not None:
        page.detail("job", f"cost the job as a whole {duration(finding.job_cost_s)}")
    if finding.remedies:
        _draw_remedy(page, finding.remedies[0], room)


def _draw_remedy(page: _Page, remedy: Remedy, room: int) -> None:
    what, how = clean(remedy.what).rstrip(".:"), clean(remedy.how)
    room = max(320, 3 * room)
    if how and how != what:
        joint = ": " if phrases.reads_as_code(how) else ". "
        what = shortened(what + joint + how, room)
    page.detail("do first", shortened(what, room))
    gain = phrases.gain(remedy)
    if gain:
        page.detail("gain", gain)
    warning = phrases.caution(remedy)
    if warning:
        page.detail("careful", shortened(warning, room), style="yellow")


def _draw_recordings(page: _Page, diagnosis: Diagnosis) -> None:
    groups = phrases.recordings(diagnosis)
    if not groups:
        return
    causes = count(len({entry.cause for entry in diagnosis.not_judged}), "cause")
    page.heading(f"Not judged: {causes}. What to record")
    for group in groups[:_RECORDINGS]:
        text = Text(elide("; ".join(group.missing) or "a recording", 300))
        text.append(f" ({count(len(group.causes), 'cause')})", style="dim")
        text.append(f": {elide(clean(group.record_with), 200)}")
        page.item("-", text, indent=1)
    if len(groups) > _RECORDINGS:
        more = count(len(groups) - _RECORDINGS, "more recording")
        page.item("-", f"{more}: see --format markdown or html", indent=1)


def _draw_remarks(page: _Page, diagnosis: Diagnosis) -> None:
    notes = list(_notes(diagnosis))
    if notes:
        page.heading("Notes")
        for note in notes[:_NOTES]:
            page.item("-", f"{shortened(note, max(200, 2 * page.width))}", indent=1)
        if len(notes) > _NOTES:
            page.item("-", f"and {len(notes) - _NOTES} more: see --format json", indent=1)
    if diagnosis.crashed:
        page.heading("Causes that failed (not your fault; please report them to their authors)")
        for entry in diagnosis.crashed[:_NOTES]:
            page.item("-", f"{elide(phrases.crash(entry), 2 * page.width)}", indent=1, style="red")
        if len(diagnosis.crashed) > _NOTES:
            page.item("-", f"and {len(diagnosis.crashed) - _NOTES} more", indent=1)
    if diagnosis.findings:
        page.gap()
        cause = clean(diagnosis.findings[0].cause)
        page.line(f"More on a cause: whyidle explain {elide(cause, 70)}", style="dim")


def _notes(diagnosis: Diagnosis) -> Iterable[str]:
    yield from (clean(note) for note in diagnosis.notes)
    for source in diagnosis.sources:
        yield from (clean(note) for note in source.notes)
