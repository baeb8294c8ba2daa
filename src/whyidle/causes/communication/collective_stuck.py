"""A collective hangs: the GPUs spin at full utilisation and do nothing.

Looks like: every GPU shows 100 % and the log stands still; power falls to that of an idle GPU.

How we tell: for at least five minutes and six readings utilisation is 98 % or more while power is
below 35 % of its limit and below 60 % of what the same GPU drew when it worked before. A kernel
that waits for a peer looks just like that. *Suspected*: power tells that nothing is computed, not
what is waited for.

Change: dump the NCCL flight recorder of every rank and find the one that is absent; let the job
end by itself when a collective does not (a timeout that aborts).

May be wrong: a long phase of tiny kernels, such as decoding with batch 1, also keeps the meter full
at low power; there the training or serving goes on.

Sources: NVIDIA/nccl#968; a run of 512 GPUs at 98.6 % and 984 W before its stall and at 100 % after
it; PyTorch documentation, flight recorder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from whyidle.diagnosis import Finding, Remedy
from whyidle.sampled_stories import Sampling
from whyidle.views.sampled_patterns import in_words
from whyidle.views.sampled_power import stuck
from whyidle.views.sampled_telling import job_claims_of

if TYPE_CHECKING:
    from whyidle.model import Evidence, Facts
    from whyidle.views import Views

TITLE = "GPUs spin in a stuck collective"
STATUS = "preview"
JOB_NEEDS = ("sampled_power",)


def job_claims(views: Views) -> pl.DataFrame:
    """The busy part of full utilisation at idle power."""
    found = stuck(views.sampled)
    words = [
        f"full utilisation at {row['power']:.0f} of {row['limit']:.0f} W for "
        f"{in_words(row['end_ns'] - row['start_ns'])}{' to the end' if row['trailing'] else ''}, "
        f"{row['before']:.0f} W at work before"
        for row in found.iter_rows(named=True)
    ]
    return job_claims_of(found, "busy", words)


def remedies(finding: Finding, facts: Facts) -> list[Remedy]:
    """Find who is absent; then end such jobs."""
    return [
        Remedy(
            what="Find the rank that is absent",
            how="TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 in every rank's "
            "environment; then whyidle diagnose on the folder of dumps. py-spy dump --pid PID "
            "shows where a rank stands now.",
            safe=True,
            why_safe="It records the last collectives in memory and costs next to nothing.",
            effect={},
            prove="The dumps name a collective that not every rank entered.",
        ),
        Remedy(
            what="Let a stuck job end",
            how="dist.init_process_group(timeout=timedelta(minutes=10)) and "
            "TORCH_NCCL_ASYNC_ERROR_HANDLING=1, with checkpoints to go on from.",
            safe=False,
            why_safe="A collective that is merely slow is ended as well: choose the timeout above "
            "the longest pause, such as a checkpoint.",
            effect={"kind": "busy_removed"},
            prove="Sample again: no minutes of full utilisation at idle power.",
        ),
    ]


def job_example() -> tuple[Evidence, float]:
    """Ten minutes at 600 W, then twenty at 100 % and 120 W to the end: 1,200 s."""
    story = Sampling(period_s=10)
    story.runs(600, gpu_utilization=0.99, power=600.0, power_limit=700.0)
    story.runs(1200, gpu_utilization=1.0, power=120.0, power_limit=700.0)
    return story.evidence(), 1200.0
