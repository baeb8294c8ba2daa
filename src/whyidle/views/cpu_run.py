"""A run without a GPU: the stepping thread of each rank stands in for the device.

Useful is time inside operators of forward, backward and optimizer on that thread, and on the
threads of the autograd engine, which run backward for it; gloo and MPI transfers are
communication; everything else is empty and blamed on what the stepping thread was doing.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from whyidle.model import CPU_DEVICE, HOST_KINDS, Evidence
from whyidle.views import names
from whyidle.views.activities import CODE, NODE
from whyidle.views.activity import COMMUNICATION, COMPUTE
from whyidle.views.host import Host
from whyidle.views.nest import Nest

USEFUL = ("op", "launch", "optimizer")


def cpu_windows(evidence: Evidence, marks: pl.DataFrame) -> pl.DataFrame:
    """Per rank and source: rank, device, source, start_ns, end_ns and the stepping ``thread``.

    From the first recorded step's start to the last one's end; without step marks, the stretch
    of the thread that recorded most operators.
    """
    spans = evidence.table("spans")
    host = spans.filter(pl.col("kind").is_in(HOST_KINDS) & pl.col("thread").is_not_null())
    busiest = host.group_by("rank", "source", "thread").agg(
        (pl.col("kind") == "op").sum().alias("ops"),
        pl.len().alias("spans"),
        pl.col("start_ns").min(),
        pl.col("end_ns").max(),
    )
    busiest = busiest.sort("ops", "spans", "thread", descending=[True, True, False])
    busiest = busiest.unique(["rank", "source"], keep="first", maintain_order=True)
    marked = marks.group_by("rank", "source").agg(
        pl.col("thread").first().alias("marking"),
        pl.col("start_ns").min().alias("first_ns"),
        pl.col("end_ns").max().alias("last_ns"),
    )
    both = busiest.join(marked, on=["rank", "source"], how="left", nulls_equal=True)
    found = both.select(
        "rank",
        pl.lit(CPU_DEVICE, pl.Int32).alias("device"),
        "source",
        pl.coalesce("first_ns", "start_ns").alias("start_ns"),
        pl.coalesce("last_ns", "end_ns").alias("end_ns"),
        pl.coalesce("marking", "thread").alias("thread"),
    )
    return found.filter(pl.col("end_ns") > pl.col("start_ns")).sort("rank", "start_ns")


def cpu_activity(host: Host, windows: pl.DataFrame, empty: pl.DataFrame) -> pl.DataFrame:
    """Useful stretches and transfers in the shape of the activity view (``empty`` of rows)."""
    nest, inner = host.nest, host.partition
    useful = np.isin(host.activity[inner.span], [CODE[name] for name in USEFUL])
    useful &= (inner.span >= 0) & (host.operator[inner.span] >= 0)
    engine = names.matching(nest.spans["name"], lambda n: n.startswith(NODE)).to_numpy()
    working = np.union1d(windows["thread"].to_numpy(), nest.thread[engine])
    thread = nest.thread[inner.span]
    at = np.flatnonzero(useful & np.isin(thread, working))
    first = (
        np.concatenate([[True], inner.start[at][1:] != inner.end[at][:-1]]) if at.size else at > 0
    )
    head = np.flatnonzero(first)
    tail = np.concatenate([head[1:], [at.size]])[: head.size] - 1
    span = inner.span[at[head]]
    compute = pl.DataFrame(
        {
            "row": nest.spans["row"].gather(span),
            "start_ns": nest.axis.take(inner.start[at[head]], nest.thread[span]),
            "end_ns": nest.axis.take(inner.end[at[tail]], nest.thread[span]),
            "name": nest.spans["name"].gather(host.operator[span]),
            "rank": nest.spans["rank"].gather(span),
            "source": nest.spans["source"].gather(span),
        }
    ).with_columns(pl.lit(COMPUTE, pl.Int8).alias("state"))
    moves = _transfers(nest)
    both = pl.concat([compute, moves.select(compute.columns)], how="vertical_relaxed")
    callers = windows.select("rank", "source", pl.col("thread").alias("caller"))
    both = both.join(callers, on=["rank", "source"], how="inner", nulls_equal=True)
    return pl.concat([empty, _shaped(both, empty)]).sort("rank", "device", "start_ns", "end_ns")


def _transfers(nest: Nest) -> pl.DataFrame:
    """Recorded gloo and MPI transfers, whatever thread they were recorded on."""
    named = names.matching(nest.spans["name"], lambda n: n.startswith(names.CPU_TRANSFERS))
    at = np.flatnonzero(((nest.spans["kind"] == "annotation") & named).to_numpy())
    thread = nest.thread[at]
    return (
        nest.spans[at]
        .select("row", "name", "rank", "source")
        .with_columns(
            pl.Series("start_ns", nest.axis.take(nest.start[at], thread)),
            pl.Series("end_ns", nest.axis.take(nest.end[at], thread)),
            pl.lit(COMMUNICATION, pl.Int8).alias("state"),
        )
    )


def _shaped(rows: pl.DataFrame, like: pl.DataFrame) -> pl.DataFrame:
    filled = rows.with_columns(
        pl.lit(CPU_DEVICE).alias("device"),
        pl.lit(0).alias("lane"),
        pl.lit("kernel").alias("kind"),
        pl.col("row").alias("launch"),
        pl.col("start_ns").alias("launch_ns"),
        pl.col("start_ns").alias("called_ns"),
        pl.lit(value=False).alias("graph"),
    )
    have = set(filled.columns)
    return filled.select(
        (pl.col(name) if name in have else pl.lit(None)).cast(dtype).alias(name)
        for name, dtype in like.schema.items()
    )
