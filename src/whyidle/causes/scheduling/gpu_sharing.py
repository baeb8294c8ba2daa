"""Several processes share one GPU.

Looks like: utilisation is high and the own throughput low; times vary from run to run; a process
of somebody else is on the GPU; memory is short although the job uses little.

How we tell: at one instant two or more processes that are not graphics hold memory on a GPU that
is not partitioned: *seen*. Or, where a GPU was sampled and traced at once, the readings show far
more work (30 points or more) than the trace of the process: somebody else's work, *suspected*.

Change: find out whose they are and give each job its own GPU or partition (MIG); share on purpose
only with jobs that wait for the host, through MPS.

May be wrong: several processes of one job may share a GPU on purpose (a server with replicas, RL
actors), and a process that holds memory need not work. Process ids inside a container are not
those of the machine.

Sources: CUDA Multi-Process Service documentation; reports of MPS raising throughput by 100 to
116 % for host-bound jobs and time slicing by 3 %.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from whyidle.diagnosis import Remedy, Sign
from whyidle.sampled_stories import GIB, Sampling
from whyidle.views.sampled_patterns import gib
from whyidle.views.sampled_processes import compared, process_names, sharing
from whyidle.views.sampled_telling import gpu_sign

if TYPE_CHECKING:
    from whyidle.model import Evidence
    from whyidle.views import Views

TITLE = "Several processes share a GPU"
STATUS = "preview"
OBSERVES = ("samples",)

MORE = 0.3
MOST_NAMED = 4


def observations(views: Views) -> list[Sign]:
    """GPUs with several processes, and GPUs that did more than the traced process."""
    labels = views.sampled.labels()
    names = process_names(views)
    found = []
    for number, processes, held, source in sharing(views).iter_rows():
        told = [
            f"{pid}{f' {names[pid]}' if pid in names else ''} with {gib(size)}"
            for pid, size in zip(processes, held, strict=False)
        ]
        more = f" and {len(told) - MOST_NAMED} more" if len(told) > MOST_NAMED else ""
        what = f"{labels[number]}: {len(processes)} processes hold memory on it at once"
        shown = ", ".join(told[:MOST_NAMED]) + more
        found.append(
            gpu_sign(views, number, "seen", f"{what}.", _remedies(), source=source, shown=shown)
        )
    for one in compared(views):
        if one.sampled - one.work >= MORE:
            what = (
                f"{labels[one.number]} was busy for {one.sampled:.0%} of {one.seconds:.3g} s by "
                f"its readings, and the traced process for {one.work:.0%}."
            )
            source = views.sampled.gpus.filter(pl.col("number") == one.number)["source"][0]
            shown = f"{one.sampled:.0%} sampled, {one.work:.0%} traced"
            found.append(
                gpu_sign(
                    views, one.number, "suspected", what, _remedies(), source=source, shown=shown
                )
            )
    return found


def _remedies() -> list[Remedy]:
    prove = "nvidia-smi --query-compute-apps=pid,used_memory --format=csv: one process per GPU."
    return [
        Remedy(
            what="Give each job its own GPU",
            how="Compare the pids with the job's own (ps -o pid,user,cmd -p PID); ask the "
            "scheduler for exclusive GPUs, set CUDA_VISIBLE_DEVICES per process, or use MIG.",
            safe=True,
            why_safe="Nothing in the program changes.",
            effect={"kind": "kernels_scaled"},
            prove=prove,
        ),
        Remedy(
            what="Share on purpose through MPS",
            how="nvidia-cuda-mps-control -d before the processes start, and "
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE for each; worth it when each of them waits for the "
            "host most of the time.",
            safe=False,
            why_safe="A fault in one process may end the others; memory is not kept apart.",
            effect={"kind": "kernels_scaled"},
            prove="Throughput of all processes together, with and without MPS.",
        ),
    ]


def observed_example() -> tuple[Evidence, str]:
    """Two processes with 10 and 20 GiB on one GPU."""
    story = Sampling(period_s=10).runs(60, gpu_utilization=0.9, memory_used=30 * GIB)
    story.holds(4711, 10 * GIB).holds(4712, 20 * GIB)
    return story.evidence(), "2 processes hold memory"
