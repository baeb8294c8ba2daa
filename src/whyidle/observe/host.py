"""Readings of the machine and of a job's processes on Linux, from ``/proc`` and the cgroup.

What cannot be read is left out. Elsewhere than on Linux there is nothing to read here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from whyidle.observe.tree import TICKS, Total, Tree

CGROUPS = Path("/sys/fs/cgroup")
RATIOS = ("host/cpu_utilization", "job/cpu_pressure")


class Reading(NamedTuple):
    """One reading of METRICS or HOST_METRICS; ``value`` None where ``reason`` says why.

    ``period_ns`` is what it stands for, ending when it was taken; None for an instant or a count.
    ``pid`` is one of the job's processes; ``device`` as the driver counts them, ``gpu`` its UUID.
    """

    metric: str
    value: float | None
    period_ns: int | None = None
    reason: str | None = None
    pid: int | None = None
    device: int | None = None
    gpu: str | None = None


class Host:
    """Reads what changed since the reading before; the first reading is of the start."""

    def __init__(self, job: int) -> None:
        self._job = job
        self._tree = Tree(job) if os.path.exists("/proc/self/stat") else None
        self._total: Total | None = None
        self._cgroup = _own_cgroup()
        self._before: dict[str, float] = {}
        self._before_ns = 0

    @property
    def pids(self) -> tuple[int, ...]:
        """The job's processes at the last reading."""
        return self._total.pids if self._total is not None else (self._job,)

    def read(self, at_ns: int) -> list[Reading]:
        """All readings at an instant (Unix nanoseconds of a clock that never goes back)."""
        first = not self._before_ns
        period_ns, self._before_ns = at_ns - self._before_ns, at_ns
        found = list(self._constants()) if first else []
        found += [Reading(metric, value) for metric, value in self._instants()]
        counted = dict(self._counts())
        if not first and period_ns > 0:
            period_s = period_ns / 1e9
            for metric, now in counted.items():
                before = self._before.get(metric)
                if before is not None:
                    rate = max(now - before, 0.0) / period_s
                    most = 1.0 if metric in RATIOS else rate  # the kernel counts in ticks
                    found.append(Reading(metric, min(rate, most), period_ns))
        self._before = counted
        return found

    def _constants(self) -> Iterator[Reading]:
        yield Reading("host/cpus", os.cpu_count())
        if hasattr(os, "sched_getaffinity"):
            with suppress(OSError):
                yield Reading("job/cpus", len(os.sched_getaffinity(self._job)))
        if self._cgroup is None:
            return
        words = (_text(self._cgroup / "cpu.max") or "").split()
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit():
            yield Reading("job/cpu_quota", int(words[0]) / 1e6)
            yield Reading("job/cpu_period", int(words[1]) / 1e6)

    def _instants(self) -> Iterator[tuple[str, float]]:
        if self._tree is not None:
            self._total = self._tree.read()
        if self._total is not None and self._total.pids:
            yield "job/processes", len(self._total.pids)
            yield "job/memory_used", self._total.memory_bytes
        memory = _pairs(_text(Path("/proc/meminfo")), ":")
        if "MemAvailable" in memory:
            yield "host/memory_available", int(memory["MemAvailable"].split()[0]) * 1024
        load = (_text(Path("/proc/loadavg")) or "").split()
        if load:
            yield "host/load", float(load[0])
        if self._cgroup is not None:
            throttled = _pairs(_text(self._cgroup / "cpu.stat"), " ")
            if int(throttled.get("nr_periods", 0)):
                yield "job/quota_periods", int(throttled["nr_periods"])
                yield "job/quota_periods_held", int(throttled["nr_throttled"])

    def _counts(self) -> Iterator[tuple[str, float]]:
        """What only grows; told as its growth per second."""
        if self._total is not None and self._total.pids:
            yield "job/cpus_used", self._total.cpu_s
            yield "job/read_bytes", self._total.read_bytes
            yield "job/written_bytes", self._total.written_bytes
        network = _network(_text(Path("/proc/net/dev")))
        if network is not None:
            yield "host/net_received", network[0]
            yield "host/net_sent", network[1]
        cpus = (_text(Path("/proc/stat")) or "").split("\n", 1)[0].split()
        if len(cpus) > 8:
            ticks = list(map(int, cpus[1:9]))
            busy = sum(ticks) - ticks[3] - ticks[4]
            yield "host/cpu_utilization", busy / TICKS / (os.cpu_count() or 1)
        if self._cgroup is not None:
            held = _text(self._cgroup / "cpu.pressure")
            if held and held.startswith("some ") and "total=" in held:
                total = held.split("\n", 1)[0].rsplit("total=", 1)[1]
                yield "job/cpu_pressure", int(total) / 1e6


def _own_cgroup() -> Path | None:
    """The folder of our control group, version 2, which the job inherits."""
    for line in (_text(Path("/proc/self/cgroup")) or "").splitlines():
        if line.startswith("0::"):
            folder = CGROUPS / line[3:].lstrip("/")
            for one in (folder, CGROUPS):
                if (one / "cpu.stat").is_file():
                    return one
    return None


def _network(text: str | None) -> tuple[int, int] | None:
    """Bytes received and sent by all interfaces but the loopback, since they came up."""
    received = sent = 0
    seen = False
    for line in (text or "").splitlines()[2:]:
        name, _, rest = line.partition(":")
        fields = rest.split()
        if name.strip() != "lo" and len(fields) > 8:
            received, sent, seen = received + int(fields[0]), sent + int(fields[8]), True
    return (received, sent) if seen else None


def _pairs(text: str | None, between: str) -> dict[str, str]:
    lines = (line.split(between, 1) for line in (text or "").splitlines())
    return {words[0].strip(): words[1].strip() for words in lines if len(words) == 2}


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return None


def recorded(reading: Reading, at_ns: int) -> dict[str, Any]:
    """The JSON object of one reading; what does not apply is left out."""
    found: dict[str, Any] = {"t_ns": at_ns, **reading._asdict()}
    return {key: value for key, value in found.items() if value is not None or key == "value"}
