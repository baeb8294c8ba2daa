"""How many CPUs this process may use."""

from __future__ import annotations

import os
from pathlib import Path


def usable_cpus() -> int:
    """CPUs this process may use: by affinity, and by the quota of its control group."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        count = os.cpu_count() or 1
    quota = _quota(Path("/sys/fs/cgroup/cpu.max"))
    return max(1, min(count, quota or count))


def _quota(path: Path) -> int | None:
    """Whole CPUs that a control group (version 2) grants; None when it sets no limit."""
    try:
        allowed, period = path.read_text().split()
        return max(1, int(allowed) // int(period)) if allowed != "max" else None
    except (OSError, ValueError):
        return None
