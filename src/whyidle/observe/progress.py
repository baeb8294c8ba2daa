"""How the job is doing, while it runs: whole lines on stderr, seldom, and only where they fit.

The job's own output goes to the same terminal as ours unless it was sent elsewhere, and a line
that is drawn again and again would garble it. So lines are written only where stderr is a
terminal and stdout is not: somebody is looking, and the job's output goes elsewhere.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import deque
from pathlib import Path

EVERY_S = 30.0
LAST = 64
"""The median step is that of so many last ones."""

MOST_BYTES = 1 << 24
"""So much of a file's growth is read at a time; the rest waits for the next look."""


def wanted(*, quiet: bool) -> bool:
    """Whether anybody sees lines on stderr that do not cross the job's own."""
    return not quiet and sys.stderr.isatty() and not sys.stdout.isatty()


class Progress:
    """Follows the event files of a bundle as they grow; looks at what was added since."""

    def __init__(self, bundle: Path) -> None:
        self._folder = bundle / "processes"
        self._read: dict[Path, int] = {}
        self._steps: dict[Path, int] = {}
        self._lengths: deque[tuple[int, int]] = deque(maxlen=LAST)
        self._told_s = 0.0

    def look(self, at_s: float) -> None:
        """Write a line when it is time for one; ``at_s`` seconds after the job's start."""
        if at_s - self._told_s < EVERY_S:
            return
        self._told_s = at_s
        line = self.line(at_s)
        try:
            sys.stderr.write(f"whyidle: {line}\n")
            sys.stderr.flush()
        except OSError:
            return

    def line(self, at_s: float) -> str:
        """Steps of the rank that did most, the median of the last ones, and what waited."""
        from whyidle.render.numerals import count, duration, percent

        for path in sorted(self._folder.glob("*.jsonl")):
            self._follow(path)
        so_far = f"{duration(at_s)} so far"
        if not self._lengths:
            return f"{so_far}, no step yet"
        lengths, waits = zip(*self._lengths, strict=True)
        median_s = statistics.median(lengths) / 1e9
        waited = sum(waits) / max(sum(lengths), 1)
        return (
            f"{so_far}, {count(max(self._steps.values()), 'step')}, the median of the last ones "
            f"{duration(median_s)}, {percent(waited)} of them waiting for the data loader"
        )

    def _follow(self, path: Path) -> None:
        with path.open("rb") as file:
            file.seek(self._read.get(path, 0))
            text = file.read(MOST_BYTES)
        whole = text[: text.rfind(b"\n") + 1]
        self._read[path] = self._read.get(path, 0) + len(whole)
        for line in whole.splitlines():
            if line.startswith(b'{"event":"steps"'):
                self._take(path, line)

    def _take(self, path: Path, line: bytes) -> None:
        try:
            rows = [[int(cell) for cell in row[:4]] for row in json.loads(line)["rows"][-LAST:]]
            self._lengths.extend((end - begin, wait) for _, begin, end, wait in rows)
            self._steps[path] = rows[-1][0] + 1
        except (ValueError, KeyError, TypeError, IndexError):
            return
