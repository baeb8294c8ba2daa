"""Now and then a host stops for a moment, and the device, or all ranks, wait for it.

Looks like: most steps are equal and a few are longer by tens to hundreds of milliseconds, on
another rank each time; the more ranks, the more of such steps; it grows over the run.

How we tell: ranks wait in a collective for one whose device was empty before, because its host
recorded nothing (no operator, no call) for 5 ms or longer, in less than half of its steps. What
does that at random moments is most often Python's garbage collector, which no profiler records by
itself: suspected. Where a garbage collection was recorded on the late rank, deduced. The pause
itself counts on the rank's own device as well. Over a whole run that whyidle observed: every longer
collection of Python's garbage collector, timed, and calls of ``gc.collect()`` with their line
(seen; deduced for a GPU that was sampled meanwhile).

Change: collect at the same step on all ranks: ``gc.disable()`` before the loop, ``gc.collect(1)``
every few hundred steps on all of them, ``gc.freeze()`` after set-up.

May be wrong: anything that stops a process now and then looks the same: a page fault storm, a
busy neighbour on the same cores, a network file system, a logger that flushes. Without stacks
(``with_stack=True``) a rare slow line of Python looks the same too.

Sources: torchtitan's scheduled collections (pytorch/torchtitan#148: about 1.5 % on 512 GPUs);
"Understanding Stragglers in Large Model Training Using What-if Analysis", section on collection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from whyidle.diagnosis import Finding, Remedy
from whyidle.moment_stories import TimedRun
from whyidle.rank_stories import Ranks
from whyidle.views.moment_claims import pauses, seconds

if TYPE_CHECKING:
    from whyidle.model import Evidence, Facts
    from whyidle.views import Views

TITLE = "Pauses of a host, such as garbage collection"
STATUS = "preview"
NEEDS = ("peers",)
WAITS = ("pauses",)
JOB_NEEDS = ("timed_run",)


def job_claims(views: Views) -> pl.DataFrame:
    """Collections over the whole run; emptying the device's cache is none."""
    lasted = pl.col("end_ns") - pl.col("start_ns")
    called = pl.coalesce("what", pl.lit("collector"))
    words = pl.format("garbage collection ({}) for {}", called, seconds(lasted))
    which = (pl.col("kind") == "collector") & pl.col("what").ne_missing("empty_cache")
    return pauses(views, which, words, once_begun=True)


def remedies(finding: Finding, facts: Facts) -> list[Remedy]:
    """Collect garbage on all ranks at once; make sure that it is the collector."""
    return [
        Remedy(
            what="Collect garbage on all ranks at the same step",
            how="gc.disable() before the loop; every 500 steps, just after work was launched, "
            "gc.collect(1) on every rank; gc.freeze() once after set-up.",
            safe=False,
            why_safe="Results stay the same; memory held by reference cycles is freed later.",
            effect={"kind": "spans_removed", "only": "claimed"},
            prove="Record the same number of steps: no step in which the others wait for a host "
            "that recorded nothing, and memory stays level.",
        ),
        Remedy(
            what="Make sure that it is the collector",
            how="gc.callbacks.append(lambda phase, info: print(time.monotonic(), phase, info)) on "
            "every rank, and compare the times with the long steps.",
            safe=True,
            why_safe="It only prints.",
            effect={"kind": "none"},
            prove="Collections stand at the long steps, or they do not.",
        ),
    ]


def example() -> tuple[Evidence, float]:
    """Three ranks, eight steps of 10 ms; rank 0 pauses for 60 ms in one, rank 2 for 80 in another.

    Each pause costs three devices its length.
    """
    ranks = Ranks(3)
    for number in range(8):
        idles = {2: [60_000, 0, 0], 5: [0, 0, 80_000]}.get(number, [0, 0, 0])
        ranks.step([10_000, 10_000, 10_000], idles)
    return ranks.evidence(), 3 * (0.060 + 0.080)


def job_example() -> tuple[Evidence, float]:
    """Thirty steps of 100 ms, with a full collection of 200 ms after every ten: 0.6 s."""
    story = TimedRun()
    for _ in range(3):
        story.steps(10, 100).pause("collector", 200, what="generation 2")
    return story.steps(1, 100).evidence(), 0.6
