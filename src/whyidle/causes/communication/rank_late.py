"""One rank comes late to collective after collective, and the others wait for it each time.

Looks like: steps are longer than one rank's work; the kernels of collectives are long on all ranks
but one.

How we tell: dumps of the NCCL flight recorder hold, for many collectives, how long each rank's
kernel took. The rank that comes last has the shortest one; how much shorter is how late it came.
Without durations, the moments at which the host enqueued are compared, with the clocks brought
together by the moments at which collectives were seen to end; that is coarse, and only told where
lateness is far above its error. Half the ranks must come in time: who is late is told against the
median rank.

Change: find what that rank does more of: longer sequences, a slower data shard, a busy or throttled
machine, logging or checkpoints on one rank only. A trace of that rank and of another shows it.

May be wrong: without durations, a rank whose recorder looks rarely may seem late.

Sources: TORCH_NCCL_ENABLE_TIMING and Flight Recorder in the PyTorch documentation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from whyidle.diagnosis import EvidenceRow, Place, Remedy, Sign
from whyidle.flight_stories import flights_told
from whyidle.views.flight_checks import lateness

if TYPE_CHECKING:
    from whyidle.model import Evidence
    from whyidle.views import Views

TITLE = "One rank comes late to collectives"
STATUS = "preview"
OBSERVES = ("collectives",)
LEAST_NS = 1e6
LEAST_OVER_ERROR = 3.0
MOST_SIGNS = 4


def observations(views: Views) -> list[Sign]:
    """One sign per rank that is late beyond a millisecond and three times the error."""
    late = lateness(views.flights).filter(
        (pl.col("late_ns") >= LEAST_NS)
        & (pl.col("late_ns") > LEAST_OVER_ERROR * pl.col("error_ns"))
    )
    worst = late.sort("late_ns", descending=True).unique("rank", keep="first", maintain_order=True)
    return [_sign(views, row) for row in worst.head(MOST_SIGNS).iter_rows(named=True)]


def _sign(views: Views, row: dict[str, Any]) -> Sign:
    group = views.flights.groups[row["key"]].told()
    timed = row["by"] == "duration"
    how = "by how long the others' kernels waited" if timed else "by the clocks of the hosts"
    late = f"{row['late_ns'] / 1e6:.3g} ms (give or take {row['error_ns'] / 1e6:.2g} ms)"
    source = next((s.path for s in views.evidence.sources if s.rank == row["rank"]), "")
    return Sign(
        level="deduced" if timed else "suspected",
        what=f"Rank {row['rank']} comes {late} after the median rank to collectives of {group}, "
        f"in the median of {row['count']} of them, {how}.",
        where=[Place(rank=row["rank"])],
        evidence=[
            EvidenceRow(source=source, row=None, what=f"{row['count']} collectives of {group}")
        ],
        remedies=[_find_work(row["rank"])],
    )


def _find_work(rank: int) -> Remedy:
    return Remedy(
        what=f"Find what rank {rank} does more than the others",
        how=f"Record a few steps with torch.profiler on rank {rank} and on one other rank, and "
        "give both to whyidle diagnose; compare sizes of their batches, and clocks with "
        "nvidia-smi --query-gpu=clocks.sm,clocks_throttle_reasons.active --format=csv.",
        safe=True,
        why_safe="It only measures.",
        effect={"kind": "none"},
        prove="Dump the recorder again: no rank stands out.",
    )


def observed_example() -> tuple[Evidence, str]:
    """Four ranks, twelve all-reduces; rank 3 comes 5 ms late to each."""
    return flights_told(ranks=4, collectives=12, done=12, late={3: 5_000_000}), "Rank 3 comes 5 ms"
