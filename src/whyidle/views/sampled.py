"""What samples say of each GPU over time: busy, idle or unknown, and other readings beside it.

A reading stands for the time since the one before it. Where that is longer than a few periods the
time between is *unknown*: a gap never counts as idle. So is a reading without a value. Instants
are those of the samples, on whose clock a trace need not lie.

The meter is ``gpu_utilization``: the share of time in which any kernel was resident. Where it is
absent, as on a partitioned GPU (MIG), it is ``graphics_engine_active``. Both say only that
something ran, not how full it kept the GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from whyidle.intervals import Ints
from whyidle.model import METRICS, Evidence, frame
from whyidle.views.sampled_gpus import NAMES
from whyidle.views.sampled_readings import GpuReadings, beside

METERS = ("gpu_utilization", "graphics_engine_active")
GAP_PERIODS = 3
"""A reading that comes later than so many periods after the one before leaves a gap."""

LONGEST_PERIOD_NS = 10 * 60 * 10**9
"""Readings farther apart than this say nothing of the time between them."""

SNAPSHOT_NS = 10**9
"""What such a reading stands for where its source does not say: the longest span that NVML's
utilisation looks back on."""

LEAST_READINGS = 3
"""Fewer readings of a GPU are snapshots: facts about an instant, no account of its time."""

MOST = 1.3
"""Counters are known to read a little above 1; what is above this is no share."""

POWERED = 0.5
"""An engine counter of 0 at this share of the power limit or above is a counter that failed."""

PIECES: dict[str, Any] = {
    "number": pl.UInt32, "start_ns": pl.Int64, "end_ns": pl.Int64, "value": pl.Float64,
    "busy_ns": pl.Int64,
}  # fmt: skip
"""One row: one stretch of one GPU, end to end without holes. ``value`` is its busy share and
``busy_ns`` that share in nanoseconds; both null where it is unknown."""

GPUS: dict[str, Any] = {
    "number": pl.UInt32, "host": pl.String, "gpu": pl.String, "device": pl.Int32,
    "rank": pl.Int32, "name": pl.String, "meter": pl.String, "start_ns": pl.Int64,
    "end_ns": pl.Int64, "period_ns": pl.Int64, "samples": pl.UInt32, "reason": pl.String,
    "source": pl.UInt16,
}  # fmt: skip
"""One row: one GPU with enough readings to account for its time. ``rank`` is what the source
says; ``reason`` why readings of the meter have no value, where that is said; ``source`` the first
that holds readings of the meter."""


@dataclass(frozen=True)
class Sampled:
    """What is known of sampled GPUs; ``by_metric`` are their readings."""

    evidence: Evidence
    by_metric: GpuReadings

    @property
    def members(self) -> pl.DataFrame:
        """Every name of every GPU and its number; see views.sampled_gpus."""
        return self.by_metric.members

    def has(self, *metrics: str) -> bool:
        """Whether every one of the metrics has a value somewhere."""
        return all(self.by_metric.has(metric) for metric in metrics)

    def readings(self, metric: str) -> pl.DataFrame:
        """number, t_ns, value of all readings of a metric, by GPU and time; t_ns may be null."""
        return self.by_metric.of(metric).select("number", "t_ns", "value")

    @cached_property
    def _metered(self) -> pl.DataFrame:
        """number, t_ns, period_ns, value, reason, source, rank, meter: what tells of busy."""
        found: list[pl.DataFrame] = []
        done: list[int] = []
        for meter in METERS:
            rows = _told(self.by_metric.of(meter), meter).filter(pl.col("t_ns").is_not_null())
            if done:
                rows = rows.filter(~pl.col("number").is_in(done))
            valued = rows.filter(pl.col("value").is_not_null())["number"].unique().to_list()
            if len(valued) < rows["number"].n_unique():
                rows = rows.filter(pl.col("number").is_in(valued))
            found.append(rows)
            done += valued
        found += self._blind(done)
        return _in_order(pl.concat([rows for rows in found if rows.height] or found[:1]))

    def _blind(self, done: list[int]) -> list[pl.DataFrame]:
        """GPUs whose meter never had a value: the instants of any of their readings."""
        if not set(self.members["number"].to_list()) - set(done):
            return []
        metrics = self.evidence.table("samples")["metric"].unique().cast(pl.String).to_list()
        found = []
        for metric in sorted(set(metrics) & set(METRICS), key=lambda m: (m not in METERS, m)):
            rows = _told(self.by_metric.of(metric), METERS[0]).filter(
                pl.col("t_ns").is_not_null() & ~pl.col("number").is_in(done)
            )
            reason = "reason" if metric in METERS else pl.lit(None, pl.String).alias("reason")
            found.append(
                rows.with_columns(pl.lit(None, pl.Float64).alias("value")).with_columns(reason)
            )
        rows = pl.concat(found) if found else _told(self.by_metric.of(METERS[0]), METERS[0])
        return [rows.unique(["number", "t_ns"], keep="first", maintain_order=True)]

    @cached_property
    def _periods(self) -> pl.DataFrame:
        """number, usual: the usual ns between readings; one row per GPU with a series."""
        number, t = (self._metered[name].to_numpy() for name in ("number", "t_ns"))
        rows = []
        for gpu in np.unique(number):
            low, high = np.searchsorted(number, [gpu, gpu + 1])
            if high - low >= LEAST_READINGS:
                rows.append((int(gpu), int(np.median(np.diff(t[low:high])))))
        return pl.DataFrame(rows, schema={"number": pl.UInt32, "usual": pl.Int64}, orient="row")

    @cached_property
    def pieces(self) -> pl.DataFrame:
        """The time of every GPU with a series, cut by its readings; see PIECES."""
        rows = self._metered
        if self._periods.height < rows["number"].n_unique():
            rows = rows.filter(pl.col("number").is_in(self._periods["number"].implode()))
        if not rows.height:
            return frame(PIECES)
        number, t = rows["number"].to_numpy(), rows["t_ns"].to_numpy()
        step, covers = _covered(number, t, self._usual(number), rows["period_ns"])
        value = np.minimum(self._doubted(number, t, rows["value"].to_numpy()), 1.0)
        start = t - covers
        gap = np.flatnonzero(step > covers)
        columns = {
            "number": np.insert(number, gap, number[gap]),
            "start_ns": np.insert(start, gap, t[gap] - step[gap]),
            "end_ns": np.insert(t, gap, start[gap]),
            "value": np.insert(value, gap, np.nan),
        }
        columns["busy_ns"] = np.rint(
            columns["value"] * (columns["end_ns"] - columns["start_ns"])
        )  # fmt: skip
        return frame(PIECES, pl.DataFrame(columns, nan_to_null=True))

    def _usual(self, number: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
        """The usual period of the GPU of each row."""
        at = np.searchsorted(self._periods["number"].to_numpy(), number)
        return np.asarray(self._periods["usual"].to_numpy()[at])

    def _doubted(
        self, number: npt.NDArray[np.uint32], t: Ints, value: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.float64]:
        """The values, without zeros of an engine counter at high power: counters fail to 0."""
        meters = dict(self._metered.select("number", "meter").unique().iter_rows())
        weak = [n for n, meter in meters.items() if meter == METERS[1]]
        if not weak or not self.has("power", "power_limit"):
            return value
        limits = self.readings("power_limit").group_by("number").agg(pl.col("value").max())
        limit = np.full(int(number.max()) + 1, np.inf)
        for gpu, watts in limits.drop_nulls().iter_rows():
            limit[gpu] = watts
        reach = GAP_PERIODS * self._usual(number)
        power = beside(number, t, reach, self.readings("power"))
        failed = np.isin(number, weak) & (value == 0) & (power >= POWERED * limit[number])
        return np.where(failed, np.nan, value)

    def beside(self, pieces: pl.DataFrame, metric: str) -> pl.Series:
        """For each row of pieces (number, end_ns) the latest reading of another metric.

        Null where there is none within GAP_PERIODS usual periods before the piece's end.
        """
        number, end = pieces["number"].to_numpy(), pieces["end_ns"].to_numpy()
        reach = GAP_PERIODS * self._usual(number)
        found = beside(number, end, reach, self.readings(metric))
        return pl.Series("near", found, nan_to_null=True)

    @cached_property
    def gpus(self) -> pl.DataFrame:
        """The GPUs with a series; see GPUS."""
        bounds = self.pieces.group_by("number").agg(
            pl.col("start_ns").min(), pl.col("end_ns").max()
        )
        told = self._metered.group_by("number").agg(
            pl.col("meter").first(),
            pl.len().alias("samples"),
            pl.col("reason").drop_nulls().first(),
            pl.col("source").min(),
            pl.col("rank").drop_nulls().first(),
        )
        named = self.members.group_by("number").agg(
            pl.col("host").drop_nulls().first(),
            pl.col("gpu").drop_nulls().sort_by(pl.col("gpu").drop_nulls().str.len_chars()).last(),
            pl.col("device").drop_nulls().min(),
        )
        found = bounds.join(told, on="number").join(named, on="number")
        found = found.join(self._periods.rename({"usual": "period_ns"}), on="number")
        found = found.join(self.setting("name"), on="number", how="left")
        return frame(GPUS, found.rename({"value": "name"}).sort("number"))

    def setting(self, key: str) -> pl.DataFrame:
        """number, value: the last known value of a fact in words, one row per GPU."""
        rows = self.settings.filter((pl.col("key") == key) & pl.col("value").is_not_null())
        return rows.group_by("number").agg(pl.col("value").last()).sort("number")

    @cached_property
    def settings(self) -> pl.DataFrame:
        """The facts in words about GPUs, with ``number``; host, gpu and key as text."""
        rows = self.evidence.table("settings").with_columns(
            pl.col("host", "gpu", "key", "reason").cast(pl.String)
        )
        return rows.join(
            self.members, on=list(NAMES), how="inner", nulls_equal=True, maintain_order="left"
        )

    def labels(self) -> dict[int, str]:
        """What to call each GPU in a sentence; the machine only where there are several."""
        several = self.members["host"].n_unique() > 1
        found: dict[int, str] = {}
        for row in self.members.sort("number").iter_rows(named=True):
            index = row["device"] if row["device"] is not None else row["gpu"]
            where = f" of {row['host']}" if several and row["host"] else ""
            if row["device"] is not None or row["number"] not in found:
                named = "The GPU" if index is None else f"GPU {index}".replace("GPU GPU", "GPU")
                found[row["number"]] = f"{named}{where}"
        return found


def sampled(evidence: Evidence) -> Sampled:
    """The readings of the evidence by GPU."""
    return Sampled(evidence, GpuReadings(evidence))


def _told(rows: pl.DataFrame, meter: str) -> pl.DataFrame:
    sound = pl.col("value").is_between(0.0, MOST)
    return rows.select(
        "number", "t_ns", "period_ns", pl.when(sound).then("value").alias("value"),
        pl.col("reason").cast(pl.String), "source", "rank", pl.lit(meter).alias("meter"),
    )  # fmt: skip


def _covered(
    number: npt.NDArray[np.uint32], t: Ints, usual: Ints, own: pl.Series
) -> tuple[Ints, Ints]:
    """Per reading, ns since the one before it (-1 for the first of a GPU) and ns it stands for."""
    first = np.ones(t.size, bool)
    first[1:] = number[1:] != number[:-1]
    step = np.diff(t, prepend=t[:1])
    after = np.append(step[1:], 0)
    lone = np.append(first[1:], True)
    apart = usual > LONGEST_PERIOD_NS
    stated = own.fill_null(0).to_numpy()
    usual = np.where(apart, np.where(stated > 0, stated, SNAPSHOT_NS), usual)
    step = np.where(first, -1, step)
    near = np.where(first, np.where(lone, usual, after), step)
    whole = (step >= 0) & (step <= GAP_PERIODS * np.maximum(usual, stated)) & ~apart
    return step, np.where(whole, step, np.minimum(usual, near))


def _in_order(rows: pl.DataFrame) -> pl.DataFrame:
    """In order of GPU and time; of several readings of one instant the first known one."""
    number, t = rows["number"].to_numpy(), rows["t_ns"].to_numpy()
    later = (number[1:] > number[:-1]) | ((number[1:] == number[:-1]) & (t[1:] > t[:-1]))
    if later.all():
        return rows
    rows = rows.sort("number", "t_ns", pl.col("value").is_null(), maintain_order=True)
    return rows.unique(["number", "t_ns"], keep="first", maintain_order=True)
