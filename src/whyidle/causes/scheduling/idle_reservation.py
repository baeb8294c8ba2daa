"""GPUs are held for hours without any work.

Looks like: utilisation is exactly 0 % for half an hour or more while memory is in use: an
interactive session left open, a server that nobody asks, a job that died without ending.

How we tell: every reading of at least 30 minutes on end is exactly 0, and memory is held, so a
process is there. From two hours on the level is *deduced*: sites that cancel such jobs act after
two to five hours and report almost no false alarm. Below it, or where memory was not read, it is
*suspected*. A stretch before the first work that is shorter than two hours is start-up and counted
there. A gap in the readings or an unknown one ends the stretch: absence never counts as idle.
In a run that whyidle observed: half an hour or more from the last step to the end of the process.

Change: end what is not needed; let interactive sessions end when their GPU idles; ask for GPUs
when there is work, and do long preparation on machines without them.

May be wrong: a GPU counter that failed reads 0 while the GPU works. Long evaluation or
preparation on the CPU also looks like this. Samples see machines, not who reserved them.

Sources: job_defense_shield, cancel zero-GPU jobs (two hours from the start, or any five hours);
gpu-pruner (30 minutes); Jeon et al., Analysis of Large-Scale Multi-Tenant GPU Clusters, ATC 2019.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from whyidle.diagnosis import Finding, Remedy
from whyidle.sampled_stories import GIB, Sampling
from whyidle.views.moment_claims import tails
from whyidle.views.sampled_patterns import gib, in_words
from whyidle.views.sampled_telling import job_claims_of

if TYPE_CHECKING:
    from whyidle.model import Evidence, Facts
    from whyidle.views import Views

TITLE = "GPUs held without work"
STATUS = "preview"
JOB_NEEDS = ("series_or_run",)

SHORTEST_NS = 30 * 60 * 10**9
SURE_NS = 2 * 3600 * 10**9


def job_claims(views: Views) -> pl.DataFrame:
    """The idle part of long stretches at exactly zero with memory held."""
    lasted = pl.col("end_ns") - pl.col("start_ns")
    began = pl.col("leading") & ~pl.col("trailing")
    found = views.plateaus.filter(
        pl.col("held").fill_null(True)
        & (lasted >= pl.when(began).then(SURE_NS).otherwise(SHORTEST_NS))
    )
    sure = (lasted >= SURE_NS) & pl.col("held").fill_null(False)
    level = pl.when(sure).then(pl.lit("deduced")).otherwise(pl.lit("suspected"))
    words = [_words(row) for row in found.iter_rows(named=True)]
    read = job_claims_of(found, "idle", words, level=level)
    return pl.concat([read, tails(views, SHORTEST_NS)])


def _words(row: dict[str, float]) -> str:
    held = row["held_bytes"]
    memory = "memory not read" if held is None else f"{gib(held)} of memory in use"
    return f"0 % for {in_words(row['end_ns'] - row['start_ns'])}, {memory}"


def remedies(finding: Finding, facts: Facts) -> list[Remedy]:
    """End it; then see that it ends by itself."""
    prove = "Sample again over a day: no stretch of half an hour at 0 % with memory in use."
    return [
        Remedy(
            what="End what holds the GPUs",
            how="nvidia-smi --query-compute-apps=pid,used_memory --format=csv names the processes; "
            "end the notebook kernel, server or job, or scancel it.",
            safe=False,
            why_safe="What the process holds in memory is lost: save it first.",
            effect={"kind": "idle_removed"},
            prove=prove,
        ),
        Remedy(
            what="Let sessions end when their GPU idles",
            how="A time limit on the session (sbatch --time, salloc --time), culling of idle "
            "notebook kernels (MappingKernelManager.cull_idle_timeout), and a rule on utilisation "
            "that warns twice before it cancels.",
            safe=False,
            why_safe="A session that pauses on purpose is ended too: warn before.",
            effect={"kind": "idle_removed"},
            prove=prove,
        ),
    ]


def job_example() -> tuple[Evidence, float]:
    """An hour of work, then three hours at 0 % with 20 GiB held: 10,800 s."""
    story = Sampling(period_s=60)
    story.runs(3600, gpu_utilization=1.0, memory_used=20 * GIB, memory_total=80 * GIB)
    story.runs(10_800, gpu_utilization=0.0, memory_used=20 * GIB, memory_total=80 * GIB)
    return story.evidence(), 10_800.0
