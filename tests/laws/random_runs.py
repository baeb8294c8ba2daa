"""Small random runs: overlapping device work, nested host work, launches, ranks and steps."""

from __future__ import annotations

from typing import Any

import polars as pl
from hypothesis import strategies as st

from whyidle.model import SPANS, THREADS, Evidence, Facts, SourceInfo, evidence_of, frame

LONGEST_NS = 400_000
STEP_NS = 1_000
"""Instants are multiples of this, so that spans often touch and coincide."""

DEVICE_WORK = (
    ("kernel", "ampere_sgemm_128x64_nn"),
    ("kernel", "void at::native::vectorized_elementwise_kernel<4, float>"),
    ("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
    ("copy", "Memcpy HtoD (Pageable -> Device)"),
    ("copy", "Memcpy DtoH (Device -> Pageable)"),
    ("set", "Memset (Device)"),
)
HOST_WORK = (
    ("op", "aten::mm"),
    ("op", "aten::item"),
    ("op", "autograd::engine::evaluate_function: MmBackward0"),
    ("op", "c10d::allreduce_"),
    ("annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"),
    ("annotation", "Optimizer.step#SGD.step"),
    ("annotation", "validation"),
    ("python", "train.py(12): step"),
    ("python", "torch/serialization.py(700): save"),
    ("runtime", "cudaDeviceSynchronize"),
    ("runtime", "cudaMalloc"),
    ("runtime", "cudaMemcpyAsync"),
    ("overhead", "Lazy Function Loading"),
)


@st.composite
def _interval(draw: st.DrawFn, *, shortest: int = 0) -> tuple[int, int]:
    start = draw(st.integers(0, LONGEST_NS // STEP_NS - 1))
    length = draw(st.integers(shortest, 80))
    return start * STEP_NS, (start + length) * STEP_NS


@st.composite
def _device_work(draw: st.DrawFn, rank: int | None, number: int) -> list[dict[str, Any]]:
    """One piece of device work, most often with the call that launched it."""
    start, end = draw(_interval())
    kind, name = draw(st.sampled_from(DEVICE_WORK))
    row: dict[str, Any] = {
        "rank": rank, "kind": kind, "name": name, "device": draw(st.integers(0, 1)),
        "lane": draw(st.integers(7, 8)), "start_ns": start, "end_ns": end,
        "blocks": draw(st.sampled_from([None, 1, 4096])), "correlation": number,
        "bytes": draw(st.sampled_from([None, 4, 10**7])),
    }  # fmt: skip
    if draw(st.integers(0, 3)) == 0:
        return [row]
    before = draw(st.integers(0, 60)) * STEP_NS
    call = {
        "rank": rank, "kind": "runtime", "name": "cudaLaunchKernel", "correlation": number,
        "thread": draw(st.integers(0, 1)), "start_ns": start - before,
        "end_ns": start - before + draw(st.integers(0, 20)) * STEP_NS,
    }  # fmt: skip
    return [row, call]


@st.composite
def _host_work(draw: st.DrawFn, rank: int | None) -> dict[str, Any]:
    start, end = draw(_interval(shortest=1))
    kind, name = draw(st.sampled_from(HOST_WORK))
    thread = draw(st.integers(0, 1))
    return {
        "rank": rank, "kind": kind, "name": name, "thread": thread,
        "start_ns": start, "end_ns": end,
    }  # fmt: skip


def _steps(rank: int | None, count: int) -> list[dict[str, Any]]:
    length = LONGEST_NS // max(count, 1) // STEP_NS * STEP_NS
    return [
        {
            "rank": rank, "kind": "annotation", "name": f"ProfilerStep#{n}", "thread": 0,
            "start_ns": n * length, "end_ns": (n + 1) * length,
        }
        for n in range(count)
    ]  # fmt: skip


@st.composite
def runs(draw: st.DrawFn) -> Evidence:
    """Evidence of one or two ranks, or of one that did not say its rank."""
    ranks: list[int | None] = draw(st.sampled_from([[None], [0], [0, 1]]))
    rows: list[dict[str, Any]] = []
    for rank in ranks:
        own: list[dict[str, Any]] = []
        for number in range(draw(st.integers(1, 8))):
            own += draw(_device_work(rank, number + 1))
        own += draw(st.lists(_host_work(rank), max_size=8))
        own += _steps(rank, draw(st.integers(0, 4)))
        shift = 2 * ranks.index(rank)
        source = {"source": ranks.index(rank)}
        rows += [row | source | _moved(row, shift) for row in own]
    return _evidence(rows, ranks)


def _moved(row: dict[str, Any], shift: int) -> dict[str, int]:
    """Threads are numbered through the whole run: each rank has two of its own."""
    return {"thread": row["thread"] + shift} if "thread" in row else {}


def _evidence(rows: list[dict[str, Any]], ranks: list[int | None]) -> Evidence:
    spans = evidence_of(rows, Facts()).table("spans")
    threads = frame(
        THREADS,
        {
            "thread": list(range(2 * len(ranks))),
            "rank": [rank for rank in ranks for _ in range(2)],
            "process": ["1"] * 2 * len(ranks),
            "name": ["main", "other"] * len(ranks),
        },
    )
    sources = tuple(SourceInfo(path=str(r), reader="random", rank=r, events=1) for r in ranks)
    return Evidence({"spans": spans, "threads": threads}, Facts(), sources)


def split(evidence: Evidence, at_ns: int) -> Evidence:
    """The same run whose device work is written as two spans where it contains ``at_ns``."""
    spans = evidence.table("spans")
    cut = pl.col("device").is_not_null() & (pl.col("start_ns") < at_ns) & (pl.col("end_ns") > at_ns)
    parts = [
        spans.filter(~cut),
        spans.filter(cut).with_columns(pl.lit(at_ns).cast(SPANS["end_ns"]).alias("end_ns")),
        spans.filter(cut).with_columns(pl.lit(at_ns).cast(SPANS["start_ns"]).alias("start_ns")),
    ]
    whole = pl.concat(parts).sort("start_ns", "end_ns", descending=[False, True])
    whole = whole.with_columns(pl.int_range(pl.len(), dtype=pl.UInt32).alias("row"))
    return Evidence({**evidence.tables, "spans": whole}, evidence.facts, evidence.sources)
