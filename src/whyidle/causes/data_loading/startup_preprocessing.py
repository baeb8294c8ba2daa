"""The job prepares for minutes before its first work on the GPU.

Looks like: memory of the GPU is held and utilisation is 0 % from the start of the job until the
first step: tokenising, indexing or copying a data set, building a model on the CPU, downloading.

How we tell: from when memory was first seen held (where memory was not read, from the first
reading) until the first reading above 0, every reading is exactly 0, for at least a minute.
*Suspected*: readings do not say what the process did. From two hours on it counts as a held GPU.
In a run that whyidle observed: from the import of torch to the first step, of which the length of
the usual step is its own work (seen; deduced for a GPU that was sampled meanwhile).

Change: prepare data once, offline, and cache it; transform lazily in the loader's workers; load
weights straight to the device.

May be wrong: some seconds are the price of any start: imports, the device's context, the first
batch. In a run of many hours they do not matter. The recording may begin in the middle of a pause
that is no start-up. Waiting for other machines or for a licence looks the same.

Sources: report of 71 s of preprocessing before step 1 that a lazy transform cut to 0.4 s; Hu et
al. and Weng et al. on start-up in GPU clusters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from whyidle.diagnosis import Finding, Remedy
from whyidle.sampled_stories import GIB, Sampling
from whyidle.views.moment_claims import start_ups
from whyidle.views.sampled_patterns import in_words
from whyidle.views.sampled_telling import job_claims_of

if TYPE_CHECKING:
    from whyidle.model import Evidence, Facts
    from whyidle.views import Views

TITLE = "Preparation before the first step"
STATUS = "preview"
JOB_NEEDS = ("series_or_run",)

SHORTEST_NS = 60 * 10**9
LONGEST_NS = 2 * 3600 * 10**9


def job_claims(views: Views) -> pl.DataFrame:
    """From the start of the job to its first work, timed inside it or read from outside."""
    timed = start_ups(views)
    return pl.concat([timed, _read(views, list(views.moments.gpus.values()))])


def _read(views: Views, timed: list[int]) -> pl.DataFrame:
    """The idle part from the start of the job to its first work, but for GPUs ``timed`` inside."""
    found = views.plateaus.filter(
        pl.col("leading")
        & ~pl.col("trailing")
        & pl.col("held").fill_null(True)
        & ~pl.col("number").is_in(timed)
    )
    reading = views.sampled.gpus.select("number", "period_ns")
    found = found.join(reading, on="number", how="left", maintain_order="left").with_columns(
        pl.max_horizontal("start_ns", pl.col("held_from_ns") - pl.col("period_ns")).alias(
            "start_ns"
        )
    )
    lasted = pl.col("end_ns") - pl.col("start_ns")
    found = found.filter((lasted >= SHORTEST_NS) & (lasted < LONGEST_NS))
    words = [
        f"0 % for {in_words(end - start)} before the first work"
        for start, end in found.select("start_ns", "end_ns").iter_rows()
    ]
    return job_claims_of(found, "idle", words)


def remedies(finding: Finding, facts: Facts) -> list[Remedy]:
    """Do it once, elsewhere, or beside the training."""
    return [
        Remedy(
            what="Prepare the data once and keep the result",
            how="Tokenise, decode or index offline into files that the job maps or streams; a "
            "cache keyed by the code and the input on storage that all jobs reach.",
            safe=True,
            why_safe="The same data reach the model. The cache must be made anew after changes.",
            effect={"kind": "idle_removed"},
            prove="Sample the start again: minutes at 0 % with memory held are gone.",
        ),
        Remedy(
            what="Prepare in the loader's workers while training runs",
            how="Transform in Dataset.__getitem__ with num_workers above 0 instead of in __init__; "
            "put model.to('cuda') after the preparation, so that no GPU memory is held for it.",
            safe=True,
            why_safe="The same transforms in the same order per sample.",
            effect={"kind": "idle_removed"},
            prove="As above; and the first step starts while later samples are still prepared.",
        ),
    ]


def job_example() -> tuple[Evidence, float]:
    """Two minutes with nothing held, five at 0 % with 1 GiB, then work: 300 s."""
    story = Sampling(period_s=10)
    story.runs(120, gpu_utilization=0.0, memory_used=2**20, memory_total=80 * GIB)
    story.runs(300, gpu_utilization=0.0, memory_used=GIB, memory_total=80 * GIB)
    story.runs(600, gpu_utilization=0.95, memory_used=40 * GIB, memory_total=80 * GIB)
    return story.evidence(), 300.0
