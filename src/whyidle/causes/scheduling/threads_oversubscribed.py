"""More threads compute than there are CPUs, so that they take turns and wait for each other.

Looks like: operators on the CPU, and everything that a loader or the training thread does, take
several times as long as on another machine; all CPUs are busy, most of it spinning at the end of
parallel loops. The thread count was chosen for a larger machine, or every rank of several takes all
CPUs.

How we tell: ``whyidle run`` records the threads of ``torch.get_num_threads()`` or the last
``torch.set_num_threads``, and the CPUs that the process may use (affinity and quota). More threads
than CPUs in one process: seen. Ranks of one machine that have more threads together than the most
CPUs any of them may use, by a quarter: deduced, since their CPUs may be different ones. What that
costs is not known from the count, so no seconds are given.

Change: take ``torch.set_num_threads`` out, or set it, and ``OMP_NUM_THREADS``, to the CPUs of the
process divided by the ranks on the machine; loader workers already use one thread each.

May be wrong: a job whose operators are too small to be split never starts the threads. Where the
device does all the work, few threads of the host ever run.

Sources: torch.set_num_threads and "CPU threading" in the PyTorch documentation; torchrun sets
OMP_NUM_THREADS=1 for this reason; the oversubscription notice of the Digital Research Alliance's
user portal (1.25 threads a core).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import polars as pl

from whyidle.diagnosis import Place, Remedy, Sign
from whyidle.moment_stories import TimedRun

if TYPE_CHECKING:
    from whyidle.model import Evidence
    from whyidle.views import Views

TITLE = "More threads than CPUs"
STATUS = "preview"
OBSERVES = ("thread_count",)

CROWDED = 1.25
"""Threads per CPU, over the ranks of one machine, from which on a cluster's own portal warns."""


def observations(views: Views) -> list[Sign]:
    """Processes with more threads than CPUs; else machines whose ranks have."""
    rows = _processes(views)
    alone = [row for row in rows if row["threads"] > row["cpus"]]
    if alone:
        worst = max(alone, key=lambda row: row["threads"] / row["cpus"])
        more = f"; so do {len(alone) - 1} other ranks" if len(alone) > 1 else ""
        what = f"torch computes with {worst['threads']} threads on {_cpus(worst['cpus'])}{more}."
        places = list(dict.fromkeys(_place(row) for row in alone))
        return [
            Sign(
                level="seen",
                what=what,
                where=places[:5],
                remedies=[_fewer(max(1, int(worst["cpus"])))],
            )
        ]
    return [sign for host in {row["host"] for row in rows} for sign in _together(rows, host)]


def _together(rows: list[dict[str, Any]], host: str | None) -> list[Sign]:
    mine = [row for row in rows if row["host"] == host]
    threads, cpus = sum(row["threads"] for row in mine), max(row["cpus"] for row in mine)
    if len(mine) < 2 or threads <= CROWDED * cpus:
        return []
    machine = f" of {host}" if host else ""
    what = (
        f"{len(mine)} ranks{machine} compute with {threads} threads together, and none may use "
        f"more than {_cpus(cpus)}."
    )
    remedy = _fewer(max(1, int(cpus) // len(mine)))
    return [Sign(level="deduced", what=what, where=[Place(host=host)], remedies=[remedy])]


def _processes(views: Views) -> list[dict[str, Any]]:
    """host, rank, threads, cpus, file, line of every rank whose threads and CPUs are known."""
    settings = views.evidence.table("settings").with_columns(pl.col("host", "key").cast(pl.String))
    sites = views.evidence.table("sites").filter(pl.col("what") == "threads")
    last = {
        rank: (json.loads(detail).get("value"), file, line)
        for rank, detail, file, line in sites.select("rank", "detail", "file", "line").iter_rows()
    }
    found = []
    for (host, rank), rows in settings.group_by("host", "rank", maintain_order=True):
        told = dict(rows.select("key", "value").iter_rows())
        set_to, file, line = last.get(rank, (None, None, None))
        threads = _number(set_to) or _number(told.get("threads"))
        limits = [_number(told.get(key)) for key in ("cpus", "cpu_quota")]
        cpus = min((limit for limit in limits if limit), default=None)
        if threads and cpus:
            row = {"host": host, "rank": rank, "threads": int(threads), "cpus": cpus}
            found.append(row | {"file": file, "line": line})
    return found


def _number(value: Any) -> float | None:
    """A number above 0, None for anything else."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return found if 0 < found < 1e6 else None


def _cpus(cpus: float) -> str:
    return f"{cpus:.3g} CPU{'' if cpus == 1 else 's'}"


def _place(row: dict[str, Any]) -> Place:
    return Place(file=row["file"], line=row["line"], rank=row["rank"])


def _fewer(threads: int) -> Remedy:
    return Remedy(
        what=f"Compute with {threads} thread{'' if threads == 1 else 's'}",
        how=f"Take torch.set_num_threads out, or set it and OMP_NUM_THREADS to {threads}.",
        safe=False,
        why_safe="The same sums in another order of rounding: results may differ in last digits.",
        effect={"kind": "none"},
        prove="whyidle prove -- BEFORE -- AFTER: steps must be faster.",
    )


def observed_example() -> tuple[Evidence, str]:
    """A process that set 64 threads on line 12 and may use 8 CPUs."""
    run = TimedRun().steps(10, 20).site("threads", "train.py", 12, value=64)
    return run.setting("cpus", "8").evidence(), "64 threads on 8 CPUs"
