"""Writes what happened the way torch.profiler (Kineto) writes it: Chrome JSON, gzipped.

All instants are integer nanoseconds from the start of the simulated run. In the file ``ts`` and
``dur`` are microseconds with three decimals, and ``baseTimeNanoseconds`` says where ``ts`` 0 lies
on the wall clock. Every document carries ``"whyidle_simulated": true``.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from examples.simulate.hardware import GpuModel

TS_OFFSET_NS = 5_000_000_000_000
"""``ts`` of the simulated instant 0; the machine is taken to be up for 5,000 s."""
BASE_TIME_NS = 1_767_225_600_000_000_000
DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
"""Categories that occupy a stream; ``gpu_user_annotation`` only echoes a host annotation."""
CALLBACK_IDS = {
    "cudaLaunchKernel": 211,
    "cudaLaunchKernelExC": 430,
    "cudaMemcpyAsync": 41,
    "cudaMemsetAsync": 51,
    "cudaStreamSynchronize": 131,
    "cudaDeviceSynchronize": 165,
    "cudaEventRecord": 135,
    "cudaEventSynchronize": 137,
    "cudaStreamWaitEvent": 147,
    "cudaMalloc": 20,
    "cudaFree": 22,
    "cudaGraphLaunch": 311,
}


@dataclass(frozen=True)
class Span:
    """One interval as recorded; ``device`` is None for host spans. Half open, nanoseconds."""

    cat: str
    name: str
    thread: int
    start_ns: int
    end_ns: int
    args: dict[str, Any]
    device: int | None = None


@dataclass
class Recorder:
    """Collects the spans and flows of one rank."""

    gpu: GpuModel
    rank: int = 0
    world_size: int = 1
    device: int = 0
    trace_name: str = "simulated"
    spans: list[Span] = field(default_factory=list)
    flows: list[dict[str, Any]] = field(default_factory=list)
    flags: dict[str, Any] = field(default_factory=lambda: {"record_shapes": 1})

    @property
    def pid(self) -> int:
        """Process id of the simulated rank."""
        return 4100 + self.rank

    def host(
        self, cat: str, name: str, thread: int, start_ns: int, end_ns: int, **args: Any
    ) -> None:
        """Record an interval of a host thread."""
        self.spans.append(Span(cat, name, thread, start_ns, end_ns, args))

    def on_device(
        self, cat: str, name: str, stream: int, start_ns: int, end_ns: int, **args: Any
    ) -> None:
        """Record an interval of a stream."""
        place = {"device": self.device, "context": 1, "stream": stream}
        at = Span(cat, name, stream, start_ns, end_ns, {**args, **place}, self.device)
        self.spans.append(at)

    def flow(
        self, kind: str, ident: int, begin: tuple[int, int], end: tuple[int, int], on_device: bool
    ) -> None:
        """Record an arrow between (thread, instant) pairs; ``kind`` is ac2g or fwdbwd."""
        start = {"ph": "s", "id": ident, "pid": self.pid, "tid": begin[0], "ts": _us(begin[1])}
        pid = self.device if on_device else self.pid
        stop = {"ph": "f", "id": ident, "pid": pid, "tid": end[0], "ts": _us(end[1])}
        self.flows.append({**start, "cat": kind, "name": kind})
        self.flows.append({**stop, "cat": kind, "name": kind, "bp": "e"})

    def document(self) -> dict[str, Any]:
        """The whole trace as one JSON object."""
        top: dict[str, Any] = {
            "schemaVersion": 1,
            "whyidle_simulated": True,
            "deviceProperties": [self.gpu.properties(self.device)],
            "cuda_runtime_version": 12080,
            "cuda_driver_version": 12080,
            **self.flags,
        }
        if self.world_size > 1:
            top["distributedInfo"] = self._distributed()
        top["displayTimeUnit"] = "ms"
        top["baseTimeNanoseconds"] = BASE_TIME_NS
        top["traceEvents"] = [*self._intervals(), *self.flows, *self._metadata()]
        top["traceName"] = self.trace_name
        return top

    def write(self, path: Path) -> None:
        """Write the trace, gzipped and byte for byte reproducible."""
        document = self.document()
        events = document.pop("traceEvents")
        head = json.dumps(document)[:-1]
        body = ",\n".join(json.dumps(e, separators=(", ", ": ")) for e in events)
        text = f'{head},\n"traceEvents": [\n{body}\n]}}\n'
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed:
            packed.write(text.encode())

    def _intervals(self) -> list[dict[str, Any]]:
        order = {"cuda_runtime": 1, "gpu_user_annotation": 2} | dict.fromkeys(DEVICE_WORK, 1)
        ordered = sorted(
            self.spans, key=lambda s: (order.get(s.cat, 0), s.start_ns, s.start_ns - s.end_ns)
        )
        return [self._interval(span, index) for index, span in enumerate(ordered)]

    def _interval(self, span: Span, index: int) -> dict[str, Any]:
        args = dict(span.args)
        if span.cat in {"cpu_op", "user_annotation", "python_function"}:
            args["Ev Idx"] = index
        return {
            "ph": "X",
            "cat": span.cat,
            "name": span.name,
            "pid": self.pid if span.device is None else span.device,
            "tid": span.thread,
            "ts": _us(span.start_ns),
            "dur": round((span.end_ns - span.start_ns) / 1000, 3),
            "args": args,
        }

    def _distributed(self) -> dict[str, Any]:
        ranks = list(range(self.world_size))
        group = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl"}
        return {
            "backend": "nccl",
            "rank": self.rank,
            "world_size": self.world_size,
            "pg_count": 1,
            "pg_config": [{**group, "pg_size": self.world_size, "ranks": ranks}],
            "nccl_version": "2.27.5",
        }

    def _metadata(self) -> list[dict[str, Any]]:
        first = min(s.start_ns for s in self.spans)
        at, length = _us(first), max(s.end_ns for s in self.spans) - first
        rows = [
            _meta("process_name", self.pid, 0, at, name="python3"),
            _meta("process_labels", self.pid, 0, at, labels="CPU"),
            _meta("process_sort_index", self.pid, 0, at, sort_index=self.pid),
            _meta("process_name", self.device, 0, at, name="python3"),
            _meta("process_labels", self.device, 0, at, labels=f"GPU {self.device}"),
            _meta("process_sort_index", self.device, 0, at, sort_index=5_000_000 + self.device),
        ]
        whole = {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans"}
        begin = {"ph": "i", "s": "g", "name": "Iteration Start: PyTorch Profiler", "ts": at}
        rows.append({**whole, "tid": "PyTorch Profiler", "ts": at, "dur": length / 1000})
        rows.append({**begin, "pid": "Traces", "tid": "Trace PyTorch Profiler"})
        for device, thread in sorted({(s.device, s.thread) for s in self.spans}, key=str):
            pid = self.pid if device is None else device
            name = f"thread {thread} (python3)" if device is None else f"stream {thread} "
            rows.append(_meta("thread_name", pid, thread, at, name=name))
        return rows


def _meta(what: str, pid: int, tid: int, at: float, **args: Any) -> dict[str, Any]:
    return {"name": what, "ph": "M", "ts": at, "pid": pid, "tid": tid, "args": args}


def _us(instant_ns: int) -> float:
    return round((TS_OFFSET_NS + instant_ns) / 1000, 3)
