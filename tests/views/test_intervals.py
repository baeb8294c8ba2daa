"""Interval verbs against counting nanosecond by nanosecond."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whyidle import intervals
from whyidle.errors import Bug

SPAN = 60
some_intervals = st.lists(
    st.tuples(st.integers(0, SPAN), st.integers(0, SPAN)).map(sorted), max_size=12
)


def arrays(found: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    pairs = np.array(found, dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def instants(found: tuple[np.ndarray, np.ndarray]) -> set[int]:
    return {t for a, b in zip(*found, strict=True) for t in range(a, b)}


def is_a_set(found: tuple[np.ndarray, np.ndarray]) -> bool:
    start, end = found
    return bool(np.all(end > start) and np.all(start[1:] >= end[:-1]))


@given(some_intervals)
def test_union_covers_what_any_interval_covers(rows: list[list[int]]) -> None:
    found = intervals.union(*arrays(rows))
    assert instants(found) == instants(arrays(rows))
    assert is_a_set(found)
    assert np.all(found[0][1:] > found[1][:-1]), "touching intervals become one"


@given(some_intervals, some_intervals)
def test_subtract_and_intersect_are_set_difference_and_intersection(
    left: list[list[int]], right: list[list[int]]
) -> None:
    a, b = intervals.union(*arrays(left)), intervals.union(*arrays(right))
    assert instants(intervals.subtract(a, b)) == instants(a) - instants(b)
    assert instants(intervals.intersect(a, b)) == instants(a) & instants(b)
    assert is_a_set(intervals.subtract(a, b))
    assert is_a_set(intervals.intersect(a, b))


@given(some_intervals, some_intervals)
def test_overlap_and_covered_count_instants(left: list[list[int]], right: list[list[int]]) -> None:
    start, end = arrays(left)
    area = intervals.union(*arrays(right))
    inside = instants(area)
    expected = [len(inside & set(range(a, b))) for a, b in left]
    assert intervals.overlap_ns(start, end, area).tolist() == expected
    points = np.arange(SPAN + 1)
    assert intervals.covered(points, area).tolist() == [t in inside for t in range(SPAN + 1)]


@given(some_intervals, some_intervals)
def test_pairs_names_every_overlap_once(left: list[list[int]], right: list[list[int]]) -> None:
    a, b = arrays(left), intervals.union(*arrays(right))
    found = set(zip(*(side.tolist() for side in intervals.pairs(a, b)), strict=True))
    expected = {
        (i, j)
        for i in range(a[0].size)
        for j in range(b[0].size)
        if max(a[0][i], b[0][j]) < min(a[1][i], b[1][j])
    }
    assert found == expected


def test_groups_on_an_axis_never_touch_and_come_back_unchanged() -> None:
    low, high = np.array([10**18, 5, -7]), np.array([10**18 + 9, 5, 100])
    axis = intervals.Axis(low, high)
    group = np.array([0, 0, 1, 2, 2])
    instant = np.array([10**18, 10**18 + 9, 5, -7, 100])
    position = axis.put(group, instant)
    assert np.all(np.diff(position) > 0)
    assert axis.group_of(position).tolist() == group.tolist()
    assert axis.take(position, group).tolist() == instant.tolist()


def test_an_axis_longer_than_int64_is_refused() -> None:
    with pytest.raises(Bug, match="int64"):
        intervals.Axis(np.array([0, 0]), np.array([2**62, 2**62]))
