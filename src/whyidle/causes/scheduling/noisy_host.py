"""Something else on the machine takes the CPUs that the job needs.

Looks like: the job was fine and then slows down, though nothing in it changed; loading takes
longer, and so does every launch; the GPU starves at times that follow no period of the training.

How we tell: in readings, the machine's load was above its number of CPUs, and most of the CPU time
in use was not the job's: *deduced*, and told only where the job's GPUs ran something for at most
half of the time or were not read. In a trace, a run of steps in which the loader and the launch
calls were both slower than in any other step, after steps that were not: *suspected*, since a trace
shows one process and not who took its time.

Change: find the process (``top``, ``pidstat 5``) and stop or move it; ask for the machine alone
(``--exclusive``), or have the scheduler confine jobs to their CPUs (cgroups).

May be wrong: in a trace, the job's own evaluation, checkpoint writer or restarted workers look the
same, and so does a CPU that lowers its clock. In readings, the other CPU time may belong to another
job of the same owner.

Sources: cases xingyizhou/CenterNet#630 (another process took the CPUs: data and the forward pass
slowed down together), mozilla/snakepit#79 (a sandbox around the job, first taken for slow storage).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from whyidle.cpu_stories import Clerk
from whyidle.diagnosis import EvidenceRow, Place, Remedy, Sign
from whyidle.stories import Story
from whyidle.views.cpu_use import gpu_words, starved
from whyidle.views.slow_spells import slow_spells

if TYPE_CHECKING:
    from whyidle.model import Evidence
    from whyidle.views import Views

TITLE = "Others use the machine's CPUs"
STATUS = "preview"
OBSERVES = ("foreign_load",)


def observations(views: Views) -> list[Sign]:
    """Jobs on crowded machines, then spells of slow steps."""
    crowded = pl.col("load") > pl.col("machine")
    others = pl.col("busy") - pl.col("used")
    found = views.cpu_jobs.filter(starved() & crowded & (others > pl.col("used")))
    found = found.with_columns(others.alias("others")).sort(
        "others", "job", descending=[True, False]
    )
    signs = [_crowded(views, row) for row in found.iter_rows(named=True)]
    return [*signs, *(_spell(views, row) for row in slow_spells(views).iter_rows(named=True))]


def _crowded(views: Views, row: dict[str, Any]) -> Sign:
    where = f" {row['host']}" if row["host"] else ""
    what = (
        f"The machine{where} had a load of {row['load']:.3g} on {row['machine']:.3g} CPUs, and of "
        f"{row['busy']:.3g} CPUs in use {row['others']:.3g} were not used by job {row['job']}"
        f"{gpu_words(row)}."
    )
    path = views.evidence.sources[row["source"]].path
    shown = f"load {row['load']:.3g}, {row['machine']:.3g} CPUs"
    return Sign(
        level="deduced",
        what=what,
        where=[Place(host=row["host"])],
        evidence=[EvidenceRow(source=path, row=None, what=shown)],
        remedies=_remedies(),
    )


def _spell(views: Views, row: dict[str, Any]) -> Sign:
    rank = f" of rank {row['rank']}" if row["rank"] is not None else ""
    what = (
        f"In steps {row['first']} to {row['last']}{rank} loading took "
        f"{row['loader_ns'] / 1e6:.3g} ms instead of {row['usual_loader_ns'] / 1e6:.3g}, and a "
        f"launch call {row['launch_ns'] / 1e3:.3g} us instead of "
        f"{row['usual_launch_ns'] / 1e3:.3g}: the host did everything more slowly."
    )
    path = views.evidence.sources[row["source"]].path
    shown = f"{row['steps']} steps slower than all others in both"
    return Sign(
        level="suspected",
        what=what,
        where=[Place(rank=row["rank"])],
        evidence=[EvidenceRow(source=path, row=None, what=shown)],
        remedies=_remedies(),
    )


def _remedies() -> list[Remedy]:
    return [
        Remedy(
            what="Find out what else runs, and move it",
            how="top -H -o %CPU or pidstat -u 5 on the machine while it is slow; ps -o "
            "pid,user,cmd -p PID tells whose it is. Inside a container only the machine's own view "
            "shows it.",
            safe=True,
            why_safe="Looking changes nothing; ask the owner before stopping anything.",
            effect={"kind": "loader_wait_removed"},
            prove="Record the same steps again: launch calls are as short as they were before.",
        ),
        Remedy(
            what="Keep CPUs for the job",
            how="Slurm: --exclusive, or TaskPlugin=task/cgroup,task/affinity so that jobs stay on "
            "their cores. Kubernetes: equal requests and limits of whole CPUs with the static CPU "
            "manager policy.",
            safe=True,
            why_safe="Only placement changes.",
            effect={"kind": "loader_wait_removed"},
            prove="The machine's load stays below its number of CPUs during training.",
        ),
    ]


def observed_example() -> tuple[Evidence, str]:
    """A job that uses 6 of 32 CPUs while others use 24 and the load is 50."""
    story = Clerk(machine_cpus=32, machine_used=30, load=50).job(used=6, gpu=0.3)
    return story.evidence(), "of 30 CPUs in use 24 were not used by job train-0/trainer"


def disturbed_run(*, loader: bool = True, launches: bool = True, first: int = 8) -> Evidence:
    """Sixteen steps; in six of them, from ``first`` on, what is named takes three times as long."""
    story, at = Story(), 0
    for number in range(16):
        slow = first <= number < first + 6
        wait = (3000 if slow and loader else 1000) + number % 3 * 20
        call = (15 if slow and launches else 5) + number % 2
        story.step(number, at, at + wait + 5000)
        story.annotate(
            "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", at, at + wait
        )
        for index in range(10):
            begin = at + wait + index * 100
            story.op("aten::mm", begin, begin + 30)
            run = (at + wait + 50 + index * 400, at + wait + 450 + index * 400)
            story.launch("ampere_gemm_tn", (begin + 2, begin + 2 + call), run)
        at += wait + 5000
    return story.evidence()
