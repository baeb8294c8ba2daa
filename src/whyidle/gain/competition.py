"""What competes once a wait is gone: loader processes, cores, and what stays of the step.

None of these numbers comes from the pair that a prediction is held against; see the page on gains
for where each comes from and for the same predictions with the pair at hand left out.
"""

from __future__ import annotations

import math

COMPETING = (1.0, 1.1, 1.35)
"""How much slower the host runs beside busy loader processes, at the high, mid and low end.

A server processor with one busy core clocks about 1.1 times as high as with five or more (Intel on
Turbo Boost bins: 4.0 against 3.6 GHz); on pairs recorded on a CPU the host's pace was 1.0 in the
median. The low end is judgement: memory, caches and threads of one core are shared as well.
"""

REMAINING = (0.85, 0.95, 1.15)
"""How long the rest of the host's step takes once everything else is gone, to what it took before.

In proportion to the part of the step that goes: caches and clocks recover after a long wait, while
a step that is packed tighter has less slack. From recorded pairs of training scripts, none of them
on a GPU.
"""

KEEPING_UP = (1.0, 0.88, 0.7)
"""Share of ideal scaling that loader processes reach: two workers of a DataLoader reached 0.70 to
0.91 of what two cores decode (five decoders, one machine)."""

HEADROOM = 1.25
"""A loader keeps up when it could build this many times the batches that are asked for."""
FEWEST, MOST = 2, 16
"""Bounds of the number of workers that is suggested; with known cores, those less one bound it."""


def workers_for(load_ns: float, rest_ns: float, cpus: float | None) -> int | None:
    """The fewest worker processes that keep up with the rest of the step; None without a load.

    ``load_ns``: to build one batch; ``rest_ns``: the step without it; ``cpus``: those that the
    training process may use, None where not known.
    """
    if load_ns <= 0:
        return None
    wanted = math.ceil(HEADROOM * load_ns / rest_ns) if rest_ns > 0 else MOST
    most = MOST if cpus is None else max(math.floor(cpus) - 1, 1)
    return min(max(wanted, FEWEST), most)


def fastest_ns(load_ns: float, rest_ns: float, workers: float, cpus: float | None) -> list[float]:
    """The least that a step can take with so many workers, at the high, mid and low end.

    Batches cannot come faster than the workers build them; and where the cores are known, all
    work of a step cannot take less than their share of it, which is told at the cautious ends
    only: how much of the loading is work, and how much waiting, is not recorded.
    """
    built = [load_ns / (workers * part) for part in KEEPING_UP]
    if cpus is None or cpus <= 0:
        return built
    shared = (load_ns + rest_ns) / cpus
    return [built[0], max(built[1], shared), max(built[2], shared)]


def rest_slower(end: int, removed: float) -> float:
    """How much slower the rest of the host's step runs when this share (0..1) of it goes."""
    return 1.0 + (REMAINING[end] - 1.0) * min(max(removed, 0.0), 1.0)
