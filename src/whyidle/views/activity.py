"""Device work, what state it puts the device in, and the call that launched it.

One row of ``activity``: one kernel, copy or set on a device. Columns are those of ``spans`` the
views need, plus

========== ======= =====================================================================
state      Int8    0 compute, 1 communication, 2 copy
launch     UInt32  row of the runtime call that launched it; null = no launch record
launch_ns  Int64   start of that call; null likewise
called_ns  Int64   end of that call; null likewise
caller     UInt32  host thread of that call; null likewise
graph      Boolean launched as a node of a graph
========== ======= =====================================================================
"""

from __future__ import annotations

import polars as pl

from whyidle.diagnosis import State
from whyidle.model import DEVICE_KINDS, Evidence
from whyidle.views import names

COMPUTE, COMMUNICATION, COPY, EMPTY = 0, 1, 2, 3
STATE_NAMES: tuple[State, ...] = ("compute", "communication", "copy", "empty")


def activity(evidence: Evidence) -> pl.DataFrame:
    """Every kernel, copy and set, in order of rank, device and start; see the module."""
    spans = evidence.table("spans")
    work = spans.filter(pl.col("kind").is_in(DEVICE_KINDS)).select(
        "row", "source", "rank", "device", "lane", "kind", "name", "start_ns", "end_ns",
        "correlation", "external", "bytes", "blocks", "block_threads", "occupancy",
    )  # fmt: skip
    work = work.with_columns(_state(work))
    joined = work.join(launch_calls(spans), on=["source", "correlation"], how="left")
    return joined.sort("rank", "device", "start_ns", "end_ns", nulls_last=False)


def launch_calls(spans: pl.DataFrame) -> pl.DataFrame:
    """Runtime calls by (source, correlation), the outermost where several share one."""
    calls = spans.filter((pl.col("kind") == "runtime") & pl.col("correlation").is_not_null())
    calls = calls.select(
        "source",
        "correlation",
        pl.col("row").alias("launch"),
        pl.col("start_ns").alias("launch_ns"),
        pl.col("end_ns").alias("called_ns"),
        pl.col("thread").alias("caller"),
        names.matching(calls["name"], names.GRAPH_LAUNCHES.search).alias("graph"),
    )
    return calls.unique(["source", "correlation"], keep="first", maintain_order=True)


def _state(work: pl.DataFrame) -> pl.Series:
    communication = names.matching(work["name"], names.is_communication)
    copies = names.matching(work["name"], names.is_copy) | (work["kind"] != "kernel")
    state = pl.DataFrame({"a": communication, "b": copies}).select(
        pl.when(pl.col("a"))
        .then(pl.lit(COMMUNICATION, pl.Int8))
        .when(pl.col("b"))
        .then(pl.lit(COPY, pl.Int8))
        .otherwise(pl.lit(COMPUTE, pl.Int8))
        .alias("state")
    )
    return state["state"]
