"""Which steps count: those at the start of a run are slower, and not what a run goes on with."""

from __future__ import annotations

WARM_UP = 3
"""Steps at the start of every rank that are not counted, unless asked otherwise."""


def first_counted(steps: int, warm_up: int = WARM_UP) -> int:
    """How many of a rank's steps to leave out at the start: never more than half of them."""
    return min(warm_up, steps // 2)
