"""What a person sees on stderr while runs go on: a bar on a terminal, a line per pair in a log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whyidle.progress import Bar, watched

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class RunsBar(Bar):
    """Called with (run from 0, runs in all, side) before each run; draws where a person watches."""

    def __init__(self, *, quiet: bool) -> None:
        super().__init__()
        self._quiet = quiet
        self._plain = not watched()
        self._task: TaskID | None = None

    def __call__(self, number: int, total: int, side: str) -> None:
        """Show that run ``number`` of ``total`` starts now."""
        if self._quiet:
            return
        told = f"run {number + 1} of {total} ({side})"
        if self._plain:
            from whyidle.reports import say

            say(told)
            return
        if self._progress is None:
            self._progress, self._task = _bar(total, told)
        elif self._task is not None:
            self._progress.update(self._task, completed=number, description=told, refresh=True)


def _bar(total: int, told: str) -> tuple[Progress, TaskID]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    name = TextColumn("{task.description}", markup=False)
    columns = (name, BarColumn(), TimeElapsedColumn())
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    task = progress.add_task(told, total=total)
    progress.start()
    return progress, task
