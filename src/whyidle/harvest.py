"""Reads out of judged evidence the small tables that the answer needs; see leavings."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from whyidle.intervals import Intervals, overlap_ns, pairs
from whyidle.leavings import (
    ALONE,
    CELL_LOSSES,
    CELLS,
    ENTRY_PLACES,
    LOSSES,
    SHOWN,
    SPEEDS,
    STEPS,
    WINDOWS,
)
from whyidle.ledger import Ledger
from whyidle.model import frame
from whyidle.per_step import kernel_steps, step_losses, step_states
from whyidle.views import Views
from whyidle.views.activity import COMPUTE, STATE_NAMES
from whyidle.views.meetings import ENTRIES, entries
from whyidle.views.needs import missing

MOST_ROWS = 5
MOST_KERNELS = 64
"""Kernels whose speed is kept per device, those with most time first."""


def gathered(ledger: Ledger, views: Views) -> dict[str, pl.DataFrame]:
    """The frames of a Partial by name."""
    won = _with_activity(ledger.won, views)
    talking = pl.col("state") == "communication"
    met = entries(views) if views.windows.height else pl.DataFrame(schema=ENTRIES)
    cells, met = _cells(met, views)
    quiet = won.filter(~talking)
    return {
        "windows": _windows(views),
        "steps": frame(STEPS, views.marks),
        "losses": summed(quiet),
        "alone": _alone(won.filter(talking), met),
        "entries": met,
        "cells": cells,
        "cell_losses": _cell_losses(quiet, cells, views),
        "speeds": _speeds(views),
        "operations": views.evidence.table("operations"),
        "shown": _shown(quiet, views),
        "step_states": step_states(views),
        "step_losses": step_losses(ledger, views),
        "kernel_steps": kernel_steps(views),
    }


def _windows(views: Views) -> pl.DataFrame:
    states = views.states.nanoseconds() if views.windows.height else np.zeros((0, 4), np.int64)
    told = views.windows.with_columns(
        *(pl.Series(name, states[:, code]) for code, name in enumerate(STATE_NAMES)),
        pl.Series("unrecorded", [round(s * 1e9) for s in views.unrecorded_s], dtype=pl.Int64),
    )
    return frame(WINDOWS, told)


def _with_activity(won: pl.DataFrame, views: Views) -> pl.DataFrame:
    """Won claims with the activity that the blame view gives their first instant."""
    threads = views.evidence.table("threads")
    names = threads.select("thread", pl.col("name").alias("called"))
    told = won.join(names, on="thread", how="left", maintain_order="left")
    told = told.with_columns(pl.col("called").alias("thread")).drop("called")
    if not won.height or missing(views, ("blame",)):
        return told.with_columns(pl.lit(None, pl.Categorical).alias("activity"))
    axis, blame = views.states.axis, views.blame
    begins = axis.put(blame["window"].to_numpy().astype(np.intp), blame["start_ns"].to_numpy())
    ends = axis.put(blame["window"].to_numpy().astype(np.intp), blame["end_ns"].to_numpy())
    order = np.argsort(begins, kind="stable")
    at = axis.put(won["window"].to_numpy().astype(np.intp), won["start_ns"].to_numpy())
    found = np.searchsorted(begins[order], at, side="right") - 1
    row = order[np.maximum(found, 0)] if order.size else np.zeros(at.size, np.intp)
    inside = (found >= 0) & (at < ends[row]) if order.size else np.zeros(at.size, bool)
    activity = blame["activity"].cast(pl.String).gather(row) if order.size else None
    text = pl.select(pl.when(pl.Series(inside)).then(activity)).to_series()
    return told.with_columns(text.cast(pl.Categorical).alias("activity"))


def summed(won: pl.DataFrame) -> pl.DataFrame:
    """Won intervals as rows of ``losses``."""
    keys = [name for name in LOSSES if name not in ("start_ns", "lost")]
    told = won.select(pl.col(k).cast(LOSSES[k]) for k in (*keys, "start_ns", "lost"))
    sums = told.group_by(keys, maintain_order=True).agg(
        pl.col("start_ns").min(), pl.col("lost").sum()
    )
    return frame(LOSSES, sums)


def _alone(won: pl.DataFrame, met: pl.DataFrame) -> pl.DataFrame:
    """Won intervals of communication alone, each with its collective."""
    numbers = met.select("window", "row", pl.int_range(pl.len(), dtype=pl.Int64).alias("entry"))
    told = won.with_columns(pl.col("window").cast(pl.UInt32)).join(
        numbers, on=["window", "row"], how="left", maintain_order="left"
    )
    return frame(ALONE, told.with_columns(pl.col("entry").fill_null(-1)))


def _cells(met: pl.DataFrame, views: Views) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The cells, and the entries with the cells that begin where they start and end."""
    states, axis = views.states, views.states.axis
    windows = states.windows
    group = met["window"].to_numpy().astype(np.intp)
    low, high = windows["start_ns"].to_numpy(), windows["end_ns"].to_numpy()
    every = np.arange(windows.height)
    first, last = axis.put(every, low), axis.put(every, high)
    starts = axis.put(group, np.clip(met["start_ns"].to_numpy(), low[group], high[group]))
    ends = axis.put(group, np.clip(met["end_ns"].to_numpy(), low[group], high[group]))
    edges = np.unique(np.concatenate([first, last, starts, ends]))
    owner = axis.group_of(edges)
    kept = np.flatnonzero(~np.isin(edges, last))
    begin, end, window = edges[kept], edges[np.minimum(kept + 1, edges.size - 1)], owner[kept]
    columns: dict[str, Any] = {
        name: overlap_ns(begin, end, states.sets[code]) for code, name in enumerate(STATE_NAMES)
    }
    cells = pl.DataFrame(
        {
            "window": window,
            "start_ns": axis.take(begin, window),
            "end_ns": axis.take(end, window),
            **columns,
        }
    )
    places = met.with_columns(
        pl.Series("enters", np.searchsorted(begin, starts), dtype=pl.Int64),
        pl.Series("leaves", np.searchsorted(begin, ends), dtype=pl.Int64),
    )
    return frame(CELLS, cells), frame(ENTRY_PLACES, places)


def _cell_losses(won: pl.DataFrame, cells: pl.DataFrame, views: Views) -> pl.DataFrame:
    """What won intervals cost in each cell that they touch."""
    axis = views.states.axis

    def positions(table: pl.DataFrame) -> Intervals:
        group = table["window"].to_numpy().astype(np.intp)
        begins, ends = table["start_ns"].to_numpy(), table["end_ns"].to_numpy()
        return axis.put(group, begins), axis.put(group, ends)

    mine, rooms = positions(won), positions(cells)
    left, right = pairs(mine, rooms)
    took = np.minimum(mine[1][left], rooms[1][right]) - np.maximum(mine[0][left], rooms[0][right])
    cost = np.rint(took * won["weight"].to_numpy()[left]).astype(np.int64)
    told = won.select("cause", "activity", "state")[left].with_columns(
        pl.col("cause").cast(pl.Categorical),
        pl.Series("cell", right, dtype=pl.UInt32),
        pl.Series("ns", cost, dtype=pl.Int64),
    )
    sums = told.group_by("cell", "cause", "activity", "state", maintain_order=True).agg(
        pl.col("ns").sum(), pl.col("ns").max().alias("longest")
    )
    return frame(CELL_LOSSES, sums)


def _speeds(views: Views) -> pl.DataFrame:
    """The kernels that take most of each device's time, with how long one takes."""
    if not views.has_device or not views.windows.height:
        return frame(SPEEDS)
    states = views.states
    work = states.work.select("group", "name", "blocks", "kind", "state", "start_ns", "end_ns")
    work = work.filter((pl.col("state") == COMPUTE) & (pl.col("kind") == "kernel"))
    took = (pl.col("end_ns") - pl.col("start_ns")).alias("took")
    sums = (
        work.with_columns(took)
        .group_by("group", "name", "blocks")
        .agg(
            pl.len().alias("count"),
            pl.col("took").sum().alias("total"),
            pl.col("took").median().alias("median"),
        )
    )
    ranked = sums.sort("group", "total", "name", "blocks", descending=[False, True, False, False])
    top = ranked.group_by("group", maintain_order=True).head(MOST_KERNELS)
    return frame(SPEEDS, top.rename({"group": "window", "name": "kernel"}))


def _shown(won: pl.DataFrame, views: Views) -> pl.DataFrame:
    """The spans that show the largest losses of each cause."""
    sums = (
        won.filter(pl.col("row").is_not_null()).group_by("cause", "row").agg(pl.col("lost").sum())
    )
    top = sums.sort("cause", "lost", "row", descending=[False, True, False])
    top = top.group_by("cause", maintain_order=True).head(MOST_ROWS)
    spans = views.evidence.table("spans")
    named = spans.filter(pl.col("row").is_in(top["row"].unique().implode())).select(
        "row", "source", "event", pl.col("name").cast(pl.String), pl.col("kind").cast(pl.String)
    )
    return frame(SHOWN, top.join(named, on="row", how="left", maintain_order="left"))
