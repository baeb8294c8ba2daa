"""Small traces as bytes, for the tests of the readers."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any


def op(name: Any = "aten::add", ts: Any = 10, dur: Any = 5, **more: Any) -> dict[str, Any]:
    """An operator on thread 7 of process 7."""
    return {
        "ph": "X",
        "cat": "cpu_op",
        "name": name,
        "pid": 7,
        "tid": 7,
        "ts": ts,
        "dur": dur,
    } | more


def call(name: str = "cudaLaunchKernel", ts: Any = 20, dur: Any = 2, **args: Any) -> dict[str, Any]:
    """A runtime call on thread 7."""
    return op(name, ts, dur, cat="cuda_runtime", args=args)


def kernel(name: str = "gemm", ts: Any = 30, dur: Any = 9, **args: Any) -> dict[str, Any]:
    """A kernel on device 0, stream 3."""
    return {
        "ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 3, "ts": ts, "dur": dur,
        "args": {"device": 0, "stream": 3, **args},
    }  # fmt: skip


def flow(phase: str, ts: Any, pid: Any, tid: Any, number: int = 1, cat: str = "ac2g") -> Any:
    """One end of an arrow: "s" or "f"."""
    return {"ph": phase, "id": number, "pid": pid, "tid": tid, "ts": ts, "cat": cat, "name": cat}


def write(path: Path, events: list[Any], zipped: bool = False, **keys: Any) -> Path:
    """A trace of these events and top-level keys at ``path``."""
    data = json.dumps({**keys, "traceEvents": events}).encode()
    path.write_bytes(gzip.compress(data) if zipped else data)
    return path
