"""Some GPUs of a machine never work while others of it do.

Looks like: a job was given eight GPUs and uses one; ``WORLD_SIZE`` is 1; nobody's memory lies on
the others.

How we tell: over the whole series every reading of a GPU is exactly 0, no process holds memory on
it (or memory was not read), and another GPU of the same machine worked in that time. *Suspected*:
samples show machines, and the idle GPUs may not belong to this job at all.

Change: start one process per GPU (``torchrun --nproc-per-node=8``, ``srun --ntasks-per-node=8``),
or ask for the GPUs that are used.

May be wrong: free GPUs of a shared machine look the same. Compare with what the job asked for.

Sources: torchrun and Slurm documentation; reports of jobs with one process on a full node; a CPU
build of torch (``torch.version.cuda`` is None) on GPUs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from whyidle.diagnosis import Finding, Remedy
from whyidle.sampled_stories import GIB, Sampling
from whyidle.views.sampled_patterns import in_words
from whyidle.views.sampled_telling import job_claims_of

if TYPE_CHECKING:
    from whyidle.model import Evidence, Facts
    from whyidle.views import Views

TITLE = "Some GPUs are never used"
STATUS = "preview"
JOB_NEEDS = ("series",)

LEAST_READINGS = 20
WORKED = 0.01
"""A GPU worked when it was busy for at least this share of its time."""


def job_claims(views: Views) -> pl.DataFrame:
    """All idle time of GPUs that never worked beside ones that did."""
    sampled = views.sampled
    lasted = pl.col("end_ns") - pl.col("start_ns")
    worked = (
        sampled.pieces.group_by("number").agg(pl.col("busy_ns").sum() / lasted.sum())
        .filter(pl.col("busy_ns") >= WORKED)
        .join(sampled.gpus.select("number", "host", "start_ns", "end_ns"), on="number")
    )  # fmt: skip
    never = views.plateaus.filter(
        pl.col("leading") & pl.col("trailing") & ~pl.col("held").fill_null(False)
    )
    busy = sampled.pieces.filter(pl.col("value") > 0)["number"].unique()
    never = never.filter(~pl.col("number").is_in(busy.implode()))
    never = never.join(sampled.gpus.select("number", "host"), on="number")
    beside = never.join(worked, on="host", how="inner", nulls_equal=True, suffix="_other").filter(
        (pl.col("start_ns") < pl.col("end_ns_other"))
        & (pl.col("start_ns_other") < pl.col("end_ns"))
    )
    counts = beside.group_by("number", "start_ns", "end_ns").agg(
        pl.col("number_other").n_unique().alias("others"), pl.col("readings").first()
    )
    found = counts.filter(pl.col("readings") >= LEAST_READINGS).sort("number", "start_ns")
    words = [
        f"0 % and no memory held for {in_words(end - start)} while {others} other "
        f"{'GPU' if others == 1 else 'GPUs'} of the machine worked"
        for start, end, others in found.select("start_ns", "end_ns", "others").iter_rows()
    ]
    return job_claims_of(found, "idle", words)


def remedies(finding: Finding, facts: Facts) -> list[Remedy]:
    """Use them, or do not ask for them."""
    prove = "Sample again: every GPU the job was given shows work, or fewer were given."
    return [
        Remedy(
            what="Start one process per GPU",
            how="torchrun --nproc-per-node=GPUS train.py with DistributedDataParallel, or in Slurm "
            "srun --ntasks-per-node=GPUS --gpus-per-task=1; check torch.cuda.device_count() and "
            "torch.version.cuda in the job.",
            safe=False,
            why_safe="More processes mean a larger total batch: the learning rate may need care.",
            effect={"kind": "idle_removed"},
            prove=prove,
        ),
        Remedy(
            what="Ask for fewer GPUs",
            how="Lower --gres=gpu:N, --gpus or nvidia.com/gpu to the number that work.",
            safe=True,
            why_safe="The job does not use the others.",
            effect={"kind": "idle_removed"},
            prove=prove,
        ),
    ]


def job_example() -> tuple[Evidence, float]:
    """Two GPUs over 600 s: one works, the other shows 0 % and 4 MiB all the time: 600 s."""
    story = Sampling(period_s=10)
    story.runs(600, 0, gpu_utilization=0.9, memory_used=30 * GIB, memory_total=80 * GIB)
    story.runs(600, 1, gpu_utilization=0.0, memory_used=4 * 2**20, memory_total=80 * GIB)
    return story.evidence(), 600.0
