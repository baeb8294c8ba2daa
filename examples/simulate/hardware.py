"""The simulated GPU: how long a kernel takes, streams, the launch queue, and copies.

Figures are those of an A100-SXM4-80GB, rounded, with the efficiency that ordinary kernels reach.
They need to be plausible, not exact: the truth of a scenario is what this model itself does.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

QUEUE_DEPTH = 1024
"""Launches that may wait on the device before the next launch call blocks."""
START_LATENCY_NS = 5_500
"""From the begin of a launch call to the earliest start of its kernel."""
KERNEL_GAP_NS = 900
"""Between two kernels of one stream that were both queued."""
FLOOR_NS = 1_800
"""No kernel is shorter than this."""


@dataclass(frozen=True)
class GpuModel:
    """What a device can do; peaks in FLOP/s and bytes/s."""

    name: str = "NVIDIA A100-SXM4-80GB"
    sms: int = 108
    peak: tuple[tuple[str, float], ...] = (
        ("fp32", 19.5e12 * 0.70),
        ("tf32", 156e12 * 0.50),
        ("bf16", 312e12 * 0.50),
    )
    memory_bandwidth: float = 2.0e12 * 0.75
    pinned_bandwidth: float = 24e9
    pageable_bandwidth: float = 5.5e9

    def properties(self, index: int) -> dict[str, Any]:
        """The ``deviceProperties`` entry of a trace."""
        return {
            "id": index,
            "name": self.name,
            "totalGlobalMem": 85_095_874_560,
            "computeMajor": 8,
            "computeMinor": 0,
            "maxThreadsPerBlock": 1024,
            "maxThreadsPerMultiprocessor": 2048,
            "regsPerBlock": 65536,
            "warpSize": 32,
            "sharedMemPerBlock": 49152,
            "numSms": self.sms,
            "regsPerMultiprocessor": 65536,
            "sharedMemPerBlockOptin": 166_912,
            "sharedMemPerMultiprocessor": 167_936,
        }


@dataclass(frozen=True)
class Kernel:
    """One kernel to launch. ``math`` is the unit it computes on: fp32, tf32 or bf16."""

    name: str
    blocks: int
    threads: int = 256
    flops: float = 0.0
    bytes: float = 0.0
    math: str = "fp32"

    def duration_ns(self, gpu: GpuModel) -> int:
        """Nanoseconds on ``gpu``: the slower of arithmetic and memory, over how full it is."""
        peak = dict(gpu.peak)[self.math]
        busiest = max(self.flops / peak, self.bytes / gpu.memory_bandwidth) * 1e9
        resident = gpu.sms * max(1, 1024 // self.threads)
        waves = math.ceil(self.blocks / gpu.sms) if self.blocks < resident else 0
        full = self.blocks / (waves * gpu.sms) if waves else 1.0
        return max(FLOOR_NS, round(busiest / full))


@dataclass
class Gpu:
    """The streams of one device and the queue in front of them. Instants in nanoseconds."""

    model: GpuModel
    free_at: dict[int, int] = field(default_factory=dict)
    pending: deque[int] = field(default_factory=deque)

    def enqueue(self, stream: int, issued_ns: int, duration_ns: int) -> tuple[int, int]:
        """Put work on a stream; returns its start and end."""
        start = self.earliest(stream, issued_ns)
        return start, self.occupy(stream, start, start + duration_ns)

    def earliest(self, stream: int, issued_ns: int) -> int:
        """When work issued at ``issued_ns`` would start on the stream."""
        behind = self.free_at.get(stream)
        return max(issued_ns, behind + KERNEL_GAP_NS) if behind is not None else issued_ns

    def occupy(self, stream: int, start_ns: int, end_ns: int) -> int:
        """Hold the stream until ``end_ns``; returns it."""
        self.free_at[stream] = end_ns
        self.pending.append(start_ns)
        return end_ns

    def after(self, stream: int, other: int) -> None:
        """Let later work of ``stream`` start no earlier than what ``other`` holds now."""
        behind = max(self.free_at.get(stream, 0), self.free_at.get(other, 0))
        if behind:
            self.free_at[stream] = behind

    def idle_at(self, stream: int | None = None) -> int:
        """When the stream (or with None, the device) has nothing left to do."""
        if stream is not None:
            return self.free_at.get(stream, 0)
        return max(self.free_at.values(), default=0)

    def room_at(self, now_ns: int) -> int:
        """When a launch call made at ``now_ns`` finds room in the queue."""
        while self.pending and self.pending[0] <= now_ns:
            self.pending.popleft()
        waiting = len(self.pending)
        return now_ns if waiting < QUEUE_DEPTH else self.pending[waiting - QUEUE_DEPTH]
