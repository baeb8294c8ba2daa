"""How the clocks of ranks differ, from collectives that end on all of them at once.

A collective whose result needs every rank's data (all-reduce, all-gather, reduce-scatter,
all-to-all, barrier) ends on all ranks within microseconds. The difference of recorded ends is
therefore the difference of clocks; its median over many collectives is robust against the odd one.
Ranks that never meet the reference directly are joined through ranks that do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from whyidle.intervals import Index, Ints

TOGETHER = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "barrier", "communication")
LEAST_ERROR_NS = 1_000
"""Traces of older profilers count whole microseconds."""

DRIFT_AFTER_NS = 10_000_000_000
DRIFT_POINTS = 8


@dataclass(frozen=True)
class Clocks:
    """Per rank code: what to add to its instants, how sure that is, and how its clock drifts.

    offset_ns at instant ``since_ns`` of the rank's own clock; drift in ns per ns; error_ns: nine of
    ten ends lie closer to the others' than this; known: whether it met anybody.
    """

    offset_ns: Ints
    error_ns: Ints
    drift: npt.NDArray[np.float64]
    since_ns: Ints
    known: npt.NDArray[np.bool_]

    def put(self, rank: Index, instant_ns: Ints) -> Ints:
        """Instants of ranks -> the common clock."""
        slow = np.rint(self.drift[rank] * (instant_ns - self.since_ns[rank])).astype(np.int64)
        return np.asarray(instant_ns + self.offset_ns[rank] + slow)


def clocks(ranks: int, rank: Index, meeting: Index, end_ns: Ints, sound: Index) -> Clocks:
    """The clocks of ``ranks`` ranks. Per entry: rank code, meeting (-1: none) and end.

    ``sound``: the entries whose collective ends on all ranks at once.
    """
    offset = np.zeros(ranks, dtype=np.int64)
    known = np.zeros(ranks, dtype=bool)
    at = sound[meeting[sound] >= 0]
    met = pl.DataFrame({"rank": rank[at], "meeting": meeting[at], "end": end_ns[at]})
    if met.height:
        first = met.group_by("rank").len().sort("len", "rank", descending=[True, False])["rank"][0]
        known[int(first)] = True
        offset, known = _joined(met, offset, known)
        for _ in range(2):
            apart = _apart(met, offset).group_by("rank").agg(pl.col("apart").median())
            offset[apart["rank"].to_numpy()] += np.floor(apart["apart"].to_numpy()).astype(np.int64)
        offset[known] -= np.sort(offset[known])[(int(known.sum()) - 1) // 2]
    error = np.full(ranks, LEAST_ERROR_NS, dtype=np.int64)
    drift, since = np.zeros(ranks), np.zeros(ranks, dtype=np.int64)
    if met.height:
        drift, since, rest = _drifts(met, offset, ranks)
        offset += rest
        settled = Clocks(offset, error, drift, since, known)
        left = met.with_columns(
            pl.Series("end", settled.put(met["rank"].to_numpy(), met["end"].to_numpy()))
        )
        far = (
            _apart(left, np.zeros(ranks, dtype=np.int64))
            .group_by("rank")
            .agg(pl.col("apart").abs().quantile(0.9))
        )
        error[far["rank"].to_numpy()] = np.maximum(far["apart"].to_numpy(), LEAST_ERROR_NS)
    return Clocks(offset, error, drift, since, known)


def _joined(
    met: pl.DataFrame, offset: Ints, known: npt.NDArray[np.bool_]
) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """First offsets, from ranks that are known to ranks that met them, until nobody is added."""
    offset, known = offset.copy(), known.copy()
    while True:
        sure = pl.Series(known).gather(met["rank"])
        held = met.with_columns(
            pl.Series("at", met["end"].to_numpy() + offset[met["rank"].to_numpy()])
        )
        held = held.filter(sure).group_by("meeting").agg(pl.col("at").median())
        new = met.filter(~sure).join(held, on="meeting", how="inner")
        if not new.height:
            return offset, known
        found = new.group_by("rank").agg((pl.col("at") - pl.col("end")).median().alias("by"))
        at = found["rank"].to_numpy()
        offset[at] = np.floor(found["by"].to_numpy()).astype(np.int64)
        known[at] = True


def _apart(met: pl.DataFrame, offset: Ints) -> pl.DataFrame:
    """By how much each end comes before the middle end of its meeting."""
    told = met.with_columns(pl.Series("at", met["end"].to_numpy() + offset[met["rank"].to_numpy()]))
    base = pl.col("at").min().over("meeting")  # small numbers keep every nanosecond in a float
    return told.with_columns(
        ((pl.col("at") - base).median().over("meeting") - (pl.col("at") - base)).alias("apart")
    )


def _drifts(
    met: pl.DataFrame, offset: Ints, ranks: int
) -> tuple[npt.NDArray[np.float64], Ints, Ints]:
    """Drift of each rank against the others where the recording is long enough to show one.

    With it, since when it counts and what to add to the offset at that instant.
    """
    drift, since = np.zeros(ranks), np.zeros(ranks, dtype=np.int64)
    rest = np.zeros(ranks, dtype=np.int64)
    long = (pl.len() >= DRIFT_POINTS) & (
        pl.col("end").max() - pl.col("end").min() >= DRIFT_AFTER_NS
    )
    told = _apart(met, offset).filter(long.over("rank")).sort("rank", "end")
    for (code,), rows in told.group_by("rank", maintain_order=True):
        ends, apart = rows["end"].to_numpy(), rows["apart"].to_numpy()
        third = ends.size // 3
        run = np.median(ends[-third:] - ends[0]) - np.median(ends[:third] - ends[0])
        slope = (np.median(apart[-third:]) - np.median(apart[:third])) / run
        middle = int(ends[ends.size // 2])
        left = apart - slope * (ends - middle)
        if np.median(np.abs(left)) < 0.5 * np.median(np.abs(apart)):
            drift[int(str(code))], since[int(str(code))] = slope, middle
            rest[int(str(code))] = int(np.floor(np.median(left)))
    return drift, since, rest
