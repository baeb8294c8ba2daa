"""Charges bytes that move far below what the link could carry to the cause that stands for it."""

from __future__ import annotations

import numpy as np
import polars as pl

from whyidle.leavings import Partial
from whyidle.ledger import PARTS_PER_NS
from whyidle.views.bandwidth import (
    HEALTHY,
    LARGE_BYTES,
    POOR,
    bus_bandwidth,
    ceilings,
    listed_gpus,
)
from whyidle.views.waits import Waits


def slowed(alone: pl.DataFrame, job: Partial, found: Waits, cause: str) -> pl.DataFrame:
    """``alone`` with what moved far below the link's ceiling under its own cause.

    Only where every member was recorded and the group may lie in one machine.
    """
    entries = job.entries
    met = np.bincount(found.meeting[found.meeting >= 0])
    members = np.where(found.meeting >= 0, met[np.maximum(found.meeting, 0)], 0)
    window = entries["window"].to_numpy()
    took = np.maximum(found.end - found.until, 0).astype(np.float64)
    speed = bus_bandwidth(entries, members, took)
    most, links = ceilings(job.windows, job.facts)
    listed = listed_gpus(job.facts)
    rooms = np.array([listed[rank] for rank in job.windows["rank"].to_list()], dtype=np.int64)
    large = entries["bytes"].fill_null(0).to_numpy() >= LARGE_BYTES
    sure = found.whole & (members > 1) & (members <= rooms[window])
    slow = sure & large & (speed < POOR * most[window])
    entry = np.maximum(alone["entry"].to_numpy(), 0)
    mine = slow[entry] & (alone["entry"].to_numpy() >= 0) & alone["peer"].is_null().to_numpy()
    length = (alone["end_ns"] - alone["start_ns"]).to_numpy()
    mine &= alone["lost"].to_numpy() == length * PARTS_PER_NS
    if not mine.any():
        return alone
    healthy = np.clip(speed[entry] / (HEALTHY * most[window[entry]]), 0.0, 1.0)
    cut = alone["start_ns"].to_numpy() + np.rint(length * np.where(mine, healthy, 1.0)).astype(
        np.int64
    )
    rest = alone.with_columns(pl.Series("end_ns", np.where(mine, cut, alone["end_ns"].to_numpy())))
    told = alone.with_columns(pl.Series("start_ns", cut), pl.lit(cause).alias("cause"))
    words = [
        f"{entries['collective'][e]} at {speed[e] / 1e9:.3g} of {most[window[e]] / 1e9:.0f} GB/s "
        f"({links[window[e]]})"
        for e in entry[mine].tolist()
    ]
    told = told.filter(pl.Series(mine)).with_columns(
        pl.Series("op", words), pl.lit("suspected").alias("level")
    )
    both = pl.concat([rest, told.select(pl.col(n).cast(t) for n, t in rest.schema.items())])
    parts = (pl.col("end_ns") - pl.col("start_ns")) * PARTS_PER_NS
    changed = pl.concat([pl.Series(mine), pl.repeat(True, told.height, eager=True)])
    both = both.with_columns(pl.when(changed).then(parts).otherwise("lost").alias("lost"))
    kept = both.filter(pl.col("end_ns") > pl.col("start_ns"))
    return kept.sort("window", "start_ns", maintain_order=True)
