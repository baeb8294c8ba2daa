"""Union, subtract, intersect and gaps of half-open intervals; written once.

Everything works on one int64 axis. Intervals of different devices, ranks or threads are put on it
side by side by ``Axis``, so that one vectorised pass serves all groups and groups never touch.
A *set* of intervals is two arrays (start, end), sorted, disjoint, none empty.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from whyidle.errors import Bug

Ints = npt.NDArray[np.int64]
Index = npt.NDArray[np.integer[Any]]
Intervals = tuple[Ints, Ints]

_LIMIT = 2**62


class Axis:
    """Lays groups side by side on one axis.

    ``low`` and ``high`` give, per group code 0..G-1, the first and last instant in ns that may
    occur. Raises Bug when all groups together exceed the range of int64 (292 years).
    """

    def __init__(self, low: Ints, high: Ints) -> None:
        """Reserve room for every group, with one ns between neighbours."""
        lengths = [int(h) - int(lo) + 2 for lo, h in zip(low, high, strict=True)]
        if sum(lengths) > _LIMIT:
            raise Bug("the instants of this evidence span more than an int64 of nanoseconds")
        first = np.concatenate([[0], np.cumsum(np.array(lengths, dtype=np.int64))])
        self._shift = first[:-1].astype(np.int64) - np.asarray(low, dtype=np.int64)
        self._first = first[:-1].astype(np.int64)

    def put(self, group: Index, instant_ns: Ints) -> Ints:
        """Instants of groups -> positions on the axis."""
        return np.asarray(instant_ns + self._shift[group])

    def group_of(self, position: Ints) -> Index:
        """The group whose room holds each position."""
        return np.searchsorted(self._first, position, side="right") - 1

    def take(self, position: Ints, group: Index) -> Ints:
        """Positions -> instants in ns of their groups."""
        return np.asarray(position - self._shift[group])


def union(start: Ints, end: Ints) -> Intervals:
    """The set covered by any of the intervals; touching intervals become one."""
    keep = end > start
    start, end = start[keep], end[keep]
    if start.size == 0:
        return start, end
    if np.any(start[1:] < start[:-1]):
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.concatenate([[True], start[1:] > reach[:-1]])
    last = np.concatenate([np.flatnonzero(first)[1:] - 1, [start.size - 1]])
    return start[first], reach[last]


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """The part of set ``a`` outside set ``b``."""
    low = min(_first(a), _first(b))
    high = max(_last(a), _last(b))
    if a[0].size == 0 or b[0].size == 0:
        return a
    outside = (np.concatenate([[low], b[1]]), np.concatenate([b[0], [high]]))
    full = outside[1] > outside[0]
    return intersect(a, (outside[0][full], outside[1][full]))


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """The part of set ``a`` inside set ``b``."""
    left, right = pairs(a, b)
    return np.maximum(a[0][left], b[0][right]), np.minimum(a[1][left], b[1][right])


def pairs(a: Intervals, b: Intervals) -> tuple[Index, Index]:
    """Indices (i, j) of every overlap of interval a[i] with b[j].

    ``b`` is sorted and disjoint (a set); ``a`` may be any list of intervals. Pairs come in the
    order of a, then of b. Empty intervals overlap nothing.
    """
    first = np.searchsorted(b[1], a[0], side="right")
    stop = np.searchsorted(b[0], a[1], side="left")
    count = np.where(a[1] > a[0], np.maximum(stop - first, 0), 0)
    left = np.repeat(np.arange(a[0].size), count)
    return left, expand(first, count)


def expand(first: Index, count: Index) -> Index:
    """first[i], first[i]+1, .. of length count[i], one run after another."""
    total = int(count.sum())
    if total == 0:
        return np.zeros(0, dtype=np.intp)
    jump = np.repeat(first - np.concatenate([[0], np.cumsum(count)[:-1]]), count)
    return np.asarray(np.arange(total) + jump)


def length(a: Intervals) -> int:
    """Nanoseconds in the set."""
    return int((a[1] - a[0]).sum())


def covered(points: Ints, a: Intervals) -> npt.NDArray[np.bool_]:
    """Whether each position lies inside the set."""
    if a[0].size == 0:
        return np.zeros(points.shape, dtype=bool)
    index = np.searchsorted(a[0], points, side="right") - 1
    return np.asarray((index >= 0) & (points < a[1][np.maximum(index, 0)]))


def overlap_ns(start: Ints, end: Ints, a: Intervals) -> Ints:
    """Nanoseconds of each interval that lie inside the set ``a``."""
    total = np.concatenate([[0], np.cumsum(a[1] - a[0])])

    def below(position: Ints) -> Ints:
        index = np.searchsorted(a[0], position, side="right")
        before = np.maximum(index - 1, 0)
        inside = np.where(index > 0, np.minimum(position, _at(a[1], before)) - _at(a[0], before), 0)
        return np.asarray(total[before] + np.maximum(inside, 0))

    if a[0].size == 0:
        return np.zeros(start.shape, dtype=np.int64)
    return np.asarray(np.maximum(below(np.maximum(end, start)) - below(start), 0))


def _at(values: Ints, index: Index) -> Ints:
    return np.asarray(values[np.minimum(index, values.size - 1)])


def _first(a: Intervals) -> int:
    return int(a[0][0]) if a[0].size else _LIMIT


def _last(a: Intervals) -> int:
    return int(a[1][-1]) if a[1].size else -_LIMIT
