"""Diagnoses of simulated runs: steps drawn at random, with what each cause cost in them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from whyidle.diagnosis import Device, Diagnosis, KernelCost, Kernels, Step, StepCost, Window

Draw = Callable[[random.Random], float]

BASE_S = 0.040


def gaussian(mean_s: float, spread: float) -> Draw:
    return lambda chance: max(0.0, chance.gauss(mean_s, spread * mean_s))


def skewed(mean_s: float, spread: float) -> Draw:
    return lambda chance: mean_s * math.exp(chance.gauss(0, spread) - spread * spread / 2)


def rare(size_s: float, odds: float) -> Draw:
    """Nothing in most steps, ``size_s`` in some: a pause of the collector, a late batch."""
    return lambda chance: size_s if chance.random() < odds else 0.0


def spiky(mean_s: float) -> Draw:
    return lambda chance: mean_s * (6 if chance.random() < 0.15 else 1) * chance.uniform(0.95, 1.05)


ORDINARY: dict[str, Draw] = {
    "data_loading.loader_workers_too_few": skewed(0.020, 0.4),
    "small_work.launch_bound_small_kernels": gaussian(0.008, 0.1),
    "small_work.python_between_ops": spiky(0.002),
    "small_work.optimizer_launch_bound": gaussian(0.005, 0.02),
    "small_work.host_sync_scalar_read": skewed(0.003, 1.0),
    "memory.allocator_pressure": rare(0.010, 0.2),
    "communication.gc_jitter": rare(0.015, 0.1),
    "data_loading.h2d_copy_blocking": gaussian(0.002, 0.01),
}
"""Cause -> what it costs in a step, in shapes that noise takes."""


def run(seed: int, steps: int, draws: dict[str, Draw] = ORDINARY, names: int = 20) -> Diagnosis:
    """A run of ``steps`` interior steps on one device, with ``names`` kernels."""
    chance = random.Random(seed)
    drawn = [{cause: draw(chance) for cause, draw in draws.items()} for _ in range(steps + 2)]
    costs = [_cost(number, lost, chance) for number, lost in enumerate(drawn)]
    rows = [_kernel(i, steps, chance) for i in range(names)]
    wall_s = sum(cost.step_s for cost in costs)
    lost_s = sum(sum(cost.lost_s.values()) for cost in costs)
    useful_s = sum(cost.useful_s for cost in costs)
    device = Device(
        rank=0, device=0, name="GPU", sms=100, start_ns=0, end_ns=round(wall_s * 1e9),
        wall_s=wall_s, compute_s=useful_s, communication_s=0.0, copy_s=0.0,
        empty_s=wall_s - useful_s, useful_s=useful_s, lost_s=lost_s,
        unexplained_s=max(0.0, wall_s - useful_s - lost_s), unrecorded_s=0.0,
        steps=[Step(number=c.number, start_ns=0, end_ns=round(c.step_s * 1e9)) for c in costs],
        step_s=costs[1].step_s,
    )  # fmt: skip
    return Diagnosis(
        whyidle="0.1.0",
        sources=[],
        window=Window(origin_ns="0", start_ns=0, end_ns=device.end_ns, steps=len(costs)),
        devices=[device],
        ledger=[],
        findings=[],
        step_costs=costs,
        kernels=Kernels(devices=1, steps=steps, rows=rows, left=0, largest_left_s=0.0),
    )


def _cost(number: int, lost: dict[str, float], chance: random.Random) -> StepCost:
    useful_s = chance.gauss(BASE_S, 0.01 * BASE_S)
    empty_s = sum(lost.values())
    return StepCost(
        recording=0, number=number, devices=1, step_s=useful_s + empty_s, compute_s=useful_s,
        communication_s=0.0, copy_s=0.0, empty_s=empty_s, useful_s=useful_s, unexplained_s=0.0,
        lost_s=lost,
    )  # fmt: skip


def _kernel(index: int, steps: int, chance: random.Random) -> KernelCost:
    values = [chance.gauss(0.001 * (index + 1), 5e-6 * (index + 1)) for _ in range(steps)]
    return KernelCost(
        path=["forward", f"layer{index}"], name=f"kernel{index}", state="compute", calls=1.0,
        seconds=sum(values) / steps, per_step_s=values,
    )  # fmt: skip
