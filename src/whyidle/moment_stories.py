"""Tells a whole run, step by step, as the hook of ``whyidle run`` times it: for examples and tests.

Times are milliseconds. As with the hook, the first step begins when the process does, pauses lie in
the step that comes after them, and only the recording's own lie between steps.
"""

from __future__ import annotations

import json
from typing import Any

from whyidle.model import MOMENTS, SETTINGS, SITES, Evidence, Facts, SourceInfo, frame

MS = 1_000_000


class TimedRun:
    """Collects moments; ``evidence()`` ends the story. Every method returns the story itself."""

    def __init__(self, *, origin_ns: int = 1_700_000_000_000_000_000) -> None:
        """Nothing yet; every process begins at ``origin_ns``."""
        self._origin = origin_ns
        self._rows: list[dict[str, Any]] = []
        self._sites: list[dict[str, Any]] = []
        self._settings: list[dict[str, Any]] = []
        self._about: dict[str, Any] = {"source": 0, "rank": None, "process": 100}
        self._now = self._last = origin_ns
        self._number = 0

    def process(self, pid: int, rank: int | None = None) -> TimedRun:
        """From here on another process, which began at the origin too."""
        self._end()
        self._about = {"source": 0, "rank": rank, "process": pid}
        self._now = self._last = self._origin
        self._number = 0
        return self

    def passes(self, ms: float) -> TimedRun:
        """Time before the first step, within one, or after the last."""
        self._now += round(ms * MS)
        return self

    def steps(self, count: int, ms: float, wait: float = 0) -> TimedRun:
        """Steps that take ``ms`` each, ``wait`` of it in the loader, after what came before."""
        for _ in range(count):
            self._now += round(ms * MS)
            times = {"start_ns": self._last, "end_ns": self._now, "number": self._number}
            self._row("step", self._now - self._last, **times)
            if wait:
                self._row("loader_wait", round(wait * MS), **times)
            self._last = self._now
            self._number += 1
        return self

    def pause(
        self,
        kind: str,
        ms: float,
        file: str | None = None,
        line: int | None = None,
        what: str | None = None,
    ) -> TimedRun:
        """A pause of a kind of ``model.MOMENTS``; after one of the recording the step is new."""
        start = self._now
        self._now += round(ms * MS)
        place = {"file": file, "line": line, "what": what}
        self._row(kind, self._now - start, start_ns=start, end_ns=self._now, **place)
        if kind == "profiler":
            self._last = self._now
        return self

    def site(self, what: str, file: str, line: int, **detail: Any) -> TimedRun:
        """A line of the source where something was made, such as a ``loader``."""
        row = {"what": what, "file": file, "line": line, "detail": json.dumps(detail)}
        self._sites.append(self._about | row)
        return self

    def setting(self, key: str, value: str) -> TimedRun:
        """A fact in words about the process, such as its ``cpus``."""
        about = {"source": 0, "rank": self._about["rank"], "key": key, "value": value}
        self._settings.append(about)
        return self

    def _row(self, kind: str, length_ns: int, **columns: Any) -> None:
        self._rows.append(self._about | {"kind": kind, "length_ns": length_ns} | columns)

    def _end(self) -> None:
        if self._now > self._origin:
            times = {"start_ns": self._origin, "end_ns": self._now}
            self._row("process", self._now - self._origin, **times)

    def evidence(self) -> Evidence:
        """Everything told so far."""
        self._end()
        tables = {"moments": frame(MOMENTS, self._rows)}
        if self._sites:
            tables["sites"] = frame(SITES, self._sites)
        if self._settings:
            tables["settings"] = frame(SETTINGS, self._settings)
        info = SourceInfo("example", "example", None, len(self._rows), clock_error_ns=MS)
        return Evidence(tables, Facts(), (info,))
