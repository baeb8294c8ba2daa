"""What one run's event files say: seconds per step, steps done, and the loss.

The job's hook appends to ``BUNDLE/processes/*.jsonl``, one JSON object per line. A job may have
been killed in the middle of a line; what cannot be read is left out, and nothing is made up for it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from whyidle.observe.events import events_of
from whyidle.observe.settled import WARM_UP, first_counted

NS = 1e9


@dataclass(frozen=True)
class Pace:
    """Seconds per step of the slowest rank, its warm-up left out.

    ``median_s`` is its median step, ``mean_s`` its mean step; ``steps`` were done, ``counted`` of
    them are behind the figures.
    """

    median_s: float
    mean_s: float
    steps: int
    counted: int


@dataclass
class _Process:
    """One process's events: ``steps`` are (number, start_ns, end_ns) in the order of the file."""

    rank: int | None = None
    role: str = "main"
    steps: list[tuple[int, int, int]] = field(default_factory=list)
    losses: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Measured:
    """What one run's hooks saw: ``pace`` is None without a single step.

    ``losses`` are step -> loss of the lowest rank that told any; nan where the job's own was not
    finite, and where it did a step without telling one (a hook may tell finite ones only).
    """

    pace: Pace | None
    losses: dict[int, float]


def read(bundle: Path, warm_up: int = WARM_UP) -> Measured:
    """What the event files below ``bundle`` say; empty where there are none."""
    files = sorted((bundle / "processes").glob("*.jsonl"))
    processes = [p for p in map(_process, files) if p.role != "worker"]
    paces = [pace_of(p.steps, warm_up) for p in processes]
    known = [pace for pace in paces if pace is not None]
    ranked = sorted((p for p in processes if p.losses), key=lambda p: _order(p.rank))
    return Measured(
        pace=max(known, key=lambda pace: pace.mean_s) if known else None,
        losses=_with_gaps(ranked[0]) if ranked else {},
    )


def _with_gaps(process: _Process) -> dict[int, float]:
    return {**{number: math.nan for number, _, _ in process.steps}, **process.losses}


def pace_of(steps: Sequence[tuple[int, int, int]], warm_up: int = WARM_UP) -> Pace | None:
    """The pace of one rank from its (number, start_ns, end_ns); None without a step.

    The first ``warm_up`` steps are not counted, but never more than half of the steps are dropped.
    """
    lengths_s = [(end - start) / NS for _, start, end in sorted(steps) if end > start]
    if not lengths_s:
        return None
    counted = lengths_s[first_counted(len(lengths_s), warm_up) :]
    return Pace(
        median_s=statistics.median(counted),
        mean_s=math.fsum(counted) / len(counted),
        steps=len(lengths_s),
        counted=len(counted),
    )


def _order(rank: int | None) -> float:
    return math.inf if rank is None else rank


def _process(path: Path) -> _Process:
    found = _Process()
    for event in events_of(path):
        kind, rows = event.get("event"), event.get("rows")
        if kind == "process":
            rank, role = event.get("rank"), event.get("role")
            found.rank = rank if _whole(rank) else found.rank
            found.role = role if isinstance(role, str) else found.role
        elif kind == "steps" and isinstance(rows, list):
            found.steps += [
                (row[0], row[1], row[2])
                for row in rows
                if isinstance(row, list) and len(row) >= 3 and all(map(_whole, row[:3]))
            ]
        elif kind == "loss" and isinstance(rows, list):
            found.losses.update(
                (row[0], _finite(row[1]))
                for row in rows
                if isinstance(row, list) and len(row) >= 2 and _whole(row[0])
            )
    return found


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _finite(value: object) -> float:
    """The loss as it is; nan for infinite ones, null, and what is no number."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            return math.nan
        return number if math.isfinite(number) else math.nan
    return math.nan
