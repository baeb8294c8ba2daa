"""Nesting of host spans against asking, instant by instant, which span began last."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from whyidle.model import evidence_of
from whyidle.views.nest import holding, nest, partition

END = 50


@st.composite
def nested_spans(draw: st.DrawFn) -> list[dict[str, object]]:
    """Spans on two threads that nest properly, zero lengths included."""
    rows: list[dict[str, object]] = []

    def fill(low: int, high: int, thread: int, depth: int) -> None:
        at = low
        for _ in range(draw(st.integers(0, 3))):
            start = draw(st.integers(at, high))
            end = draw(st.integers(start, high))
            name = f"span{len(rows)}"
            rows.append(
                {"kind": "op", "name": name, "start_ns": start, "end_ns": end, "thread": thread}
            )
            if depth < 3 and end > start:
                fill(start, end, thread, depth + 1)
            at = end

    fill(0, END, 0, 0)
    fill(0, END, 1, 0)
    return rows


@given(nested_spans())
def test_the_innermost_span_is_the_one_that_began_last(rows: list[dict[str, object]]) -> None:
    found = nest(evidence_of(rows, threads=("a", "b")), 0, END)
    flat = partition(found)
    seen = {}
    for start, end, span in zip(flat.start, flat.end, flat.span, strict=True):
        thread = int(found.axis.group_of(np.array([start]))[0])
        first = int(found.axis.take(np.array([start]), np.array([thread]))[0])
        for offset in range(int(end - start)):
            assert (thread, first + offset) not in seen, "an instant is told once"
            seen[thread, first + offset] = int(span)
    lengths = {row["name"]: (row["start_ns"], row["end_ns"]) for row in rows}
    names = found.spans["name"].to_list()
    for thread in range(found.edges[0].size):
        for instant in range(END):
            around = [
                (start, -end)
                for row in rows
                if row["thread"] == thread
                for start, end in [(row["start_ns"], row["end_ns"])]
                if start <= instant < end
            ]
            span = seen[thread, instant]
            if not around:
                assert span == -1
            else:
                start, end = lengths[names[span]]
                assert (start, -end) == max(around)


def test_a_span_that_outlasts_the_one_it_began_in_is_cut_to_it() -> None:
    rows = [
        {"kind": "op", "name": "outer", "start_ns": 0, "end_ns": 10, "thread": 0},
        {"kind": "op", "name": "overhang", "start_ns": 5, "end_ns": 14, "thread": 0},
        {"kind": "op", "name": "next", "start_ns": 11, "end_ns": 20, "thread": 0},
    ]
    found = nest(evidence_of(rows), 0, 30)
    assert found.depth.tolist() == [0, 1, 0]
    assert found.parent.tolist() == [-1, 0, -1]
    assert (found.end - found.start).tolist() == [10, 5, 9]


def test_parents_and_rows_are_found_across_threads() -> None:
    rows = [
        {"kind": "op", "name": "b", "start_ns": 2, "end_ns": 4, "thread": 1},
        {"kind": "op", "name": "a", "start_ns": 0, "end_ns": 9, "thread": 0},
        {"kind": "runtime", "name": "c", "start_ns": 3, "end_ns": 4, "thread": 1},
    ]
    found = nest(evidence_of(rows, threads=("main", "autograd")), 0, 10)
    names = found.spans["name"].to_list()
    assert [names[i] for i in found.index_of(np.array([0, 1, 2], dtype=np.uint32))] == list("abc")
    assert names[found.parent[names.index("c")]] == "b"
    assert found.index_of(np.array([77], dtype=np.uint32)).tolist() == [-1]


def test_a_range_outlives_the_frames_that_opened_it() -> None:
    opened = [
        ("python", "train.py(9): main", 0, 100),
        ("python", "torch/autograd/profiler.py(735): __enter__", 10, 16),
        ("python", "torch/_ops.py(1267): __call__", 11, 15),
        ("python", "<built-in method _record_function_enter_new of PyCapsule object>", 11, 15),
        ("annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 12, 80),
        ("python", "dataset.py(5): __getitem__", 20, 70),
        ("python", "torch/autograd/profiler.py(742): __exit__", 78, 84),
    ]
    rows = [
        {"kind": kind, "name": name, "start_ns": start, "end_ns": end, "thread": 0}
        for kind, name, start, end in opened
    ]
    found = nest(evidence_of(rows), 0, 100)
    names = found.spans["name"].cast(str).to_list()
    range_ = next(i for i, name in enumerate(names) if name.startswith("enumerate"))
    assert int(found.end[range_] - found.start[range_]) == 68
    assert found.parent[names.index("dataset.py(5): __getitem__")] == range_


@given(nested_spans(), st.data())
def test_a_span_holds_those_that_lie_in_it_at_any_depth(
    rows: list[dict[str, object]], data: st.DataObject
) -> None:
    found = nest(evidence_of(rows, threads=("a", "b")), 0, END)
    mine = np.array([data.draw(st.booleans()) for _ in found.start], dtype=bool)
    expected = mine.copy()
    for index in np.flatnonzero(mine).tolist():
        above = int(found.parent[index])
        while above >= 0:
            expected[above] = True
            above = int(found.parent[above])
    assert holding(found, mine).tolist() == expected.tolist()
