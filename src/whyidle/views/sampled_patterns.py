"""Shapes in the readings of a GPU: stretches at exactly zero, what repeats, and swings."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from whyidle.model import frame
from whyidle.views.sampled import Sampled

HELD_SHARE, HELD_BYTES = 0.01, 256 * 2**20
"""A GPU whose memory is used to more than this holds a process: a share of its memory, or bytes
where the whole is not known. What the driver keeps for itself is less."""

PLATEAUS: dict[str, Any] = {
    "number": pl.UInt32, "start_ns": pl.Int64, "end_ns": pl.Int64, "readings": pl.UInt32,
    "leading": pl.Boolean, "trailing": pl.Boolean, "held_bytes": pl.Float64, "held": pl.Boolean,
    "held_from_ns": pl.Int64,
}  # fmt: skip
"""One row: a stretch in which every reading was exactly 0. leading: no busy reading came before;
trailing: none came after. ``held_bytes``: median memory in use meanwhile; ``held`` whether that is
a process, null where memory was not read; ``held_from_ns``: when memory was first seen held."""

LEAST_RECURRENCES = 4
REGULAR = 0.15
"""Pauses recur when there are so many, and the middle half of the times between their starts
spreads by no more than this share of the median."""


def plateaus(sampled: Sampled) -> pl.DataFrame:
    """Every stretch at exactly zero; a gap or an unknown reading ends it. See PLATEAUS."""
    pieces = sampled.pieces
    if not pieces.height:
        return frame(PLATEAUS)
    runs = (
        in_runs(pieces, pl.col("value") == 0.0)
        .group_by("run", maintain_order=True)
        .agg(
            pl.col("number").first(), pl.col("start_ns").min(), pl.col("end_ns").max(),
            pl.len().alias("readings"),
        )
    )  # fmt: skip
    busy = pieces.filter(pl.col("value") > 0).group_by("number").agg(
        pl.col("start_ns").min().alias("first_ns"), pl.col("end_ns").max().alias("last_ns")
    )  # fmt: skip
    runs = runs.join(busy, on="number", how="left", maintain_order="left").with_columns(
        (pl.col("end_ns") <= pl.col("first_ns")).fill_null(True).alias("leading"),
        (pl.col("start_ns") >= pl.col("last_ns")).fill_null(True).alias("trailing"),
    )
    return frame(PLATEAUS, _with_memory(runs, sampled))


def in_runs(pieces: pl.DataFrame, which: pl.Expr) -> pl.DataFrame:
    """The pieces for which ``which`` holds, with ``run``: neighbours of one GPU share it."""
    other = (pl.col("number") != pl.col("number").shift(1)) | (pl.col("which") != pl.col(
        "which").shift(1))  # fmt: skip
    marked = pieces.with_columns(which.fill_null(False).alias("which"))
    return marked.with_columns(other.cum_sum().fill_null(0).alias("run")).filter("which")


def _with_memory(runs: pl.DataFrame, sampled: Sampled) -> pl.DataFrame:
    """What memory was in use in each run."""
    if not sampled.has("memory_used") or not runs.height:
        return runs
    totals = sampled.readings("memory_total").group_by("number").agg(pl.col("value").max())
    used = sampled.readings("memory_used").drop_nulls().rename({"value": "used"})
    used = used.join(totals.rename({"value": "total"}), on="number", how="left")
    limit = pl.coalesce(pl.col("total") * HELD_SHARE, pl.lit(HELD_BYTES, pl.Float64))
    used = used.with_columns((pl.col("used") > limit).alias("full")).sort("number", "t_ns")
    numbered = runs.with_row_index("at").sort("number", "start_ns")
    near = used.join_asof(
        numbered.select("number", "at", "start_ns", "end_ns"), left_on="t_ns",
        right_on="start_ns", by="number", strategy="backward", check_sortedness=False,
    )  # fmt: skip
    inside = near.filter(pl.col("t_ns") <= pl.col("end_ns"))
    told = inside.group_by("at").agg(
        pl.col("used").median().alias("held_bytes"),
        pl.col("full").any().alias("held"),
        pl.col("t_ns").filter("full").min().alias("held_from_ns"),
    )
    return numbered.join(told, on="at", how="left").sort("at")


def recurring(found: pl.DataFrame, shortest_ns: int) -> pl.DataFrame:
    """Plateaus between busy stretches that come back at regular times.

    number, every_ns, lasts_ns (medians), count; one row per GPU that has any. Plateaus shorter
    than ``shortest_ns`` are not looked at.
    """
    inner = found.filter(
        ~pl.col("leading") & ~pl.col("trailing")
        & (pl.col("end_ns") - pl.col("start_ns") >= shortest_ns)
    )  # fmt: skip
    rows = []
    for (number,), mine in inner.sort("start_ns").partition_by("number", as_dict=True).items():
        starts = mine["start_ns"].to_numpy()
        if starts.size < LEAST_RECURRENCES:
            continue
        low, middle, high = np.percentile(np.diff(starts), [25, 50, 75])
        if high - low <= REGULAR * middle:
            lasts = (mine["end_ns"] - mine["start_ns"]).to_numpy()
            rows.append((number, int(middle), int(np.median(lasts)), starts.size))
    schema = {
        "number": pl.UInt32, "every_ns": pl.Int64, "lasts_ns": pl.Int64, "count": pl.UInt32,
    }  # fmt: skip
    return pl.DataFrame(rows, schema=schema, orient="row").sort("number")


def swings(sampled: Sampled) -> pl.DataFrame:
    """How the busy share of each GPU spreads between its first and its last busy reading.

    number, p5, mean, p95 (0..1), readings; unknown stretches are left out.
    """
    busy = sampled.pieces.filter(pl.col("value").is_not_null())
    bounds = busy.filter(pl.col("value") > 0).group_by("number").agg(
        pl.col("start_ns").min().alias("first_ns"), pl.col("end_ns").max().alias("last_ns")
    )  # fmt: skip
    return (
        busy.join(bounds, on="number")
        .filter(
            (pl.col("start_ns") >= pl.col("first_ns")) & (pl.col("end_ns") <= pl.col("last_ns"))
        )
        .group_by("number")
        .agg(
            pl.col("value").quantile(0.05).alias("p5"),
            pl.col("value").mean().alias("mean"),
            pl.col("value").quantile(0.95).alias("p95"),
            pl.len().alias("readings"),
        )
        .sort("number")
    )  # fmt: skip


def in_words(ns: float) -> str:
    """A length of time for a sentence: ``2 h 5 min``, ``12 min``, ``40 s``, ``0.5 s``."""
    seconds = ns / 1e9
    if seconds < 10:
        return f"{seconds:.2g} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes % 60 else f"{minutes // 60} h"


def gib(amount: float) -> str:
    """Bytes for a sentence."""
    return f"{amount / 2**30:.3g} GiB"
