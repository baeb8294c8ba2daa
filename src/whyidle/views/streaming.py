"""Kernels that only move bytes, and which of them a fused kernel or another layout would spare.

``avoidable`` gives the rows of the kernels view that could be spared in part, with

======= ======= =====================================================================
kind    String  "attention": softmax, and what surrounds it, between two matrix products of one
                attention; "layout": conversion between NCHW and NHWC; "chain": one of at least
                LEAST_CHAIN streaming kernels in a row on its stream
length  Int64   kernels in the chain or around the softmax
weight  Float64 share of its time that is lost
level   String  how sure
======= ======= =====================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from whyidle.model import CLAIMS, frame
from whyidle.views.places import claims_of
from whyidle.views.shapes import largest

if TYPE_CHECKING:
    from whyidle.views import Views

LEAST_NS = 5_000
"""Shorter kernels are over before the memory is busy; launching them is what costs."""
LEAST_CHAIN = 3
CHAIN_SHARE = 0.5
"""Of the (n-1)/n that a chain of n would spare if it touched one tensor only, what is claimed:
other operands and what backward needs are still read and written."""
ATTENTION_WEIGHT = 0.8
LAYOUT_WEIGHT = 0.5
AROUND = 6
"""Elementwise kernels (scale, mask, cast, dropout) between softmax and a matrix product."""
_PRODUCTS = ("bmm", "baddbmm", "matmul", "einsum")


def avoidable(kernels: pl.DataFrame) -> pl.DataFrame:
    """The rows and columns that the module describes."""
    rows = kernels.sort("rank", "device", "lane", "start_ns", "end_ns", maintain_order=True)
    if not rows.height:
        return rows.with_columns(*(pl.lit(None, t).alias(n) for n, t in _SCHEMA.items()))
    kind = np.full(rows.height, "", dtype=object)
    length = np.zeros(rows.height, dtype=np.int64)
    kind[(rows["family"] == "layout").to_numpy()] = "layout"
    _mark_attention(rows, kind, length)
    _mark_chains(rows, kind, length)
    chain = CHAIN_SHARE * (pl.col("length") - 1) / pl.col("length")
    named = rows.with_columns(
        pl.Series("kind", kind.tolist(), dtype=pl.String), pl.Series("length", length)
    ).filter((pl.col("kind") != "") & (pl.col("end_ns") > pl.col("start_ns")))
    return named.with_columns(
        pl.when(pl.col("kind") == "chain").then(chain)
        .when(pl.col("kind") == "layout").then(LAYOUT_WEIGHT)
        .otherwise(ATTENTION_WEIGHT).alias("weight"),
        pl.when((pl.col("kind") == "layout") | pl.col("op").is_null())
        .then(pl.lit("suspected")).otherwise(pl.lit("deduced")).alias("level"),
    )  # fmt: skip


_SCHEMA = {"kind": pl.String, "length": pl.Int64, "weight": pl.Float64, "level": pl.String}


def _streams(rows: pl.DataFrame) -> npt.NDArray[np.int64]:
    """A number per (rank, device, stream), ascending."""
    key = pl.struct("rank", "device", "lane")
    return rows.select((key != key.shift(1)).fill_null(value=False).cum_sum())["rank"].to_numpy()


def _busy(rows: pl.DataFrame) -> npt.NDArray[np.bool_]:
    """Long and full enough that the memory decides how long it takes."""
    long = (pl.col("end_ns") - pl.col("start_ns")) >= LEAST_NS
    full = pl.col("fill").is_null() | (pl.col("fill") >= 1)
    return rows.select(long & full)["end_ns"].to_numpy()


def _mark_attention(
    rows: pl.DataFrame, kind: npt.NDArray[np.object_], length: npt.NDArray[np.int64]
) -> None:
    """Softmax, with elementwise neighbours, between two batched matrix products."""
    family = rows["family"].to_list()
    ops = rows["op"].to_list()
    stream, busy = _streams(rows), _busy(rows)
    fused = rows["fused"].to_list()

    def walk(at: int, by: int) -> int:
        """The matrix product next to a softmax in one direction; -1 for none."""
        for step in range(1, AROUND + 1):
            other = at + by * step
            if not 0 <= other < len(family) or stream[other] != stream[at]:
                return -1
            if family[other] == "gemm":
                told = ops[other]
                return other if told is None or any(p in told for p in _PRODUCTS) else -1
            if family[other] not in ("elementwise", "copy") or fused[other]:
                return -1
        return -1

    for at in np.flatnonzero(np.array([f == "softmax" for f in family]) & busy).tolist():
        low, high = walk(at, -1), walk(at, 1)
        if low >= 0 and high >= 0:
            kind[low + 1 : high] = "attention"
            length[low + 1 : high] = high - low - 1


def _mark_chains(
    rows: pl.DataFrame, kind: npt.NDArray[np.object_], length: npt.NDArray[np.int64]
) -> None:
    """Runs of streaming kernels of one size on one stream."""
    streams = rows.select(
        pl.col("family").is_in(["elementwise", "normalisation", "copy", "softmax", "reduction"])
        & ~pl.col("fused") & ~pl.col("optimizer")
    )["family"].to_numpy()  # fmt: skip
    mine = streams & _busy(rows) & (kind == "")
    size = largest(rows["shapes"])
    other = np.zeros(rows.height, dtype=bool)
    known = (size[1:] > 0) & (size[:-1] > 0)
    other[1:] = known & (np.maximum(size[1:], size[:-1]) > 2 * np.minimum(size[1:], size[:-1]))
    stream = _streams(rows)
    begins = mine.copy()
    begins[1:] &= ~mine[:-1] | other[1:] | (stream[1:] != stream[:-1])
    number = np.cumsum(begins) * mine
    count = np.bincount(number)[number]
    chosen = mine & (count >= LEAST_CHAIN)
    kind[chosen] = "chain"
    length[chosen] = count[chosen]


def device_copies(views: Views) -> pl.DataFrame:
    """Claims for copies inside the device while it does nothing else, by the operator that asked.

    Copies that the blame view gives to anyone in particular are left to that activity.
    """
    copies = views.activity.filter(
        (pl.col("kind") == "copy")
        & pl.col("name").cast(pl.String).str.contains("DtoD|DeviceToDevice|D2D|Device -> Device")
        & ~pl.col("name").cast(pl.String).str.contains("PtoP|P2P")  # to another device
    )
    at = views.host.nest.index_of(copies["launch"].drop_nulls().to_numpy())
    blame = views.blame.filter(
        (pl.col("state") == "copy")
        & (pl.col("activity") == "unknown")
        & pl.col("span").is_in(pl.Series(at[at >= 0], dtype=pl.Int64).implode())
    )
    claims = claims_of(blame, views.host, "deduced")
    operator = pl.col("op").cast(pl.String).fill_null("an unknown operator")
    return frame(CLAIMS, claims.with_columns((pl.lit("device copy in ") + operator).alias("op")))
