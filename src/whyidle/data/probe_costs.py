"""From what a probe measured to the costs of a sample, the stages, and the rates predicted."""

from __future__ import annotations

import math
from typing import Any

from whyidle.data import predict
from whyidle.data.limits import Limits
from whyidle.data.predict import Costs
from whyidle.data.probe_record import Stage, StageKind
from whyidle.data.probe_run import Told

LEAST_SPREAD = 0.03


def stages(told: Told) -> list[Stage]:
    """The stages of a sample, largest first within the order of loading.

    Wrapping costs time too: the stages inside ``__getitem__`` are scaled to add up to what a
    sample takes without it.
    """
    wrapped, plain = told.of("stages"), told.of("samples")
    walls, cpus = wrapped.get("wall", {}), wrapped.get("cpu", {})
    total = math.fsum(walls.values())
    scale = min(plain["mean_s"] / total, 1.0) if total and plain else 1.0
    idle = {name: max(walls[name] - cpus.get(name, 0.0), 0.0) for name in walls}
    all_idle = math.fsum(idle.values())
    stalled = min(wrapped.get("stalled_s") or 0.0, all_idle)
    waits = 1 - stalled / all_idle if all_idle else 1.0
    order: list[StageKind] = ["read", "decode", "transform", "sample"]
    found = [
        _stage(
            name, wrapped["kinds"][name], walls[name] * scale, cpus.get(name, 0.0) * scale,
            idle[name] * waits * scale,
        )
        for name in sorted(walls, key=lambda name: order.index(wrapped["kinds"][name]))
    ]  # fmt: skip
    collate = told.of("collate").get("collate_s")
    if collate is not None:
        found.append(_stage("collate", "collate", collate, collate, 0.0))
    given = told.of("hand-over")
    if given:
        rest = max(given["wall_s"] - (collate or 0.0), 0.0)
        cpu = min(max(given["worker_cpu_s"] - (collate or 0.0), 0.0), rest)
        found.append(_stage("hand-over to the training process", "handover", rest, cpu, 0.0))
    for name, kind, seconds in told.of("copy").get("stages", ()):
        found.append(_stage(name, kind, seconds, 0.0, 0.0))
    return found


def _stage(name: str, kind: StageKind, wall: float, cpu: float, waiting: float) -> Stage:
    return Stage(
        name=name, kind=kind, wall_s=wall, cpu_s=min(cpu, wall), waiting_s=waiting,
        rate=1 / wall if wall > 0 else None,
    )  # fmt: skip


def turns(told: Told, name: str) -> list[dict[str, Any]]:
    """The repetitions of a part that were done."""
    return [told.of(f"{name} {turn}") for turn in (0, 1) if told.of(f"{name} {turn}")]


def costs(told: Told, limits: Limits) -> Costs | None:
    """What the model needs; None where not even one process could be measured."""
    plain = told.of("samples")
    if not plain:
        return None
    alone, one = turns(told, "alone"), turns(told, "one worker")
    collate = told.of("collate").get("collate_s", 0.0)
    batch = told.of("load")["batch_size"]
    alone_s = _mean([1 / run["rate"] for run in alone]) if alone else plain["mean_s"] + collate
    slowdown, share = _crowded(turns(told, "scaling"))
    cpus = limits.cpus * share
    if one:
        wall = 1 / _mean([run["rate"] for run in one])
        main = _mean([run["main_cpu_s"] for run in one])
        cpu = min(_mean([run["worker_cpu_s"] for run in one]), wall * limits.cpus)
        stalled = _mean([run["stalled_s"] for run in one])
        if main > 0.85 * wall:  # the training process was the limit: the worker could do more
            wall = max(wall * 0.5, cpu)
        wait = max(wall - cpu - stalled, 0.0)
    else:
        cpu, main = plain["process_cpu_s"] + collate, 0.0
        wait = max(alone_s - cpu - plain["stalled_s"], 0.0)
    if wait < 0.05 * (cpu + wait):  # a worker that hardly ever waits: small gaps between batches
        cpu, wait = cpu + wait, 0.0
    spread = max([LEAST_SPREAD, *(_spread([run["rate"] for run in runs]) for runs in (alone, one))])
    return Costs(alone_s, cpu, wait, main, slowdown, cpus, spread, batch)


def known(told: Told) -> dict[int, tuple[float, float]]:
    """Workers -> (rate, spread) of what was really run."""
    found = {}
    for workers, name in ((0, "alone"), (1, "one worker")):
        rates = [run["rate"] for run in turns(told, name)]
        if rates:
            found[workers] = (_mean(rates), max(_spread(rates), LEAST_SPREAD))
    return found


def _crowded(found: list[dict[str, Any]]) -> tuple[float, float]:
    """(CPU seconds of a sample with all CPUs at work over one at work, share of the CPUs had)."""
    slow, share = [], []
    for turn in found:
        one, many = turn["one"], turn["many"]
        alone = _mean([cpu for _, cpu, _, _ in one])
        if len(many) < 2 or alone <= 0:
            continue
        slow.append(_mean([cpu for _, cpu, _, _ in many]) / alone)
        had, wanted = (math.fsum(row[n] for row in many) for n in (2, 3))
        if wanted > 0.8 * len(many):
            share.append(had / wanted)
    return (
        min(max(_mean(slow), 1.0), 3.0) if slow else 1.0,
        min(max(_mean(share), 0.1), 1.0) if share else 1.0,
    )


def _mean(found: list[float]) -> float:
    return math.fsum(found) / len(found)


def _spread(found: list[float]) -> float:
    """Relative standard deviation of a mean of two; 0 for one."""
    if len(found) < 2:
        return 0.0
    return abs(found[0] - found[1]) / 2 / _mean(found)


def interesting(made: Costs, cpus: float, workers: int | None) -> list[int]:
    """The numbers of workers to predict."""
    wait = made.worker_wait_s / (made.worker_wait_s + made.worker_cpu_s or 1.0)
    return predict.candidates(cpus, (workers,), wait)
