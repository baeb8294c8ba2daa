"""Runs commands, each in its own process, and tells CPU seconds, wall seconds and peak memory.

Linux hands the peak of the process that starts a child on to it, so no figure is below the memory
of the benchmark itself: keep that small, and do heavy preparation in a process of its own.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Cost:
    """What one process took: user and system CPU, wall clock, peak resident memory."""

    cpu_s: float
    wall_s: float
    peak_mib: float

    def as_dict(self) -> dict[str, float]:
        """The figures by name, for JSON."""
        return asdict(self)


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Cost:
    """Run one command with its output thrown away. Raises RuntimeError when it fails."""
    quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    begin = time.perf_counter()
    pid = os.posix_spawnp(
        command[0], list(command), {**os.environ, **(environment or {})}, file_actions=quiet
    )
    _, status, usage = os.wait4(pid, 0)
    wall = time.perf_counter() - begin
    code = os.waitstatus_to_exitcode(status)
    if code != 0:
        raise RuntimeError(f"exit {code}: {' '.join(command)[:300]}")
    return Cost(usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss / 1024)


def medians(
    commands: Mapping[str, Sequence[str]],
    rounds: int,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Cost]:
    """The median of each figure over ``rounds``; the commands take turns within a round."""
    found: dict[str, list[Cost]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            found[name].append(run(command, environment))
    return {
        name: Cost(
            statistics.median(c.cpu_s for c in costs),
            statistics.median(c.wall_s for c in costs),
            statistics.median(c.peak_mib for c in costs),
        )
        for name, costs in found.items()
    }
