"""Jobs of several ranks whose truth is known, and what a diagnosis says of them."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from whyidle.diagnosis import Diagnosis, Finding
from whyidle.model import Evidence
from whyidle.rank_stories import Ranks

IMBALANCE = "communication.rank_imbalance"
EXPOSED = "communication.exposed_communication"
MS = 1e-3


def job(late: int | None, late_ms: int, *, ranks: int = 4, steps: int = 5) -> Evidence:
    """Every rank computes 10 ms a step, one of them so many more; 1 ms moves bytes."""
    told = Ranks(ranks)
    for _ in range(steps):
        told.step([10_000 + (late_ms * 1000 if r == late else 0) for r in range(ranks)])
    return told.evidence()


def finding(diagnosis: Diagnosis, cause: str) -> Finding | None:
    """The finding of a cause, if any."""
    return next((f for f in diagnosis.findings if f.cause == cause), None)


def lost(diagnosis: Diagnosis, cause: str, rank: int | None = None) -> float:
    """Seconds of the ledger that a cause won, on one rank or on all."""
    rows = [r for r in diagnosis.ledger if r.cause == cause]
    return sum(r.lost_s for r in rows if rank is None or r.rank == rank)


def with_clock(evidence: Evidence, rank: int, by_ns: int) -> Evidence:
    """The same with the clock of one rank ahead by so much."""
    mine = pl.when(pl.col("rank") == rank).then(by_ns).otherwise(0)
    spans = evidence.table("spans").with_columns(
        (pl.col("start_ns") + mine).alias("start_ns"), (pl.col("end_ns") + mine).alias("end_ns")
    )
    spans = spans.sort("start_ns", "end_ns", descending=[False, True], maintain_order=True)
    spans = spans.with_columns(pl.int_range(pl.len(), dtype=pl.UInt32).alias("row"))
    return replace(evidence, tables={**evidence.tables, "spans": spans})


def only(evidence: Evidence, ranks: set[int]) -> Evidence:
    """The same with only some of its ranks recorded."""
    tables = {
        name: table.filter(pl.col("rank").is_in(list(ranks))) if "rank" in table.columns else table
        for name, table in evidence.tables.items()
    }
    rows = tables["spans"].with_columns(pl.int_range(pl.len(), dtype=pl.UInt32).alias("row"))
    return replace(evidence, tables={**tables, "spans": rows})
