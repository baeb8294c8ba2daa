"""How host spans nest: each span's parent, depth, and which span is innermost at each instant.

Spans of one thread should nest, but rounding to microseconds and annotations that outlive their
scope make some overlap partly; a span that outlasts the one it began in is cut to that one's end.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import polars as pl

from whyidle.intervals import Axis, Index, Intervals, Ints
from whyidle.model import HOST_KINDS, Evidence


@dataclass(frozen=True)
class Nest:
    """The host spans in order of (thread, start, longest first), as parallel arrays.

    spans: row, source, rank, thread, kind, name and stack of each; ``row`` leads to the rest.
    start, end: positions on ``axis`` (threads side by side), end cut to the parent's end.
    parent: index of the enclosing span, -1 at the top. depth: 0 at the top.
    levels: indices of each depth, outermost first. edges: first and last position per thread.
    """

    spans: pl.DataFrame
    axis: Axis
    thread: npt.NDArray[np.uint32]
    start: Ints
    end: Ints
    parent: Index
    depth: npt.NDArray[np.int32]
    levels: tuple[Index, ...]
    edges: Intervals

    def index_of(self, rows: npt.NDArray[np.uint32]) -> Index:
        """Positions of span rows in the nest; -1 for rows that are not host spans in it."""
        known = rows < self._places.size
        return np.where(known, self._places[np.where(known, rows, 0)], -1).astype(np.intp)

    @cached_property
    def _places(self) -> npt.NDArray[np.int32]:
        """Position in the nest by row, -1 for rows that are not in it; rows count from 0."""
        own = self.spans["row"].to_numpy()
        places = np.full(int(own.max(initial=0)) + 1, -1, dtype=np.int32)
        places[own] = np.arange(own.size)
        return places


def nest(evidence: Evidence, low_ns: int, high_ns: int) -> Nest:
    """Nest the host spans that touch [low_ns, high_ns), cut to it."""
    spans = evidence.table("spans").filter(
        pl.col("kind").is_in(HOST_KINDS)
        & pl.col("thread").is_not_null()
        & (pl.col("end_ns") >= low_ns)
        & (pl.col("start_ns") < high_ns)
    )
    spans = spans.select(
        "row", "source", "rank", "thread", "kind", "name", "stack",
        pl.col("start_ns").clip(lower_bound=low_ns), pl.col("end_ns").clip(upper_bound=high_ns),
    )  # fmt: skip
    spans = _by_thread(spans, low_ns)
    thread = spans["thread"].to_numpy().astype(np.uint32)
    every = evidence.table("spans")["thread"].drop_nulls().to_numpy()
    threads = int(every.max()) + 1 if every.size else 0
    axis = Axis(np.full(threads, low_ns), np.full(threads, high_ns))
    room = np.arange(threads)
    edges = axis.put(room, np.full(threads, low_ns)), axis.put(room, np.full(threads, high_ns))
    start = axis.put(thread, spans["start_ns"].to_numpy())
    end = axis.put(thread, spans["end_ns"].to_numpy())
    end = _freed(spans, start, end)
    parent, depth, levels, end = _levels(start, end)
    spans = spans.drop("start_ns", "end_ns")
    return Nest(spans, axis, thread, start, end, parent, depth, levels, edges)


def _by_thread(spans: pl.DataFrame, low_ns: int) -> pl.DataFrame:
    """In order of thread and start, longest first; ``low_ns`` is the earliest start.

    Spans come in order of their start, longest first, but for those that were cut to ``low_ns``.
    """
    thread, start, end = (spans[c].to_numpy() for c in ("thread", "start_ns", "end_ns"))
    later, same = start[1:] > start[:-1], start[1:] == start[:-1]
    if not np.all(later | (same & (end[1:] <= end[:-1])) | (start[1:] == low_ns)):
        keys = ["thread", "start_ns", "end_ns"]
        return spans.sort(keys, descending=[False, False, True], maintain_order=True)
    few = thread.size == 0 or int(thread.max()) < 1 << 16
    order = np.argsort(thread.astype(np.uint16) if few else thread, kind="stable")
    cut = np.flatnonzero(start[order] == low_ns)
    rows = order[cut]
    order[cut] = rows[np.lexsort((-end[rows], thread[rows]))]
    return spans[order]


def _freed(spans: pl.DataFrame, start: Ints, end: Ints) -> Ints:
    """Ends of spans, with the frames that open a recorded range ended where the range begins.

    A range begins inside the calls of ``__enter__`` and outlasts them; as they stand, those
    frames would cut every range of a trace with stacks to nothing.
    """
    ranged = (spans["kind"] == "annotation").to_numpy()
    framed = (spans["kind"] == "python").to_numpy()
    if not ranged.any() or not framed.any():
        return end
    parent, _, _, cut = _levels(start, end)
    freed = end.copy()
    for index in np.flatnonzero(ranged & (cut < end)).tolist():
        above = int(parent[index])
        while above >= 0 and framed[above] and end[above] < end[index]:
            freed[above] = min(int(freed[above]), int(start[index]))
            above = int(parent[above])
    return freed


def _levels(start: Ints, end: Ints) -> tuple[Index, npt.NDArray[np.int32], tuple[Index, ...], Ints]:
    """Peel the outermost spans off, level by level; see Nest for what comes back."""
    count = start.size
    parent = np.full(count, -1, dtype=np.intp)
    depth = np.zeros(count, dtype=np.int32)
    end = end.copy()
    rest = np.arange(count)
    above = rest[:0]
    levels: list[Index] = []
    while rest.size:
        if levels:
            holder = above[np.searchsorted(start[above], start[rest], side="right") - 1]
            parent[rest] = holder
            end[rest] = np.minimum(end[rest], end[holder])
        top = _outermost(start[rest], end[rest])
        depth[rest] = len(levels)
        above = rest[top]
        levels.append(above)
        rest = rest[~top]
    return parent, depth, tuple(levels), end


def _outermost(start: Ints, end: Ints) -> npt.NDArray[np.bool_]:
    """Which spans begin outside every outermost span before them."""
    reach = np.maximum.accumulate(end)
    top = np.concatenate([[True], start[1:] >= reach[:-1]])
    while True:
        # a span that only partly overlaps an outermost one must not hide what follows it
        holders = np.flatnonzero(top)
        holder = holders[np.cumsum(top) - 1]
        cut = np.minimum(end, np.maximum(end[holder], start))
        reach = np.maximum.accumulate(cut)
        again = np.concatenate([[True], start[1:] >= reach[:-1]])
        if np.array_equal(again, top):
            return top
        top = again


def nearest(nested: Nest, mine: npt.NDArray[np.bool_]) -> Index:
    """Per span the innermost span around it (or itself) for which ``mine`` holds, else -1."""
    found = np.full(nested.start.size, -1, dtype=np.intp)
    for depth, level in enumerate(nested.levels):
        above = found[nested.parent[level]] if depth else np.full(level.size, -1, dtype=np.intp)
        found[level] = np.where(mine[level], level, above)
    return found


def inside(nested: Nest, mine: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Whether each span lies in one of ``mine`` or is one."""
    found = mine.copy()
    for level in nested.levels[1:]:
        found[level] |= found[nested.parent[level]]
    return found


def holding(nested: Nest, mine: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Whether each span holds one of ``mine``, at any depth, or is one."""
    found = mine.copy()
    for level in nested.levels[:0:-1]:  # innermost first
        found[nested.parent[level[found[level]]]] = True
    return found


@dataclass(frozen=True)
class Partition:
    """Every instant of every thread: [start, end) on the nest's axis -> innermost span.

    Sorted and disjoint; ``span`` is an index into the nest, -1 where nothing was recorded.
    """

    start: Ints
    end: Ints
    span: Index


def partition(nested: Nest) -> Partition:
    """Flatten the nest; holes lie between the first and last instant of all threads."""
    full = np.flatnonzero(nested.end > nested.start)
    position = np.concatenate([nested.edges[0], nested.start[full], nested.end[full]])
    none = np.full(nested.edges[0].size, -1, dtype=np.int32)
    depth = nested.depth[full]
    # at one instant: the thread's own start, ends (deeper first), starts (shallower first)
    tie = np.concatenate([none - 2 * _DEEPEST, depth + _DEEPEST, -depth])
    order = np.lexsort((tie, position))
    del tie, depth
    start = position[order]
    del position
    after = np.concatenate([none, full.astype(np.int32), nested.parent[full].astype(np.int32)])
    after = after[order]
    del order, full
    rooms = nested.edges[1][nested.axis.group_of(start)]
    stop = np.minimum(np.concatenate([start[1:], nested.edges[1][-1:]]), rooms)
    keep = stop > start
    return Partition(start[keep], stop[keep], after[keep])


_DEEPEST = 1_000_000
