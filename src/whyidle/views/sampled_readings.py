"""The readings of one metric, with the GPU that each is about, in order of time.

A week of eight GPUs at one reading a second is 4.8 million rows of a metric, so columns of text
are never looked at row by row.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt
import polars as pl

from whyidle.model import Evidence
from whyidle.views.sampled_gpus import NAMES, members

KEPT = ("number", "t_ns", "period_ns", "value", "reason", "source", "rank")


class GpuReadings:
    """Readings about whole GPUs, by metric; ``members`` are the names of each GPU."""

    def __init__(self, evidence: Evidence) -> None:
        """Nothing is looked at before it is asked for."""
        self._evidence = evidence
        self._found: dict[str, pl.DataFrame] = {}

    @cached_property
    def members(self) -> pl.DataFrame:
        """Every name of every GPU; see views.sampled_gpus."""
        return members(self._evidence)

    def of(self, metric: str) -> pl.DataFrame:
        """The columns KEPT of all readings of a metric, by GPU and time; t_ns may be null."""
        if metric not in self._found:
            rows = self._evidence.table("samples").lazy()
            rows = rows.filter((pl.col("metric") == metric) & pl.col("process").is_null())
            ordered = self._numbered(rows).select(KEPT).collect()
            if ordered["number"].n_unique() > 1 or not ordered["t_ns"].is_sorted():
                ordered = ordered.sort("number", "t_ns", maintain_order=True)
            self._found[metric] = ordered
        return self._found[metric]

    def has(self, metric: str) -> bool:
        """Whether the metric has a value somewhere."""
        return self.of(metric)["value"].null_count() < self.of(metric).height

    def _numbered(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """The rows with their GPU's number; by one column where that is enough."""
        known = self.members
        if known["number"].n_unique() == 1:
            return rows.with_columns(pl.lit(0, pl.UInt32).alias("number"))
        for name in ("device", "gpu"):
            each = known.select(name, "number").unique()
            if each[name].null_count() == 0 and each[name].is_unique().all():
                old, new = each[name], each["number"]
                if name == "gpu":
                    old = old.cast(pl.Categorical)
                number = pl.col(name).replace_strict(old, new, default=None, return_dtype=pl.UInt32)
                return rows.with_columns(number.alias("number")).filter(
                    pl.col("number").is_not_null()
                )
        names = known.with_columns(pl.col("host", "gpu").cast(pl.Categorical)).lazy()
        return rows.join(names, on=list(NAMES), how="inner", nulls_equal=True)


def beside(
    number: npt.NDArray[np.uint32],
    end: npt.NDArray[np.int64],
    limit: npt.NDArray[np.int64],
    readings: pl.DataFrame,
) -> npt.NDArray[np.float64]:
    """For each instant of a GPU the latest value of ``readings`` at most ``limit`` ns before it.

    NaN where there is none. ``readings`` has number, t_ns, value in order of both.
    """
    known = readings.drop_nulls(["t_ns", "value"])
    of, t, value = (known[name].to_numpy() for name in ("number", "t_ns", "value"))
    if of.size == number.size and np.array_equal(of, number) and np.array_equal(t, end):
        return value
    found = np.full(end.size, np.nan)
    for gpu in np.unique(of):
        low, high = np.searchsorted(of, [gpu, gpu + 1])
        mine = np.flatnonzero(number == gpu)
        at = low + np.searchsorted(t[low:high], end[mine], side="right") - 1
        before = at >= low
        mine, at = mine[before], at[before]
        near = end[mine] - t[at] <= limit[mine]
        found[mine[near]] = value[at[near]]
    return found
