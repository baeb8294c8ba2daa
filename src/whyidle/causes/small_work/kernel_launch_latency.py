"""Between kernels that were launched in time the device needs a moment to start the next one.

Looks like: thousands of short kernels back to back with holes of one to a few microseconds; the
launch thread is ahead, so a faster CPU changes nothing.

How we tell: the launch call of the next work has returned, and the device has not begun. The part
of an empty interval after that call counts when it is at most 50 us. On the traces we know the
median is 1 to 3 us on NVIDIA and 5 to 15 us on AMD, and 99 of 100 lie below 25 us. A longer delay
is no latency: a dependency on another stream, another process on the device, or work that was not
recorded. It stays unexplained.

Change: fewer and larger kernels: fuse (``torch.compile``), batch, or replay as a CUDA graph, which
shortens the distance between kernels too.

May be wrong: recording adds a microsecond or so between kernels. A short dependency on another
stream looks the same.

Sources: CUDA graphs in the CUDA programming guide; rocm documentation on kernel launch latency;
start delays measured on the public traces of kineto, HolisticTraceAnalysis and TraceLens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from whyidle.diagnosis import Finding, Remedy
from whyidle.stories import Story
from whyidle.views.places import claims_of

if TYPE_CHECKING:
    from whyidle.model import Evidence, Facts
    from whyidle.views import Views

TITLE = "Start delay between kernels"
STATUS = "preview"
NEEDS = ("device", "calls")
LONGEST_NS = 50_000
"""A start delay longer than this is not latency."""


def claims(views: Views) -> pl.DataFrame:
    """Empty time after the launch call returned, in intervals where it is short."""
    took = pl.col("end_ns") - pl.col("start_ns")
    rows = views.blame.filter(pl.col("activity") == "device_delay")
    rows = rows.filter(took.sum().over("rank", "device", "piece") <= LONGEST_NS)
    # the launch call is the place: it names the operator and the line
    span = views.host.nest.index_of(rows["launch"].fill_null(2**32 - 1).to_numpy())
    span = np.where(rows["launch"].is_null().to_numpy(), -1, span)
    return claims_of(rows.with_columns(pl.Series("span", span)), views.host, "deduced")


def remedies(finding: Finding, facts: Facts) -> list[Remedy]:
    """Fewer kernels."""
    return [
        Remedy(
            what="Run fewer, larger kernels",
            how='torch.compile(model) fuses elementwise operators; mode="reduce-overhead" also '
            "replays the step as a CUDA graph (fixed shapes); fused=True for the optimizer; a "
            "larger batch spreads the same delays over more work.",
            safe=False,
            why_safe="Fusing changes rounding; graphs need fixed shapes and static buffers; a "
            "larger batch changes training.",
            effect={"kind": "launches_scaled", "factor": 0.5},
            prove="Record the same steps again: fewer kernels per step and less empty time "
            "between them; then time the step without the profiler.",
        )
    ]


def example() -> tuple[Evidence, float]:
    """Ten kernels launched ahead start 4 us late each; an eleventh waits 240 us for something."""
    story = Story()
    story.step(0, 0, 1300)
    story.op("aten::add", 0, 70)
    for index in range(10):
        run = 14 + 100 * index
        story.launch("kernel", (5 + 5 * index, 10 + 5 * index), (run, run + 96))
    story.launch("kernel", (56, 61), (1250, 1300))
    return story.evidence(), 10 * 4e-6
