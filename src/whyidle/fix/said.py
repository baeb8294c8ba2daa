"""What a diagnosis says to changes beside the lines that it names."""

from __future__ import annotations

from dataclasses import dataclass

from whyidle.executor.cpus import usable_cpus

MOST_WORKERS = 8


@dataclass(frozen=True)
class Said:
    """Its causes, and how many loader workers it advises.

    Empty and None without a diagnosis, or where it does not tell.
    """

    causes: frozenset[str] = frozenset()
    workers: int | None = None


NOTHING = Said()


def bounded_workers() -> int:
    """Workers that suit this machine: one for each CPU this process may use, 8 at most."""
    return min(MOST_WORKERS, usable_cpus())
