"""What a diagnosis says to changes beside the lines that it names."""

from __future__ import annotations

from dataclasses import dataclass

from whyidle.executor.cpus import usable_cpus

MOST_WORKERS = 8

MOST_ADVISED = 16
"""Each worker takes memory of its own, so even workers that mostly wait are not without number."""


@dataclass(frozen=True)
class Said:
    """Its causes, and how many loader workers it advises.

    Empty and None without a diagnosis, or where it does not tell.
    """

    causes: frozenset[str] = frozenset()
    workers: int | None = None


NOTHING = Said()


def advised_workers(said: Said) -> int:
    """Workers that the diagnosis found to suit its machine, bounded; else those of this one."""
    return bounded_workers() if said.workers is None else min(MOST_ADVISED, said.workers)


def bounded_workers() -> int:
    """Workers that suit this machine: one for each CPU this process may use, 8 at most."""
    return min(MOST_WORKERS, usable_cpus())
