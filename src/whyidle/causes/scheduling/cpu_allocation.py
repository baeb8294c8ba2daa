"""The job may use too few CPUs for what it runs: affinity, a quota, or few cores per GPU.

Looks like: slow storage. The GPU starves, more loader workers do not help, the machine has idle
cores, and the same code is many times faster elsewhere.

How we tell: a container's quota ran out in a quarter or more of its periods: *seen*. Or more
threads of the job wanted to run than a quarter above its CPUs: *deduced* from three readings on,
*suspected* from fewer. Told only where its GPUs ran something for at most half of the time, or were
not read. Where more of its threads waited for a disk than wanted to run, storage is slow and this
is not told.

Change: ask for more CPUs per GPU (``--cpus-per-task``, ``--hint=multithread``, a higher
``limits.cpu``), start the job so that workers inherit them (``srun --cpu-bind``), or lower
``num_workers`` and threads per process to what there is.

May be wrong: a thread that spins while it waits wants to run and does no work. The meaning of
running is that of the moment at which the exporter looked. How many workers the training asked for
is not recorded.

Sources: alert CPUThrottlingHigh of the Kubernetes monitoring mixin (25 %); the oversubscription
notice of the Digital Research Alliance's user portal (1.25 threads a core); cases
nasa-nccs-hpda/pytorch-caney#44 (0.19 against 2.47 batches a second, blamed on the file system for
days), alex-petrenko/sample-factory#182, pytorch/examples#387.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from whyidle.cpu_stories import Clerk
from whyidle.diagnosis import EvidenceRow, Level, Place, Remedy, Sign
from whyidle.views.cpu_use import gpu_words, on_disk, starved
from whyidle.views.sampled import LEAST_READINGS

if TYPE_CHECKING:
    from whyidle.model import Evidence
    from whyidle.views import Views

TITLE = "Too few CPUs for the job"
STATUS = "preview"
OBSERVES = ("cpu_use",)

HELD = 0.25
"""Share of a quota's periods in which it ran out from which on Kubernetes' own alert fires."""

CROWDED = 1.25
"""Threads that want to run per CPU from which on a cluster's own portal warns."""


def observations(views: Views) -> list[Sign]:
    """Jobs whose quota ran out or whose threads queued, the worst first."""
    found = views.cpu_jobs.filter(starved() & ~on_disk().fill_null(value=False))
    crowd = pl.col("running") / pl.col("cpus")
    held = found.filter(pl.col("held") >= HELD).sort("held", "job", descending=[True, False])
    crowded = found.filter((crowd > CROWDED) & ~(pl.col("held") >= HELD).fill_null(value=False))
    crowded = crowded.sort(crowd, "job", descending=[True, False])
    return [
        *(_held(views, row) for row in held.iter_rows(named=True)),
        *(_crowded(views, row) for row in crowded.iter_rows(named=True)),
    ]


def _held(views: Views, row: dict[str, Any]) -> Sign:
    allowed = f" of {_cpus(row)}" if row["cpus"] is not None else ""
    what = f"{_who(row)} used up its quota{allowed} in {row['held']:.0%} of the periods it ran in"
    return _sign(views, row, "seen", what)


def _crowded(views: Views, row: dict[str, Any]) -> Sign:
    level: Level = "deduced" if (row["readings"] or 0) >= LEAST_READINGS else "suspected"
    threads = f"{row['running']:.3g} threads that wanted to run"
    return _sign(views, row, level, f"{_who(row)} had {threads}, and may use {_cpus(row)}")


def _cpus(row: dict[str, Any]) -> str:
    more = row["machine"] is not None and row["machine"] > row["cpus"]
    whole = f" (the machine has {row['machine']:.3g})" if more else ""
    return f"{row['cpus']:.3g} CPU{'' if row['cpus'] == 1 else 's'}{whole}"


def _who(row: dict[str, Any]) -> str:
    return f"Job {row['job']}" + (f" on {row['host']}" if row["host"] else "")


def _sign(views: Views, row: dict[str, Any], level: Level, what: str) -> Sign:
    path = views.evidence.sources[row["source"]].path
    shown = f"{row['readings'] or 0} readings of job {row['job']}"
    return Sign(
        level=level,
        what=f"{what}{gpu_words(row)}.",
        where=[Place(host=row["host"])],
        evidence=[EvidenceRow(source=path, row=None, what=shown)],
        remedies=_remedies(),
    )


def _remedies() -> list[Remedy]:
    prove = (
        "python -c 'import os; print(len(os.sched_getaffinity(0)))' inside the job, and "
        "nr_throttled in /sys/fs/cgroup/cpu.stat before and after some steps; then the GPU's use "
        "over time."
    )
    return [
        Remedy(
            what="Ask for more CPUs per GPU",
            how="Slurm: --cpus-per-task (and srun --cpus-per-task, which does not inherit it since "
            "22.05), --hint=multithread to get both threads of a core. Kubernetes: a higher "
            "resources.limits.cpu, or none.",
            safe=True,
            why_safe="Nothing in the program changes.",
            effect={"kind": "loader_wait_removed"},
            prove=prove,
        ),
        Remedy(
            what="Run no more threads than there are CPUs",
            how="num_workers plus one, times threads per process, at most the CPUs of the process: "
            "OMP_NUM_THREADS=1 and cv2.setNumThreads(0) in the workers, and fewer workers.",
            safe=True,
            why_safe="The same batches are built, by fewer hands at once.",
            effect={"kind": "loader_wait_removed"},
            prove=prove,
        ),
    ]


def observed_example() -> tuple[Evidence, str]:
    """A container with 4 of 64 CPUs, held back in 6 of 10 periods; its GPU runs for 20 %."""
    story = Clerk(machine_cpus=64, machine_used=6).job(cpus=4, used=4, held=0.6, gpu=0.2)
    return story.evidence(), "quota of 4 CPUs (the machine has 64) in 60%"
