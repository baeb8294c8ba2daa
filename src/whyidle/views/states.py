"""The state of every device at every instant of its window: compute, communication, copy, empty.

Raw union of device intervals over all streams, with precedence compute > communication > copy >
empty. Sets are positions on ``axis``, on which the windows of all devices lie side by side.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from whyidle.intervals import Axis, Index, Intervals, Ints, subtract, union
from whyidle.views.activity import COMMUNICATION, COMPUTE, COPY


@dataclass(frozen=True)
class States:
    """Device work cut to the windows, and the four sets.

    ``work``: rows of the activity view that touch their window, with ``group`` (row of
    ``windows``), ordered by position; start, end: their positions. sets: state code -> set.
    """

    windows: pl.DataFrame
    axis: Axis
    work: pl.DataFrame
    group: Index
    start: Ints
    end: Ints
    sets: tuple[Intervals, Intervals, Intervals, Intervals]

    def nanoseconds(self) -> npt.NDArray[np.int64]:
        """Nanoseconds per window (row) and state (column)."""
        found = np.zeros((self.windows.height, 4), dtype=np.int64)
        for state, (start, end) in enumerate(self.sets):
            np.add.at(found[:, state], self.axis.group_of(start), end - start)
        return found

    def seconds(self) -> npt.NDArray[np.float64]:
        """Seconds per window (row) and state (column)."""
        return self.nanoseconds() / 1e9


def states(activity: pl.DataFrame, windows: pl.DataFrame) -> States:
    """Cut device work to the windows and take the unions."""
    axis = Axis(windows["start_ns"].to_numpy(), windows["end_ns"].to_numpy())
    bounds = windows.select(
        "rank",
        "device",
        "source",
        pl.col("start_ns").alias("low_ns"),
        pl.col("end_ns").alias("high_ns"),
        pl.int_range(pl.len(), dtype=pl.Int64).alias("group"),
    )
    keys = ["rank", "device", "source"]
    work = activity.join(bounds, on=keys, how="inner", nulls_equal=True)
    inside = (pl.col("end_ns") >= pl.col("low_ns")) & (pl.col("start_ns") <= pl.col("high_ns"))
    work = work.filter(inside).with_columns(
        pl.max_horizontal("start_ns", "low_ns").alias("start_ns"),
        pl.min_horizontal("end_ns", "high_ns").alias("end_ns"),
    )
    work = work.drop("low_ns", "high_ns").sort("group", "start_ns", "end_ns", "row")
    group = work["group"].to_numpy().astype(np.intp)
    start = axis.put(group, work["start_ns"].to_numpy())
    end = axis.put(group, work["end_ns"].to_numpy())
    whole = _whole(windows, axis)
    code = work["state"].to_numpy()
    compute = union(start[code == COMPUTE], end[code == COMPUTE])
    communication = union(start[code == COMMUNICATION], end[code == COMMUNICATION])
    copies = union(start[code == COPY], end[code == COPY])
    busy = union(start, end)
    computing_or_talking = code != COPY
    fuller = union(start[computing_or_talking], end[computing_or_talking])
    sets = (
        compute,
        subtract(communication, compute),
        subtract(copies, fuller),
        subtract(whole, busy),
    )
    return States(windows, axis, work, group, start, end, sets)


def _whole(windows: pl.DataFrame, axis: Axis) -> Intervals:
    group = np.arange(windows.height)
    start = axis.put(group, windows["start_ns"].to_numpy())
    return start, axis.put(group, windows["end_ns"].to_numpy())
