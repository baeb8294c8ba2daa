"""The device waits because the data loader has no batch ready.

Looks like: the GPU is empty at the start of every step while the training thread sits in the
loader's ``__next__``; CPU cores idle; a faster GPU does not make the step faster.

How we tell: the device is empty, and the thread that would launch the next work is inside the
loader's ``__next__`` (``enumerate(DataLoader)#...`` or the same frame). Whatever runs inside that
call, operators of a transform included, counts as loading. In readings of the GPU without a trace:
use that swings between less than 10 % and more than 70 % (5th and 95th percentile) is told without
seconds, *suspected*, since other waits look the same. Over a whole run that whyidle observed: the
time that every step spent in the loader's ``__next__``, timed there (seen); where the GPU was
sampled as well, the idle part of its readings, as far as steps waited meanwhile (deduced).

Change: give the loader more worker processes (``num_workers``), up to the cores this process may
use; keep them alive between epochs (``persistent_workers=True``) and a few batches ahead
(``prefetch_factor``). If workers already fill the cores, make a sample cheaper or pack the data.

May be wrong: the trace shows that the loader was waited for, not which stage is slow: storage,
decoding, a transform or collation look alike here. Workers compete with the training thread for
cores, so the whole wait never comes back.

Sources: DataLoader documentation of PyTorch; Mohan et al., Analyzing and Mitigating Data Stalls
in DNN Training, VLDB 2021.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from whyidle.diagnosis import Finding, Remedy, Sign
from whyidle.moment_stories import TimedRun
from whyidle.sampled_stories import Sampling
from whyidle.stories import Story
from whyidle.views.moment_claims import loader_waits, placed
from whyidle.views.sampled_pauses import swinging_signs

if TYPE_CHECKING:
    from whyidle.model import Evidence, Facts
    from whyidle.views import Views
    from whyidle.views.moments import Trainer

TITLE = "Waiting for the data loader"
STATUS = "stable"
NEEDS = ("blame",)
OBSERVES = ("series",)
JOB_NEEDS = ("timed_run",)
SITES = ("loader",)

MOST_WORKERS = 64
"""Where more would be needed, a cheaper sample is the answer."""

KEEP_UP = re.compile(r"; (\d+) workers? suit it")


def claims(views: Views) -> pl.DataFrame:
    """Empty time during which the launching thread waited for a batch."""
    return views.blamed("loader")


def job_claims(views: Views) -> pl.DataFrame:
    """What all steps of the run waited in their loader, and the workers that would keep up."""
    found = loader_waits(views)
    known = [_workers(views, trainer) for trainer, _, _ in placed(views)]
    counts = [count for count in known if count is not None]
    if not counts or max(counts) > MOST_WORKERS:
        return found
    words = f"; {max(counts)} worker{'' if max(counts) == 1 else 's'} suit it"
    return found.with_columns(pl.col("what") + words)


def _workers(views: Views, trainer: Trainer) -> int | None:
    """Workers that make batches as fast as steps use them; None where no batch was timed.

    That is the seconds to make what a step uses over the seconds of a step without its wait, but no
    more than the CPUs can run: a worker takes one for the part of a batch's time that it computes.
    """
    batches = views.evidence.table("batches").filter(
        (pl.col("source") == trainer.source) & pl.col("rank").eq_missing(trainer.rank)
    )
    busiest = (
        batches.group_by("loader")
        .agg(
            pl.col("wall_ns").sum(),
            pl.col("cpu_ns").sum(),
            pl.col("wall_ns").median().alias("each_ns"),
            pl.len(),
        )
        .sort("wall_ns", "loader")
        .tail(1)
    )
    steps = trainer.step_end.size
    own = (trainer.step_end - trainer.step_start - trainer.waited)[1:]
    own_ns = float(np.median(own)) if own.size else 0.0
    if not busiest.height or own_ns <= 0:
        return None
    per_step = max(round(float(busiest["len"][0]) / steps), 1)
    each_ns = float(busiest["each_ns"][0])
    wanted = math.ceil(each_ns * per_step / own_ns)
    computing = float(busiest["cpu_ns"][0]) / float(busiest["wall_ns"][0])
    cpus = _cpus(views, trainer)
    if cpus is not None and computing > 0:
        wanted = min(wanted, math.floor(cpus / computing))
    return max(wanted, 1)


def _cpus(views: Views, trainer: Trainer) -> float | None:
    """CPUs that the training process may use, by affinity and quota; None where not told."""
    told = views.evidence.table("settings").filter(
        (pl.col("source") == trainer.source)
        & pl.col("rank").eq_missing(trainer.rank)
        & pl.col("key").cast(pl.String).is_in(["cpus", "cpu_quota"])
    )
    known = told["value"].cast(pl.Float64, strict=False).drop_nulls()
    return min(known.filter(known > 0), default=None)


def observations(views: Views) -> list[Sign]:
    """Sampled GPUs that swing between idle and busy."""
    trace = Remedy(
        what="Find out what the GPU waits for",
        how="Record a few steps with torch.profiler, for example by whyidle run -- python "
        "train.py, and diagnose the trace; or feed one batch again and again: if the GPU is then "
        "busy throughout, loading is what it waited for.",
        safe=True,
        why_safe="It only measures.",
        effect={},
        prove="The trace's findings name the loader, or something else.",
    )
    return swinging_signs(views, [trace])


def remedies(finding: Finding, facts: Facts) -> list[Remedy]:
    """More workers when the main process loads by itself; else a cheaper sample."""
    single = any(
        "_SingleProcessDataLoaderIter" in (place.op or "") for place in finding.where
    ) or any(row.what and "num_workers=0" in row.what for row in finding.evidence)
    how = (
        "The batch is built in the training process itself (num_workers=0). Start with "
        "DataLoader(..., num_workers=4, persistent_workers=True, pin_memory=True) and raise the "
        "number while the step gets faster, at most to len(os.sched_getaffinity(0)) per process."
        if single
        else "Raise num_workers up to the cores this process may use "
        "(len(os.sched_getaffinity(0))) and prefetch_factor to 4; when the cores are full, make "
        "a sample cheaper: a faster decoder, fewer pixels, transforms on the GPU, packed shards."
    )
    told = [KEEP_UP.search(row.what or "") for row in finding.evidence]
    counts = [int(one[1]) for one in told if one is not None]
    workers = {"workers": max(counts)} if counts else {}
    return [
        Remedy(
            what="Load batches in more worker processes",
            how=how,
            safe=True,
            why_safe="Batches stay the same; only who builds them changes. Random transforms draw "
            "from per-worker seeds, and memory grows with every worker.",
            effect={"kind": "loader_wait_removed", "share_removed": 1.0, **workers},
            prove="Record the same steps again: the time in __next__ per step must shrink, and "
            "the step by as much.",
        )
    ]


def example() -> tuple[Evidence, float]:
    """Three steps; in each the device waits 4 ms for the loader, then computes 5 ms."""
    story = Story()
    for number in range(3):
        begin = number * 10_000
        story.step(number, begin, begin + 10_000)
        story.annotate(
            "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", begin, begin + 5000
        )
        story.op("aten::stack", begin + 1000, begin + 4000)
        story.op("aten::conv2d", begin + 5000, begin + 5010)
        story.launch("implicit_gemm", (begin + 5002, begin + 5008), (begin + 5008, begin + 10_000))
    return story.evidence(), 3 * 5e-3


def job_example() -> tuple[Evidence, float]:
    """A second of start-up, then twenty steps of 100 ms that wait 60 ms for their batch: 1.2 s."""
    story = TimedRun().site("loader", "train.py", 12, num_workers=0)
    return story.passes(1000).steps(20, 100, wait=60).evidence(), 1.2


def observed_example() -> tuple[Evidence, str]:
    """Ten seconds at 5 %, then thirty at 95 %, again and again."""
    story = Sampling(period_s=10)
    for _ in range(30):
        story.runs(10, gpu_utilization=0.05).runs(30, gpu_utilization=0.95)
    return story.evidence(), "swings between 5% and 95%"
