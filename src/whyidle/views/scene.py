"""What the rules of blame look at, on one axis."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import polars as pl

from whyidle.intervals import Index, Intervals, Ints, expand
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

    def in_windows(self, index: Index) -> tuple[Index, Index]:
        """Pairs (host span, window): each span with every window of its rank and source.

        In order of window, then as in ``index``. A rank with several devices has several windows.
        """
        return _matched(self._span_keys[index], index, self._window_keys)

    def host_positions(self, index: Index, window: Index) -> Intervals:
        """Host spans as positions on the device axis, each cut to the window beside it."""
        nest = self.host.nest
        thread = nest.thread[index]
        low, high = self._rooms[0][window], self._rooms[1][window]
        start = np.clip(nest.axis.take(nest.start[index], thread), low, high)
        end = np.clip(nest.axis.take(nest.end[index], thread), low, high)
        return self.states.axis.put(window, start), self.states.axis.put(window, end)

    @cached_property
    def mark_positions(self) -> tuple[Index, Ints, Ints]:
        """(window, start, end) of the steps of every window's rank, as positions cut to it.

        In order of window and of the step's start.
        """
        marks = self.marks.sort("start_ns")
        keys = self._keys(marks["rank"], marks["source"])
        at, window = _matched(keys, np.arange(marks.height), self._window_keys)
        low, high = self._rooms[0][window], self._rooms[1][window]
        edges = [np.clip(marks[n].to_numpy()[at], low, high) for n in ("start_ns", "end_ns")]
        put = self.states.axis.put
        return window, put(window, edges[0]), put(window, edges[1])

    @cached_property
    def _rooms(self) -> Intervals:
        """First and last instant of every window."""
        windows = self.states.windows
        return windows["start_ns"].to_numpy(), windows["end_ns"].to_numpy()

    @cached_property
    def _span_keys(self) -> Ints:
        spans = self.host.nest.spans
        return self._keys(spans["rank"], spans["source"])

    @cached_property
    def _window_keys(self) -> Ints:
        windows = self.states.windows
        return self._keys(windows["rank"], windows["source"])

    def _keys(self, ranks: pl.Series, sources: pl.Series) -> Ints:
        """One integer per (rank, source)."""
        found: Ints = (self.rank_code(ranks) << 16) + sources.fill_null(0).to_numpy().astype(NS)
        return found

    @cached_property
    def ranks(self) -> tuple[Index, Index, Index]:
        """A number from 0 for the rank of every host span, of every window and of every step."""
        tables = (self.host.nest.spans, self.states.windows, self.marks)
        codes = [self.rank_code(table["rank"]) for table in tables]
        _, number = np.unique(np.concatenate(codes), return_inverse=True)
        spans, windows, marks = np.split(number, np.cumsum([code.size for code in codes])[:-1])
        return spans, windows, marks

    def spans_named(self, kind: str, rule: re.Pattern[str]) -> Index:
        """Host spans of a kind whose name matches."""
        spans = self.host.nest.spans
        hit = (spans["kind"] == kind) & names.matching(spans["name"], rule.search)
        return np.flatnonzero(hit.to_numpy())


def _matched(keys: Ints, index: Index, window_keys: Ints) -> tuple[Index, Index]:
    """Pairs (index, window) of equal keys, in order of window, then as in ``index``."""
    order = np.argsort(keys, kind="stable")
    first = np.searchsorted(keys[order], window_keys, side="left")
    count = np.searchsorted(keys[order], window_keys, side="right") - first
    window = np.repeat(np.arange(window_keys.size), count)
    return index[order[expand(first, count)]], window
