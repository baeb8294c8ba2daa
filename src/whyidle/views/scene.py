"""What the rules of blame look at, on one axis."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from whyidle.intervals import Index, Intervals
from whyidle.views import names
from whyidle.views.gaps import Pieces
from whyidle.views.host import Host
from whyidle.views.states import States

NS = np.int64


@dataclass(frozen=True)
class Scene:
    """What the rules look at: the device states, the host, the pieces, and where steps begin."""

    states: States
    host: Host
    pieces: Pieces
    activity: pl.DataFrame
    marks: pl.DataFrame
    sampled: bool = False

    def rank_code(self, ranks: pl.Series) -> npt.NDArray[np.int64]:
        """Ranks as integers, an unknown rank as -1."""
        return ranks.fill_null(-1).to_numpy().astype(NS)

    def host_positions(self, index: Index, window: int) -> Intervals:
        """Host spans as positions on the device axis of one window, cut to it."""
        nest = self.host.nest
        thread = nest.thread[index]
        room = self.states.windows.row(window, named=True)
        low, high = room["start_ns"], room["end_ns"]
        start = np.clip(nest.axis.take(nest.start[index], thread), low, high)
        end = np.clip(nest.axis.take(nest.end[index], thread), low, high)
        group = np.full(index.size, window)
        return self.states.axis.put(group, start), self.states.axis.put(group, end)

    def mark_positions(self, window: int) -> Intervals:
        """Steps of a window's rank as positions on the device axis, in order, cut to it."""
        room = self.states.windows.row(window, named=True)
        here = pl.col("rank").eq_missing(room["rank"]) & (pl.col("source") == room["source"])
        mine = self.marks.filter(here).sort("start_ns")
        group = np.full(mine.height, window)
        edges = [
            np.clip(mine[name].to_numpy(), room["start_ns"], room["end_ns"])
            for name in ("start_ns", "end_ns")
        ]
        return self.states.axis.put(group, edges[0]), self.states.axis.put(group, edges[1])

    def of_rank(self, index: Index, window: int) -> Index:
        """Those host spans that belong to the rank of a window, in the same source."""
        room = self.states.windows.row(window, named=True)
        spans = self.host.nest.spans
        ranks = self.rank_code(spans["rank"])[index] == (
            -1 if room["rank"] is None else room["rank"]
        )
        return np.asarray(index[ranks & (spans["source"].to_numpy()[index] == room["source"])])

    def spans_named(self, kind: str, rule: re.Pattern[str]) -> Index:
        """Host spans of a kind whose name matches."""
        spans = self.host.nest.spans
        hit = (spans["kind"] == kind) & names.matching(spans["name"], rule.search)
        return np.flatnonzero(hit.to_numpy())
