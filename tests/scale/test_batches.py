"""What is said of a rank does not depend on the ranks that are judged with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.scale.jobs import STEP_US, STEPS, trace
from whyidle.diagnose import diagnose
from whyidle.executor import diagnose_files
from whyidle.readers import read

LOOPED = "small_work.python_loop_unvectorised"
CALLS = 400
"""Indexing operators per step on the rank that loops; the rule asks for 300 per step of a rank."""


def test_a_loop_on_one_rank_is_found_among_ranks_without(tmp_path: Path) -> None:
    for rank in range(3):
        found = trace(rank, 3)
        if rank == 1:
            found["traceEvents"] += _looping(rank)
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    (alone,) = _lost(tmp_path / "rank1.json")
    assert alone > 0
    assert _lost(tmp_path) == [alone]
    apart = diagnose_files([tmp_path], jobs=3)
    assert [row.lost_s for row in apart.ledger if row.cause == LOOPED] == [alone]


def _lost(path: Path) -> list[float]:
    return [row.lost_s for row in diagnose(read([path])).ledger if row.cause == LOOPED]


def _looping(rank: int) -> list[dict[str, Any]]:
    """Tiny operators in each step after its kernels are done, then one that launches."""
    events: list[dict[str, Any]] = []
    for step in range(STEPS):
        at = 1_000.0 + step * STEP_US + 7_650
        host = {"ph": "X", "cat": "cpu_op", "pid": 100 + rank, "tid": 100 + rank, "dur": 4.0}
        events += [{**host, "name": "aten::select", "ts": at + 5 * i} for i in range(CALLS)]
        done, number = at + 5 * CALLS, 1000 * step + 9
        call = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": done + 5}
        place = {"pid": rank, "tid": 7, "cat": "kernel", "ts": done + 15, "dur": 20}
        events += [
            {**host, "name": "aten::add", "ts": done, "dur": 12.0},
            {**host, **call, "args": {"correlation": number}},
            {"ph": "X", "name": "elementwise_kernel", **place,
             "args": {"device": rank, "stream": 7, "correlation": number}},
        ]  # fmt: skip
    return events
