"""What a running process may use: the CPUs of its affinity and the quota of its control group."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from whyidle.observe.attach_usage import numbers

GROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Limits:
    """``cpus`` by affinity, ``quota`` in CPUs; counters of the control group since it was made.

    ``periods`` in which the group ran, ``held`` those of them in which its quota ran out. None
    where it is not known; a quota of None is also no quota. ``torch``: whether it is loaded.
    """

    cpus: int | None
    quota: float | None
    periods: int | None
    held: int | None
    torch: bool | None = None


def limits(pid: int, proc: Path = Path("/proc"), groups: Path = GROUPS) -> Limits:
    """The limits of one process now."""
    try:
        cpus: int | None = len(os.sched_getaffinity(pid))
    except (OSError, AttributeError):
        cpus = None
    quota = periods = held = None
    for folder in _folders(pid, proc, groups):
        quota = quota or _quota(folder)
        counted = numbers(folder / "cpu.stat")
        if "nr_periods" in counted and (periods is None or counted["nr_throttled"] > (held or 0)):
            periods, held = counted["nr_periods"], counted.get("nr_throttled")
    return Limits(cpus, quota, periods, held, _has_torch(proc / str(pid) / "maps"))


def _has_torch(maps: Path) -> bool | None:
    try:
        found = maps.read_bytes()
    except OSError:
        return None
    return b"libtorch" in found if found else None


def _folders(pid: int, proc: Path, groups: Path) -> list[Path]:
    """The group's folder and those above it, innermost first; in a container often only the top."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return []
    found: list[Path] = []
    for line in lines:
        number, kinds, path = (line.split(":", 2) + ["", ""])[:3]
        if number == "0" and not kinds:
            base = groups
        elif "cpu" in kinds.split(","):
            base = groups / "cpu"
        else:
            continue
        inner = Path(path.lstrip("/"))
        found += [base / part for part in (inner, *inner.parents) if (base / part).is_dir()]
    return found


def _quota(folder: Path) -> float | None:
    try:
        allowed, period = (folder / "cpu.max").read_text().split()[:2]
        return None if allowed == "max" else int(allowed) / int(period)
    except (OSError, ValueError):
        pass
    try:
        allowed = (folder / "cpu.cfs_quota_us").read_text().strip()
        period = (folder / "cpu.cfs_period_us").read_text().strip()
        return int(allowed) / int(period) if int(allowed) > 0 else None
    except (OSError, ValueError):
        return None
