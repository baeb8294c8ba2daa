"""A trace and a snapshot of one process: the seconds get the line that asked for the memory."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from whyidle.causes.memory import allocator_pressure
from whyidle.diagnose import diagnose
from whyidle.diagnosis import Finding
from whyidle.model import ALLOCATIONS, Evidence, frame


def told(evidence: Evidence) -> Finding:
    (found,) = (f for f in diagnose(evidence).findings if f.cause == "memory.allocator_pressure")
    return found


def with_history(shift_ns: int = 0) -> tuple[Evidence, float]:
    """The cause's own run, and a history in which line 71 asked for each new segment."""
    evidence, planted_s = allocator_pressure.example()
    calls = evidence.table("spans").filter(pl.col("name") == "cudaMalloc")
    rows = [
        {
            "source": 1, "event": i, "rank": 0, "device": 0, "action": "segment_alloc",
            "t_ns": (end - 2_000) // 1000 * 1000 + shift_ns, "address": i << 30, "bytes": 1 << 20,
            "stack": "torch/functional.py(9): cat\ntrain.py(71): step",
        }
        for i, end in enumerate(calls["end_ns"].to_list())
    ]  # fmt: skip
    tables = {**evidence.tables, "allocations": frame(ALLOCATIONS, rows)}
    source = replace(evidence.sources[0], path="snapshot.pickle")
    return Evidence(tables, evidence.facts, (*evidence.sources, source)), planted_s


def test_the_driver_calls_of_a_trace_get_their_line_from_the_snapshot() -> None:
    evidence, planted_s = with_history()
    before = told(allocator_pressure.example()[0])
    assert {place.file for place in before.where} == {None}
    found = told(evidence)
    assert abs(found.lost_s - planted_s) < 0.01 * planted_s
    lines = {(place.file, place.line): place.lost_s for place in found.where}
    assert abs(lines["train.py", 71] - 4 * 180e-6) < 1e-9


def test_events_far_from_the_calls_explain_nothing() -> None:
    evidence, _ = with_history(shift_ns=5_000_000_000)
    assert {place.file for place in told(evidence).where} == {None}
