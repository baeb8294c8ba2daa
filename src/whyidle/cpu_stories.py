"""Tells what a cluster's exporters read of CPUs, as evidence: for examples of causes and tests.

One machine, read every ``period_s``; counters go up evenly.
"""

from __future__ import annotations

from typing import Any

from whyidle.model import HOST_METRICS, METRICS, SAMPLES, Evidence, Facts, SourceInfo, frame

SECOND = 1_000_000_000
QUOTA_PERIODS = 10.0
"""Periods of a quota in a second, as the Linux kernel has them unless told otherwise."""


class Clerk:
    """Collects readings; ``evidence()`` ends the story. ``job`` returns the story itself."""

    def __init__(
        self,
        *,
        machine_cpus: float | None = None,
        machine_used: float | None = None,
        load: float | None = None,
        readings: int = 5,
        period_s: int = 30,
        host: str = "node1",
    ) -> None:
        """The machine: its CPUs, how many of them were in use, and its load. None: not read."""
        self._rows: list[dict[str, Any]] = []
        self._count, self._period, self._host = readings, period_s, host
        self._gauge("host/cpus", machine_cpus)
        self._gauge("host/load", load)
        self._counter("host/cpu_time", machine_used)

    def job(
        self,
        name: str = "train-0/trainer",
        *,
        cpus: float | None = None,
        used: float | None = None,
        running: float | None = None,
        on_disk: float | None = None,
        held: float | None = None,
        gpu: float | None = None,
    ) -> Clerk:
        """A job: CPUs it may use and used, its threads, how often its quota ran out, its GPU."""
        self._gauge("job/cpus", cpus, name)
        self._counter("job/cpu_time", used, name)
        self._gauge("job/threads_running", running, name)
        self._gauge("job/threads_on_disk", on_disk, name)
        if held is not None:
            self._counter("job/quota_periods", QUOTA_PERIODS, name)
            self._counter("job/quota_periods_held", QUOTA_PERIODS * held, name)
        self._gauge("gpu_utilization", gpu, name)
        return self

    def evidence(self) -> Evidence:
        """Everything told so far."""
        rows = frame(SAMPLES, self._rows).sort("t_ns", maintain_order=True)
        info = SourceInfo("example", "example", None, rows.height, clock_error_ns=1_000_000)
        return Evidence({"samples": rows}, Facts(), (info,))

    def _gauge(self, metric: str, value: float | None, job: str | None = None) -> None:
        if value is not None:
            self._add(metric, [value] * self._count, job)

    def _counter(self, metric: str, each_s: float | None, job: str | None = None) -> None:
        if each_s is not None:
            steps = [1000 + each_s * self._period * i for i in range(self._count)]
            self._add(metric, steps, job)

    def _add(self, metric: str, values: list[float], job: str | None) -> None:
        unit = {**METRICS, **HOST_METRICS}[metric]
        for number, value in enumerate(values):
            t_ns = 1_700_000_000 * SECOND + number * self._period * SECOND
            row = {"metric": metric, "value": value, "unit": unit, "t_ns": t_ns, "job": job}
            gpu = {"gpu": "0", "device": 0} if metric in METRICS else {}
            self._rows.append({"source": 0, "host": self._host} | row | gpu)
