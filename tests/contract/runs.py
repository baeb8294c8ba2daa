"""Runs whose truth is known, and changes to a run that must not change the answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl

from whyidle.diagnosis import Diagnosis
from whyidle.model import SPANS, DeviceInfo, Evidence, Facts, evidence_of, frame

Ranks = dict[int | None, int | None]

MS = 1_000_000
GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"
A100 = DeviceInfo(
    name="NVIDIA A100-SXM4-40GB", sms=108, vendor="nvidia", capability=(8, 0), threads_per_sm=2048
)


def clean(steps: int = 6, rank: int | None = 0) -> Evidence:
    """A run in which nothing is lost: the device multiplies matrices without a pause.

    The host runs 5 ms ahead of the device: a step's ten kernels of 1 ms are launched while the
    last half of the step before is still running, so that no wait of the host is ever felt.
    """
    rows = [_kernel(rank, 0, -1 * MS, 6 * MS), *_call(rank, 0, -2 * MS)]
    for step in range(steps):
        start = step * 10 * MS
        rows.append(_host(rank, "annotation", f"ProfilerStep#{step + 3}", start, 10 * MS))
        loader = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        rows.append(_host(rank, "annotation", loader, start + 1_000, 20_000))
        for i in range(10):
            number = 1 + step * 10 + i
            rows += _call(rank, number, start + 100_000 + i * 900_000)
            rows.append(_kernel(rank, number, start + 5 * MS + i * MS, 1 * MS))
    flags = {"with_stack": True, "record_shapes": True}
    return evidence_of(rows, Facts(devices={(rank, 0): A100}, flags=flags))


def _host(rank: int | None, kind: str, name: str, start_ns: int, ns: int) -> dict[str, Any]:
    return {
        "rank": rank, "kind": kind, "name": name, "thread": 0,
        "start_ns": start_ns, "end_ns": start_ns + ns,
    }  # fmt: skip


def _call(rank: int | None, number: int, start_ns: int) -> list[dict[str, Any]]:
    operator = _host(rank, "op", "aten::mm", start_ns, 60_000) | {
        "external": 1000 + number,
        "shapes": "[[4096, 4096], [4096, 4096]]",
        "types": '["c10::BFloat16", "c10::BFloat16"]',
        "stack": "train.py(20): step",
    }
    launch = _host(rank, "runtime", "cudaLaunchKernel", start_ns + 20_000, 10_000)
    return [operator, launch | {"correlation": number, "external": 1000 + number}]


def _kernel(rank: int | None, number: int, start_ns: int, ns: int) -> dict[str, Any]:
    return {
        "rank": rank, "device": 0, "lane": 7, "kind": "kernel", "name": GEMM,
        "start_ns": start_ns, "end_ns": start_ns + ns,
        "correlation": number, "external": 1000 + number,
        "blocks": 108 * 32, "block_threads": 256, "occupancy": 0.75,
    }  # fmt: skip


def shifted(evidence: Evidence, by_ns: int) -> Evidence:
    """The same run on a clock that shows ``by_ns`` more."""
    tables = dict(evidence.tables)
    instants = {
        "spans": ("start_ns", "end_ns"), "samples": ("t_ns",), "moments": ("start_ns", "end_ns"),
    }  # fmt: skip
    for name, columns in instants.items():
        if name in tables:
            tables[name] = tables[name].with_columns(pl.col(c) + by_ns for c in columns)
    return replace(evidence, tables=tables)


def relabelled(evidence: Evidence, ranks: Ranks) -> Evidence:
    """The same run with other rank numbers."""
    old = pl.Series(list(ranks), dtype=pl.Int32)
    new = pl.Series(list(ranks.values()), dtype=pl.Int32)
    tables = {
        name: table.with_columns(pl.col("rank").replace_strict(old, new))
        if "rank" in table.columns
        else table
        for name, table in evidence.tables.items()
    }
    devices = {(ranks[r], d): info for (r, d), info in evidence.facts.devices.items()}
    sources = tuple(
        replace(s, rank=ranks[s.rank]) if s.rank in ranks else s for s in evidence.sources
    )
    return Evidence(tables, replace(evidence.facts, devices=devices), sources)


def other_ranks(evidence: Evidence) -> Ranks:
    """A relabelling that also turns the order of the ranks round."""
    spans = evidence.table("spans")["rank"].to_list()
    known = {*spans, *(rank for rank, _ in evidence.facts.devices)}
    return {rank: None if rank is None else 100 - rank for rank in known}


def bare(evidence: Evidence) -> Evidence:
    """The same run of which only the names and times of device work were ever recorded."""
    kept = (
        "row",
        "source",
        "event",
        "rank",
        "device",
        "lane",
        "kind",
        "name",
        "start_ns",
        "end_ns",
    )
    work = evidence.table("spans").filter(pl.col("device").is_not_null()).select(kept)
    return Evidence({"spans": frame(SPANS, work)}, sources=evidence.sources)


Key = tuple[int | None, int | str, str, str]


def seconds(diagnosis: Diagnosis, ranks: Ranks | None = None) -> dict[Key, float]:
    """Seconds lost by (rank, device, cause, state), with the ranks renamed."""
    found: dict[Key, float] = {}
    for row in diagnosis.ledger:
        rank = ranks[row.rank] if ranks else row.rank
        key = (rank, row.device, row.cause, row.state)
        found[key] = found.get(key, 0.0) + row.lost_s
    return found
