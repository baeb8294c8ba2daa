"""The rate of a loader with a number of workers that was not measured.

Every worker goes round: it waits (storage, locks), then needs a CPU, for one sample after the
other. The workers and the training process share the CPUs. With exponential times this is the
machine-repair queue, whose throughput depends, for CPUs that are shared fairly, only on the mean
times. Three things are measured and put in: what a sample costs a worker (CPU and waiting, with
collating and hand-over in it), what it costs the training process, and by how much CPU work slows
down when all CPUs do it at once (shared caches and memory, hyper-threads).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

WORTH = 0.03
"""A number of workers is worth it only if it is faster by more than this share."""

CROWD = 0.025
"""Share of the rate lost for each further process per CPU than there are CPUs, at most CROWD_MOST.
An assumption from a few loaders on two CPUs, not a fit."""

CROWD_MOST = 0.10

MODEL_ERROR = 0.06
"""Relative standard deviation put on the model itself, to which the spread of this probe's own
measurements is added. An assumption: it is not calibrated yet."""

Z = 1.28
"""Half width of an interval in standard deviations: eight of ten lie inside if the errors hold."""

ITERATIONS = 60


@dataclass(frozen=True)
class Costs:
    """Seconds per sample, and the CPUs there are.

    ``alone_s`` wall without workers, in the training process. ``worker_cpu_s`` and
    ``worker_wait_s`` in a worker, collating and hand-over included. ``main_s`` what the training
    process is busy for with a sample that a worker made. ``slowdown`` >= 1: CPU time of a sample
    when all CPUs work on some, over that when one does. ``spread``: relative standard deviation
    of the measurements. ``batch`` samples are made by one worker in one go.
    """

    alone_s: float
    worker_cpu_s: float
    worker_wait_s: float
    main_s: float
    slowdown: float
    cpus: float
    spread: float
    batch: int


@dataclass(frozen=True)
class Rate:
    """Samples per second of a number of workers; ``low`` to ``high`` holds eight of ten.

    ``bound``: what keeps it from being higher: the workers' own time, the CPUs, or the training
    process. ``measured`` says that it was not predicted.
    """

    workers: int
    rate: float
    low: float
    high: float
    bound: str
    measured: bool = False


def rate(costs: Costs, workers: int) -> Rate:
    """What the model says of this many workers."""
    if workers == 0:
        found, bound = 1.0 / costs.alone_s, "one process"
    else:
        found, bound = _shared(costs, workers)
    return _between(costs, workers, found, bound)


def measured(workers: int, found: float, spread: float) -> Rate:
    """A rate that was measured, with the interval of repeated measurements."""
    width = Z * max(spread, 0.02)
    return Rate(workers, found, found / (1 + width), found * (1 + width), "measured", True)


def rates(
    costs: Costs, workers: Iterable[int], known: Mapping[int, tuple[float, float]] | None = None
) -> list[Rate]:
    """The rate for each number of workers: measured where ``known`` has (rate, spread)."""
    had = known or {}
    return [
        measured(count, *had[count]) if count in had else rate(costs, count) for count in workers
    ]


def _between(costs: Costs, workers: int, found: float, bound: str) -> Rate:
    width = Z * math.hypot(costs.spread, MODEL_ERROR)
    return Rate(workers, found, found / (1 + width), found * (1 + width), bound)


def _shared(costs: Costs, workers: int) -> tuple[float, str]:
    """(samples per second, what bounds it), the training process taking its part of the CPUs."""
    slow = costs.slowdown if min(workers, costs.cpus) > 1 else 1.0
    by_main = 1.0 / (costs.main_s * slow) if costs.main_s > 0 else math.inf
    low, high = 0.0, min(by_main, workers / (costs.worker_cpu_s + costs.worker_wait_s))
    for _ in range(ITERATIONS):
        middle = (low + high) / 2
        left = max(costs.cpus - middle * costs.main_s * slow, 1e-6)
        if throughput(costs, workers, left) > middle:
            low = middle
        else:
            high = middle
    crowd = max(workers + 1 - costs.cpus, 0) / costs.cpus - 0.5
    busy = low * (costs.worker_cpu_s + costs.main_s) * slow / costs.cpus
    lost = min(CROWD * max(crowd, 0.0), CROWD_MOST) * min(busy, 1.0)
    found = low * (1 - lost)
    if found > 0.97 * by_main:
        return found, "the training process"
    return found, "the CPUs" if busy > 0.9 else "the workers"


def throughput(costs: Costs, workers: int, cpus: float) -> float:
    """Samples per second of ``workers`` that share ``cpus``, which may be a fraction.

    The number at the CPUs, of 0 to ``workers``, is a birth-death chain: one comes from waiting at
    (workers - n) / wait, and goes at min(n, cpus) / cpu time.
    """
    if costs.worker_cpu_s <= 0:
        return workers / costs.worker_wait_s if costs.worker_wait_s > 0 else math.inf
    served = [_served(costs, n, cpus) for n in range(workers + 1)]
    if costs.worker_wait_s <= 0:
        return served[workers]
    logs = [0.0]
    for n in range(workers):
        comes = (workers - n) / costs.worker_wait_s
        logs.append(logs[-1] + math.log(comes) - math.log(served[n + 1]))
    most = max(logs)
    weights = [math.exp(one - most) for one in logs]
    return math.fsum(w * s for w, s in zip(weights, served, strict=True)) / math.fsum(weights)


def _served(costs: Costs, n: int, cpus: float) -> float:
    """Samples per second that leave the CPUs while ``n`` workers want one."""
    at_work = min(float(n), cpus)
    more = max(costs.cpus - 1, 1e-9)
    part = min(max((at_work - 1) / more, 0.0), 1.0)
    return at_work / (costs.worker_cpu_s * (1 + (costs.slowdown - 1) * part))


def pick(found: Sequence[Rate]) -> Rate:
    """The fewest workers that are within WORTH of the best rate."""
    best = max(one.rate for one in found)
    return min(
        (one for one in found if one.rate >= (1 - WORTH) * best), key=lambda one: one.workers
    )


def candidates(cpus: float, more: Iterable[int | None] = (), wait_share: float = 0.0) -> list[int]:
    """Numbers of workers to look at: up to twice the CPUs; more where samples mostly wait."""
    most = max(2, math.ceil(2 * cpus))
    if wait_share > 0.2:
        most = max(most, min(math.ceil(cpus / max(1 - wait_share, 0.05)) + 1, 32))
    every = range(most + 1) if most <= 16 else [*range(9), *range(10, most + 1, 2)]
    return sorted({*every, *(one for one in more if one is not None)})


def busy(found: Rate, batch: int, step_s: float) -> float:
    """The share of time that a device can be busy whose step takes ``step_s`` for a batch.

    Workers load while the device works; without workers it waits for every batch.
    """
    loads_s = batch / found.rate
    return step_s / (max(step_s, loads_s) if found.workers else step_s + loads_s)


def without(costs: Costs, *, cpu_s: float = 0.0, wait_s: float = 0.0, main_s: float = 0.0) -> Costs:
    """The costs with so much taken off a sample; never below a hundredth of what was."""

    def less(had: float, off: float) -> float:
        return max(had - off, had / 100)

    return replace(
        costs,
        alone_s=less(costs.alone_s, cpu_s + wait_s),
        worker_cpu_s=less(costs.worker_cpu_s, cpu_s),
        worker_wait_s=less(costs.worker_wait_s, wait_s),
        main_s=less(costs.main_s, main_s),
    )
