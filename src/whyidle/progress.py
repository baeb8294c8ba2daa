"""A progress bar on stderr, only where a person watches and only when it takes a while."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from whyidle.render.plain import clean

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PATIENCE_S = 1.0
"""Work shorter than this shows no bar."""


def watched() -> bool:
    """Whether a person watches stderr on a terminal that can redraw a line."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


class Bar:
    """A block within which a bar may be drawn; it is gone when the block is left."""

    def __init__(self) -> None:
        self._progress: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()


class ReadingBar(Bar):
    """Called with (path, bytes done, bytes in all) while files are read; draws after a second."""

    def __init__(self, *, quiet: bool) -> None:
        super().__init__()
        self._off = quiet or not watched()
        self._started_s = time.monotonic()
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, path: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` bytes of ``path`` have been read."""
        if self._off or time.monotonic() - self._started_s < PATIENCE_S:
            return
        progress = self._progress or self._start()
        task = self._tasks.get(path)
        if task is None:
            name = clean(os.path.basename(path) or path)
            task = self._tasks[path] = progress.add_task(name, total=total)
        progress.update(task, completed=done, total=total)

    def _start(self) -> Any:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

        name = TextColumn("reading {task.description}", markup=False)
        columns = (name, BarColumn(), DownloadColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._progress.start()
        return self._progress


class CountingBar(Bar):
    """Called with (what is done, how many are done, how many in all); draws after a second."""

    def __init__(self, *, quiet: bool) -> None:
        super().__init__()
        self._off = quiet or not watched()
        self._started_s = time.monotonic()
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` are done of ``what``, with the rate and the time left."""
        if self._off or time.monotonic() - self._started_s < PATIENCE_S:
            return
        progress = self._progress or self._start()
        task = self._tasks.get(what)
        if task is None:
            task = self._tasks[what] = progress.add_task(
                clean(what), total=total, completed=done, rate=""
            )
        speed = progress.tasks[task].speed
        progress.update(task, completed=done, rate="" if speed is None else f"{speed:,.0f}/s")

    def _start(self) -> Any:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}", markup=False),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._progress.start()
        return self._progress
