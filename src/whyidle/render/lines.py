"""Lines of text for a terminal or a plain file: wrapped, indented, with colour or without."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

WIDEST = 110
"""Columns beyond which lines no longer grow; longer ones are hard to read."""

NARROWEST = 20


class Lines:
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

    def table(self, head: Sequence[str], rows: Iterable[Sequence[Text | str]]) -> None:
        """Columns under their heads; the first takes what room there is, the others their own."""
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(ratio=1, overflow="fold")
        for _ in head[1:]:
            grid.add_column(justify="right", no_wrap=True)
        grid.add_row(*(Text(cell, style="dim") for cell in head))
        for row in rows:
            grid.add_row(*row)
        self._console.print(Padding(grid, (0, 0, 0, 1)))

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
