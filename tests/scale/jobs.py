"""Small jobs of many ranks for the engines, and what to compare of two diagnoses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from whyidle.diagnosis import Diagnosis

LATE_RANK = 3
LATE_US = 4_000.0
STEP_US = 10_000.0
STEPS = 4


def write_job(folder: Path, ranks: int, steps: int = STEPS) -> Path:
    """One trace per rank: each step an operator, a kernel and an all-reduce that ends on all ranks
    at once; LATE_RANK works LATE_US longer before it joins."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        text = json.dumps(trace(rank, ranks, steps=steps))
        (folder / f"job_rank{rank}.json").write_text(text, encoding="utf-8")
    return folder


def trace(rank: int, ranks: int, start_us: float = 1_000.0, steps: int = STEPS) -> dict[str, Any]:
    """The trace of one rank as torch.profiler writes it."""
    events: list[dict[str, Any]] = []
    for step in range(steps):
        at = start_us + step * STEP_US
        events += _step(rank, ranks, step, at)
    return {
        "schemaVersion": 1,
        "deviceProperties": [
            {"id": rank, "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "computeMinor": 0,
             "numSms": 108, "totalGlobalMem": 85_000_000_000}
        ],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": ranks},
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
        "traceEvents": events,
    }  # fmt: skip


def _step(rank: int, ranks: int, step: int, at: float) -> list[dict[str, Any]]:
    pid, work_us = 100 + rank, 3_000.0
    joins = at + 100 + work_us + (LATE_US if rank == LATE_RANK else 0.0)
    ends = at + 100 + work_us + LATE_US + 500
    number = 1000 * step + 1

    def host(cat: str, name: str, start: float, length: float, **args: Any) -> dict[str, Any]:
        return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": pid, "ts": start,
                "dur": length, "args": args}  # fmt: skip

    def device(name: str, start: float, length: float, stream: int, **args: Any) -> dict[str, Any]:
        place = {"device": rank, "stream": stream, **args}
        return {"ph": "X", "cat": "kernel", "name": name, "pid": rank, "tid": stream, "ts": start,
                "dur": length, "args": place}  # fmt: skip

    late = joins - at - 100 - work_us
    ranked = {"Process Group Name": "0", "Group size": ranks,
              "Process Group Ranks": str(list(range(ranks))),
              "Collective name": "allreduce", "In msg nelems": 1 << 20}  # fmt: skip
    grid = {"grid": [1080, 1, 1], "block": [256, 1, 1]}
    events = [
        host("user_annotation", f"ProfilerStep#{step}", at, STEP_US - 1),
        host("cpu_op", "aten::mm", at + 10, 40, **{"External id": number}),
        host("cuda_runtime", "cudaLaunchKernel", at + 20, 10, correlation=number),
        device("ampere_sgemm_128x64_nn", at + 100, work_us, 7, correlation=number, **grid),
        host("cpu_op", "c10d::allreduce_", joins - 60, 50, **{"External id": number + 1}),
        host("cpu_op", "record_param_comms", joins - 55, 40, **ranked),
        host("user_annotation", "nccl:all_reduce", joins - 50, 35),
        host("cuda_runtime", "cudaLaunchKernelExC", joins - 40, 10, correlation=number + 1),
        device("ncclDevKernel_AllReduce_Sum_f32_RING_LL", joins, ends - joins, 20,
               correlation=number + 1, **ranked),
    ]  # fmt: skip
    if late:
        events.append(host("cpu_op", "aten::_unique2", at + 60, late + work_us - 100))
    return events


def seconds(diagnosis: Diagnosis) -> dict[str, Any]:
    """Everything of a diagnosis that may not depend on how the ranks were batched."""
    return {
        "devices": [
            (d.rank, d.device, d.wall_s, d.compute_s, d.communication_s, d.empty_s, d.lost_s)
            for d in diagnosis.devices
        ],
        "ledger": sorted((str(r.rank), r.cause, r.state, r.lost_s) for r in diagnosis.ledger),
        "findings": [(f.cause, f.lost_s, f.level) for f in diagnosis.findings],
        "sources": [(s.path, s.rank, s.events) for s in diagnosis.sources],
        "window": diagnosis.window,
    }
