"""Tells a series of readings, stretch by stretch, as evidence: for examples of causes and tests.

Every reading stands for the period that ends at it, so a stretch of 60 s at a period of 10 s is
six readings, and the first of them is taken 10 s into it.
"""

from __future__ import annotations

from typing import Any

from whyidle.model import METRICS, SAMPLES, SETTINGS, Evidence, Facts, SourceInfo, frame

GIB = 2**30
SECOND = 1_000_000_000


class Sampling:
    """Collects readings; ``evidence()`` ends the story. Every method returns the story itself."""

    def __init__(
        self,
        *,
        period_s: float = 10,
        host: str | None = "node1",
        origin_ns: int = 1_700_000_000_000_000_000,
        clock_error_ns: int | None = SECOND,
    ) -> None:
        """One source; ``origin_ns`` is when the first reading's period begins, for every GPU."""
        self._period = round(period_s * SECOND)
        self._host = host
        self._origin = origin_ns
        self._error = clock_error_ns
        self._rows: list[dict[str, Any]] = []
        self._settings: list[dict[str, Any]] = []
        self._now: dict[int, int] = {}

    def runs(self, seconds: float, gpu: int = 0, /, **metrics: float | None) -> Sampling:
        """Readings of a GPU over its next ``seconds``; a metric of None is read and unknown."""
        end = self._now.get(gpu, self._origin) + round(seconds * SECOND)
        t = self._now.get(gpu, self._origin) + self._period
        while t <= end:
            for metric, value in metrics.items():
                self.reads(metric, value, t, gpu)
            t += self._period
        self._now[gpu] = end
        return self

    def reads(self, metric: str, value: float | None, t_ns: int | None, gpu: int = 0) -> Sampling:
        """One reading at an instant, or at none."""
        row = {"metric": metric, "t_ns": t_ns, "value": value, "unit": METRICS.get(metric, "")}
        reason = None if value is not None else "not available"
        self._rows.append(self._about(gpu) | row | {"reason": reason})
        return self

    def logs(self, tag: str, value: float, gpu: int = 0) -> Sampling:
        """A value that the training itself logs, at the latest reading of a GPU."""
        self.reads(f"user/{tag}", value, self._now.get(gpu), gpu)
        self._rows[-1] |= {"gpu": None, "device": None}
        return self

    def skips(self, seconds: float, gpu: int = 0) -> Sampling:
        """No readings of a GPU for its next ``seconds``."""
        self._now[gpu] = self._now.get(gpu, self._origin) + round(seconds * SECOND)
        return self

    def holds(self, process: int, used: float, gpu: int = 0, **metrics: float) -> Sampling:
        """A process on a GPU at its latest reading, with the bytes of memory it uses."""
        for metric, value in {"memory_used": used, **metrics}.items():
            self.reads(metric, value, self._now.get(gpu), gpu)
            self._rows[-1]["process"] = process
        return self

    def setting(self, key: str, value: str | None, gpu: int = 0) -> Sampling:
        """A fact in words."""
        self._settings.append(self._about(gpu) | {"key": key, "value": value})
        return self

    def _about(self, gpu: int) -> dict[str, Any]:
        return {"source": 0, "host": self._host, "gpu": str(gpu), "device": gpu}

    def evidence(self) -> Evidence:
        """Everything told so far."""
        tables = {}
        if self._rows:
            tables["samples"] = frame(SAMPLES, self._rows)
        if self._settings:
            tables["settings"] = frame(SETTINGS, self._settings)
        count = len(self._rows) + len(self._settings)
        info = SourceInfo("example", "example", None, count, clock_error_ns=self._error)
        return Evidence(tables, Facts(), (info,))
