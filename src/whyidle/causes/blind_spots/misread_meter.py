"""Utilisation says full, and the GPU is nearly empty.

Looks like: ``nvidia-smi`` shows 100 % and yet throughput is low; nobody looks, because the meter
is green.

How we tell: utilisation counts the time in which any kernel was resident, be it one thread. Where
the share of active multiprocessors was read beside it and is at most half of it, that is *seen*.
Where only power was read, and the GPU draws less than 35 % of its limit while utilisation is 90 %
or more, it is *suspected*.

Change: watch SM activity, tensor activity and power instead (DCGM fields 1002 to 1005, W&B 0.26 or
newer); record a trace to see which kernels are small.

May be wrong: it is a wrong reading, not a loss by itself: the loss, if any, stands under its own
cause. Communication kernels need few multiprocessors by design. Some GPUs draw little at work that
waits for memory.

Sources: NVIDIA/nvidia-docker#807 (99 % at 1 % of the threads); DCGM field reference; a laptop GPU
with one block on 40 multiprocessors that reads 100 %.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from whyidle.diagnosis import Remedy, Sign
from whyidle.sampled_stories import Sampling
from whyidle.views.sampled_power import HALF, IDLE_POWER, stuck
from whyidle.views.sampled_readings import beside
from whyidle.views.sampled_telling import gpu_sign

if TYPE_CHECKING:
    from whyidle.model import Evidence
    from whyidle.views import Views

TITLE = "Utilisation overstates the work"
STATUS = "preview"
OBSERVES = ("samples",)

HIGH = 0.9


def observations(views: Views) -> list[Sign]:
    """GPUs whose meter is high and whose multiprocessors or power say otherwise."""
    labels = views.sampled.labels()
    signs = []
    told: set[int] = set(stuck(views.sampled)["number"].to_list())
    for number, meter, active in _beside(views, "sm_active").iter_rows():
        if active <= HALF * meter:
            what = (
                f"{labels[number]} shows {meter:.0%} utilisation while its multiprocessors were "
                f"active for {active:.0%}."
            )
            signs.append(gpu_sign(views, number, "seen", what, [_meter(), _trace()]))
            told.add(number)
    limits = views.sampled.readings("power_limit").group_by("number").agg(pl.col("value").max())
    limit = dict(limits.drop_nulls().iter_rows())
    for number, meter, power in _beside(views, "power").iter_rows():
        if number not in told and power <= IDLE_POWER * limit.get(number, 0.0):
            what = (
                f"{labels[number]} shows {meter:.0%} utilisation and draws {power:.0f} of "
                f"{limit[number]:.0f} W: little is computed."
            )
            signs.append(gpu_sign(views, number, "suspected", what, [_meter(), _trace()]))
    return signs


def _beside(views: Views, metric: str) -> pl.DataFrame:
    """number, utilisation, metric: means over the readings in which utilisation was high."""
    sampled = views.sampled
    high = sampled.readings("gpu_utilization").filter(pl.col("value") >= HIGH)
    if not sampled.has(metric) or not high.height:
        return high.select("number", "value", pl.col("value").alias("other")).clear()
    timed = high.drop_nulls("t_ns")
    number, t = timed["number"].to_numpy(), timed["t_ns"].to_numpy()
    near = beside(number, t, np.zeros_like(t), sampled.readings(metric))
    found = timed.with_columns(pl.Series("other", near, nan_to_null=True)).drop_nulls("other")
    means = [pl.col("value").mean(), pl.col("other").mean()]
    return found.group_by("number").agg(means).sort("number")


def _meter() -> Remedy:
    return Remedy(
        what="Read SM activity instead of utilisation",
        how="dcgmi dmon -e 1002,1003,1004,1005 -d 1000; in dcgm-exporter's field list uncomment "
        "DCGM_FI_PROF_SM_ACTIVE; on Hopper and newer NVML's GPM gives the same without DCGM.",
        safe=True,
        why_safe="It only reads counters. One reader of them at a time.",
        effect={},
        prove="A dashboard whose value falls when the batch size is halved.",
    )


def _trace() -> Remedy:
    return Remedy(
        what="See which work leaves the GPU empty",
        how="Record a few steps with torch.profiler and diagnose the trace: small kernels, small "
        "batches and waits for peers are told apart there.",
        safe=True,
        why_safe="Profiling a few steps changes nothing but their speed.",
        effect={},
        prove="The trace's findings name the kernels or the launches.",
    )


def observed_example() -> tuple[Evidence, str]:
    """100 % utilisation with multiprocessors active for 12 %."""
    story = Sampling(period_s=10).runs(300, gpu_utilization=1.0, sm_active=0.12)
    return story.evidence(), "active for 12%"
