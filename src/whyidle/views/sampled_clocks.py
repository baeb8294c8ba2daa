"""GPUs whose clock is held down while they work: by heat, by a power brake, or by a fault."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from whyidle.model import CLAIMS, frame
from whyidle.views.sampled import Sampled
from whyidle.views.sampled_matches import on_trace_clock
from whyidle.views.sampled_patterns import in_runs

if TYPE_CHECKING:
    from whyidle.views import Views

LOADED = 0.5
"""A GPU works when it was busy for at least this share of a reading."""

LOW_CLOCK = 0.75
"""Part of the maximum below which a clock under load is held down. Cards at work usually run at
80 to 95 % of the highest clock they can name."""

AT_LIMIT = 0.85
"""At this share of its power limit a GPU lowers its clock by design: no fault, no loss."""

LEAST_READINGS, SHORTEST_NS = 6, 60 * 10**9

HARMFUL = {
    "throttle.hw_slowdown": "a hardware slowdown",
    "throttle.hw_thermal_slowdown": "heat (hardware slowdown)",
    "throttle.hw_power_brake": "an external power brake",
    "throttle.sw_thermal_slowdown": "heat (driver slowdown)",
}
"""Reasons that are no part of normal work. gpu_idle, sw_power_cap, sync_boost and clocks set by
applications are."""

HELD_DOWN: dict[str, Any] = {
    "number": pl.UInt32, "start_ns": pl.Int64, "end_ns": pl.Int64, "clock": pl.Float64,
    "most": pl.Float64, "why": pl.String,
}  # fmt: skip
"""One row: a stretch of work at a low clock. ``clock`` its mean and ``most`` the highest clock of
the GPU, in Hz; ``why`` what the driver named as reason, null when nothing."""


def held_down(sampled: Sampled) -> pl.DataFrame:
    """Stretches of work at a low clock, away from the power limit; see HELD_DOWN."""
    if not sampled.has("sm_clock", "sm_clock_max") or not sampled.gpus.height:
        return frame(HELD_DOWN)
    most = sampled.readings("sm_clock_max").group_by("number").agg(pl.col("value").max())
    pieces = sampled.pieces.with_columns(sampled.beside(sampled.pieces, "sm_clock").alias("clock"))
    pieces = pieces.join(
        most.rename({"value": "most"}), on="number", how="left", maintain_order="left"
    )
    capped = pl.lit(False)
    if sampled.has("power", "power_limit"):
        limits = sampled.readings("power_limit").group_by("number").agg(pl.col("value").max())
        pieces = pieces.with_columns(sampled.beside(pieces, "power").alias("power")).join(
            limits.rename({"value": "limit"}), on="number", how="left", maintain_order="left"
        )
        capped = (pl.col("power") >= AT_LIMIT * pl.col("limit")).fill_null(False)
    low = (pl.col("value") >= LOADED) & (pl.col("clock") <= LOW_CLOCK * pl.col("most")) & ~capped
    found = in_runs(pieces, low).group_by("run", maintain_order=True).agg(
        pl.col("number").first(), pl.col("start_ns").min(), pl.col("end_ns").max(),
        pl.col("clock").mean(), pl.col("most").first(), pl.len().alias("readings"),
    )  # fmt: skip
    found = found.filter(
        (pl.col("readings") >= LEAST_READINGS)
        & (pl.col("end_ns") - pl.col("start_ns") >= SHORTEST_NS)
    )
    return frame(HELD_DOWN, found.join(reasons(sampled), on="number", how="left"))


def reasons(sampled: Sampled) -> pl.DataFrame:
    """number, why: the harmful reasons that the driver named for each GPU, in words."""
    active = sampled.settings.filter(
        pl.col("key").is_in(list(HARMFUL)) & (pl.col("value") == "Active")
    )
    told = active.with_columns(pl.col("key").replace_strict(HARMFUL, default=None).alias("why"))
    told = told.unique(["number", "why"]).sort("number", "why")
    return told.group_by("number", maintain_order=True).agg(pl.col("why").str.join(", "))


def held_down_in_windows(views: Views) -> pl.DataFrame:
    """The same stretches as claims on the traced windows that they cover; schema CLAIMS.

    Only for GPUs that are known to be traced devices, on a clock that both share.
    """
    sources = dict(views.sampled.gpus.select("number", "source").iter_rows())
    rows = []
    for row in held_down(views.sampled).iter_rows(named=True):
        match = views.matches.get(row["number"])
        if match is None or not on_trace_clock(views, sources[row["number"]]):
            continue
        weight = 1 - row["clock"] / row["most"]
        rows.append(
            {
                "rank": match.rank, "device": match.device, "weight": weight,
                "start_ns": row["start_ns"], "end_ns": row["end_ns"], "level": "suspected",
                "op": f"SM clock at {row['clock'] / 1e6:.0f} of {row['most'] / 1e6:.0f} MHz",
            }
        )  # fmt: skip
    claims = frame(CLAIMS, rows) if rows else frame(CLAIMS)
    windows = views.windows.select("rank", "device", low="start_ns", high="end_ns")
    inside = claims.join(windows, on=["rank", "device"], nulls_equal=True).with_columns(
        pl.max_horizontal("start_ns", "low").alias("start_ns"),
        pl.min_horizontal("end_ns", "high").alias("end_ns"),
    )
    return frame(CLAIMS, inside.filter(pl.col("start_ns") < pl.col("end_ns")))
