"""How full a busy GPU is, by its multiprocessors and by its power."""

from __future__ import annotations

from typing import Any

import polars as pl

from whyidle.model import frame
from whyidle.views.sampled import Sampled
from whyidle.views.sampled_patterns import in_runs

FULL = 0.98
"""A meter that reads this or more shows a kernel all the time."""

IDLE_POWER = 0.35
"""Part of the power limit below which a GPU hardly computes, whatever its meter says."""

FALL = 0.6
"""A stuck GPU draws at most this part of what it drew when it worked."""

LEAST_READINGS, SHORTEST_NS = 6, 5 * 60 * 10**9

STUCK: dict[str, Any] = {
    "number": pl.UInt32, "start_ns": pl.Int64, "end_ns": pl.Int64, "power": pl.Float64,
    "limit": pl.Float64, "before": pl.Float64, "trailing": pl.Boolean,
}  # fmt: skip
"""One row: a stretch at full utilisation and the power of an idle GPU, after a time of work.
power, before: mean watts in it, and at work before it. trailing: it lasts to the end."""

EMPTY_SMS: dict[str, Any] = {
    "number": pl.UInt32, "start_ns": pl.Int64, "end_ns": pl.Int64, "busy": pl.Float64,
    "active": pl.Float64,
}  # fmt: skip
"""One row: a stretch in which the multiprocessors were active for at most half of the busy time.
busy, active: means of both, 0..1."""

HALF = 0.5


def stuck(sampled: Sampled) -> pl.DataFrame:
    """Kernels that spin: full utilisation at low power for minutes, after work. See STUCK."""
    pieces = with_power(sampled)
    if not pieces.height:
        return frame(STUCK)
    full = pl.col("value") >= FULL
    low = full & (pl.col("power") <= IDLE_POWER * pl.col("limit"))
    worked = pieces.filter((pl.col("value") > 0) & ~low.fill_null(False))
    worked = worked.select("number", "start_ns", "power").drop_nulls()
    last = pieces.group_by("number").agg(pl.col("end_ns").max().alias("last_ns"))
    runs = (
        in_runs(pieces, low)
        .group_by("run", maintain_order=True)
        .agg(
            pl.col("number").first(), pl.col("start_ns").min(), pl.col("end_ns").max(),
            pl.col("power").mean(), pl.col("limit").first(), pl.len().alias("readings"),
        )
        .filter(
            (pl.col("readings") >= LEAST_READINGS)
            & (pl.col("end_ns") - pl.col("start_ns") >= SHORTEST_NS)
        )
        .join(last, on="number", how="left", maintain_order="left")
    )  # fmt: skip
    before = (
        runs.select("run", "number", pl.col("start_ns").alias("from_ns"))
        .join(worked, on="number")
        .filter(pl.col("start_ns") < pl.col("from_ns"))
        .group_by("run")
        .agg(pl.col("power").median().alias("before"), pl.len().alias("count"))
        .filter(pl.col("count") >= LEAST_READINGS)
    )
    found = runs.join(before, on="run").filter(pl.col("power") <= FALL * pl.col("before"))
    trailing = (pl.col("end_ns") == pl.col("last_ns")).alias("trailing")
    return frame(STUCK, found.with_columns(trailing).sort("number", "start_ns"))


def with_power(sampled: Sampled) -> pl.DataFrame:
    """The pieces with ``power`` and ``limit`` in watts; empty where either was never read."""
    pieces = sampled.pieces
    if not sampled.has("power", "power_limit"):
        return pieces.clear()
    limits = sampled.readings("power_limit").group_by("number").agg(pl.col("value").max())
    return pieces.with_columns(sampled.beside(pieces, "power").alias("power")).join(
        limits.rename({"value": "limit"}), on="number", how="left", maintain_order="left"
    )


def empty_sms(sampled: Sampled) -> pl.DataFrame:
    """Stretches of busy time in which most multiprocessors were empty; see EMPTY_SMS."""
    if not sampled.has("sm_active") or not sampled.gpus.height:
        return frame(EMPTY_SMS)
    pieces = sampled.pieces.with_columns(
        sampled.beside(sampled.pieces, "sm_active").clip(0.0, 1.0).alias("active")
    )
    low = (pl.col("value") > 0) & (pl.col("active") <= HALF * pl.col("value"))
    runs = in_runs(pieces, low)
    lasted = pl.col("end_ns") - pl.col("start_ns")
    found = runs.group_by("run", maintain_order=True).agg(
        pl.col("number").first(), pl.col("start_ns").min(), pl.col("end_ns").max(),
        ((pl.col("value") * lasted).sum() / lasted.sum()).alias("busy"),
        ((pl.col("active") * lasted).sum() / lasted.sum()).alias("active"),
        pl.len().alias("readings"),
    )  # fmt: skip
    return frame(EMPTY_SMS, found.filter(pl.col("readings") >= LEAST_READINGS))
