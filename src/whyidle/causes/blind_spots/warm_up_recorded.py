"""The recording holds start-up work that later steps do not repeat.

Looks like: one or two huge pauses at the first use of a convolution, a matrix product or a kernel;
the first recorded step takes many times as long as the others.

How we tell: the device is empty, and the launching thread is in a record of modules or functions
being loaded (seen); or (deduced) in the first call of its name, operator or kernel, when it takes
more than 1 ms and more than 20 times the median of the later ones (a runtime call seen once only
needs the 1 ms); or in allocations inside such a first use; or in allocations of the first of at
least three iterations that hold 80 % of all allocator time. Waits and copies never count.

Change: nothing in the training. Record later steps:
``torch.profiler.schedule(wait=5, warmup=3, active=5)``.

May be wrong: a run as short as this one pays its start-up for real; then fewer libraries, a warm
file cache and ``CUDA_MODULE_LOADING=LAZY`` (the default) matter.

Sources: Lazy Loading in the CUDA programming guide; torch.profiler documentation (schedule);
start-up of cuDNN handles seen in public traces of HolisticTraceAnalysis and param.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from whyidle.diagnosis import Finding, Remedy
from whyidle.stories import Story
from whyidle.views.certainty import recorded_as

if TYPE_CHECKING:
    from whyidle.model import Evidence, Facts
    from whyidle.views import Views
    from whyidle.views.host import Host

TITLE = "Start-up work inside the recording"
STATUS = "preview"
NEEDS = ("device", "calls")


def claims(views: Views) -> pl.DataFrame:
    """Empty time in work that is done once."""
    return views.blamed("warm_up", level=_sure)


def _sure(rows: pl.DataFrame, host: Host) -> pl.Series:
    return recorded_as(rows, host, "overhead", otherwise="deduced")


def remedies(finding: Finding, facts: Facts) -> list[Remedy]:
    """Skip the first steps."""
    return [
        Remedy(
            what="Record after warm-up",
            how="torch.profiler.profile(..., schedule=torch.profiler.schedule(wait=5, warmup=3, "
            "active=5, repeat=1)) and prof.step() after each step. For a benchmark of one "
            "operator: run it a few times and torch.cuda.synchronize() before the profiler starts.",
            safe=True,
            why_safe="It changes only which steps are recorded.",
            effect={"kind": "spans_removed"},
            prove="Diagnose the new trace: this finding is gone and the steps are alike.",
        )
    ]


def example() -> tuple[Evidence, float]:
    """Three steps; in the first, the first launch of a second kernel loads a module for 5 ms.

    Its call takes 5 ms, those of the later steps 6 us.
    """
    story = Story()
    begin = 0
    for number in range(3):
        took = 5000 if number == 0 else 6
        done = begin + 120 + took + 880
        story.step(number, begin, done)
        story.op("aten::mm", begin, begin + 10)
        story.launch("gemm", (begin + 2, begin + 8), (begin + 8, begin + 120))
        story.op("aten::relu", begin + 118, begin + 124 + took)
        call = (begin + 120, begin + 120 + took)
        story.launch("relu_kernel", call, (begin + 120 + took, done))
        begin = done
    return story.evidence(), 5e-3
