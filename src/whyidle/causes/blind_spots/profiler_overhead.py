"""The recording itself cost this time; the run without the profiler does not lose it.

Looks like: a long first call after the profiler starts, pauses named after the profiler's buffers,
or an empty end of the last recorded step.

How we tell: the device is empty while an overhead record of the profiler (a buffer requested or
flushed, its own Python frames) covers the launching thread: *seen*. *Suspected* are two things that
no record names: the first runtime call, when it takes more than 1 ms and more than 20 times the
median call; and the tail of the last step in which no thread recorded anything. A tail longer than
all before it is a recording that was cut off, and stays unexplained.

Change: nothing in the training. To record more cheaply: ``with_stack=False``,
``record_shapes=False``, ``profile_memory=False``, a warm-up step before the recorded ones.

May be wrong: a first call that is slow for another reason (a driver that wakes up), or a program
that really slept at the end. What recording adds to every operator and every Python call is not
separable and not counted here.

Sources: torch.profiler documentation (schedule, with_stack); pytorch/kineto overhead events.
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

TITLE = "Time the recording itself took"
STATUS = "preview"
NEEDS = ("blame",)


def claims(views: Views) -> pl.DataFrame:
    """Empty time that the profiler caused, not the program."""
    return views.blamed("profiler", level=_sure)


def _sure(rows: pl.DataFrame, host: Host) -> pl.Series:
    return recorded_as(rows, host, "overhead", "python", otherwise="suspected")


def remedies(finding: Finding, facts: Facts) -> list[Remedy]:
    """Record more cheaply."""
    return [
        Remedy(
            what="Record with less overhead",
            how="torch.profiler.profile(..., with_stack=False, record_shapes=False, "
            "profile_memory=False, schedule=torch.profiler.schedule(wait=1, warmup=2, active=5)), "
            "prof.step() after each step, and stop the profiler right after the last one.",
            safe=True,
            why_safe="It changes only what is recorded.",
            effect={"kind": "none"},
            prove="Diagnose the new trace: this finding shrinks. The step time without a profiler "
            "is the one that counts.",
        )
    ]


def example() -> tuple[Evidence, float]:
    """Two steps; a buffer is flushed for 200 us in each; the second ends with 300 us of nothing."""
    story = Story()
    for number in range(2):
        begin = number * 1000
        story.step(number, begin, begin + 1000)
        story.overhead("Buffer Flush", begin, begin + 200)
        story.op("aten::mm", begin + 200, begin + 210)
        end = begin + (1000 if number == 0 else 700)
        story.launch("gemm", (begin + 202, begin + 208), (begin + 208, end))
    return story.evidence(), (2 * 200 + 300) * 1e-6
