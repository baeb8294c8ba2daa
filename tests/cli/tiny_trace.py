"""A PyTorch profiler trace of a few events, written by hand, for tests of the command line.

Two steps of 10 ms. In each, the main thread waits 6 ms in the loader and launches one kernel that
runs for 3.9 ms, so the device is empty for most of the loader's wait.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

STEP_US = 10_000
WAIT_US = 6_000
KERNEL_US = 3_900


def events(steps: int = 4) -> list[dict[str, Any]]:
    """The trace's complete events, times in microseconds."""
    rows: list[dict[str, Any]] = []
    for number in range(steps):
        start = 1_000_000 + number * STEP_US
        rows += [
            _event("user_annotation", f"ProfilerStep#{number}", start, STEP_US),
            _event(
                "user_annotation",
                "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
                start + 10,
                WAIT_US,
            ),
            _event("cpu_op", "aten::mm", start + WAIT_US + 20, 50, {"External id": 10 + number}),
            _event(
                "cuda_runtime",
                "cudaLaunchKernel",
                start + WAIT_US + 40,
                10,
                {"correlation": 100 + number, "External id": 10 + number},
            ),
            {
                **_event("kernel", "ampere_sgemm_128x64_nn", start + WAIT_US + 60, KERNEL_US),
                "pid": 0,
                "tid": 7,
                "args": {
                    "device": 0,
                    "stream": 7,
                    "correlation": 100 + number,
                    "External id": 10 + number,
                    "grid": [512, 4, 1],
                    "block": [256, 1, 1],
                },
            },
        ]
    return rows


def document(steps: int = 4) -> dict[str, Any]:
    """The whole file as PyTorch would write it."""
    device = {"id": 0, "name": "NVIDIA A100-SXM4-40GB", "numSms": 108}
    return {
        "schemaVersion": 1,
        "deviceProperties": [device],
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},
        "traceEvents": events(steps),
    }


def write(path: Path, steps: int = 4) -> Path:
    """Write the trace to ``path``, gzipped when its name says so; returns the path."""
    data = json.dumps(document(steps)).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def _event(
    category: str, name: str, start_us: int, dur_us: int, args: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 4711,
        "tid": 4711,
        "ts": start_us,
        "dur": dur_us,
        "args": args or {},
    }
