"""What a person sees on stderr while a trial goes on: a bar on a terminal, lines in a log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whyidle.progress import Bar, watched

if TYPE_CHECKING:
    from rich.progress import TaskID


class TryBar(Bar):
    """Called with (run from 0, runs at most, what runs) before each run."""

    def __init__(self, *, quiet: bool) -> None:
        super().__init__()
        self._quiet = quiet
        self._plain = not watched()
        self._task: TaskID | None = None

    def __call__(self, number: int, most: int, label: str) -> None:
        """Show that run ``number`` starts now; fewer than ``most`` may do."""
        if self._quiet:
            return
        told = f"run {number + 1} of at most {most} ({label})" if most > 1 else label
        if self._plain:
            from whyidle.reports import say

            say(told)
            return
        if self._progress is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TimeElapsedColumn(),
            )
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._progress.add_task("", total=most)
            self._progress.start()
        if self._task is not None:
            self._progress.update(self._task, completed=number, total=most, description=told)
