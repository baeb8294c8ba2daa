"""One process of the training job: its threads, operators and CUDA calls, on a simulated clock.

The main thread and the autograd thread take turns (``loss.backward()`` blocks the main thread),
so one clock serves both. Noise is drawn per (seed, rank, step, name, occurrence): taking a cause
away does not change the noise of what remains, so the difference between two runs is the cause's.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from examples.simulate.hardware import START_LATENCY_NS, Gpu, Kernel
from examples.simulate.recorder import CALLBACK_IDS, DEVICE_WORK, Recorder

COMPUTE_STREAM = 7
COPY_STREAM = 13
COMMUNICATION_STREAM = 20
LAUNCH_NS = 4_200
SYNC_RETURN_NS = 6_000
OP_SELF_NS = 5_000
INNER_OP_SELF_NS = 3_000


class Host:
    """The clock and the recorder of one rank's process. ``now`` is in nanoseconds."""

    def __init__(self, recorder: Recorder, gpu: Gpu, seed: int = 0) -> None:
        """Start at instant 0 on the main thread."""
        self.recorder = recorder
        self.gpu = gpu
        self.seed = seed
        self.now = 0
        self.step = 0
        self.main = recorder.pid
        self.autograd = recorder.pid + 57
        self.thread = self.main
        self.first_call_extra_ns = 0
        self.with_stack = False
        self.marks: list[tuple[int, int]] = []
        self._drawn: Counter[str] = Counter()
        self._external = 0
        self._correlation = 1000
        self._python = 0
        self._frames: list[int | None] = [None]
        self._open: list[int] = []

    # -- clock ---------------------------------------------------------------------------------
    def spend(self, duration_ns: float, name: str = "work", spread: float = 0.04) -> None:
        """Let the current thread work for about ``duration_ns``."""
        self.now += self.noisy(duration_ns, name, spread)

    def noisy(self, duration_ns: float, name: str, spread: float = 0.04) -> int:
        """``duration_ns`` times 1 +- ``spread``, the same for the same place in every run."""
        self._drawn[name] += 1
        place = f"{self.seed}/{self.recorder.rank}/{self.step}/{name}/{self._drawn[name]}"
        unit = zlib.crc32(place.encode()) / 0xFFFFFFFF
        return max(1, round(duration_ns * (1 + spread * (2 * unit - 1))))

    def begin_step(self, number: int) -> None:
        """Start drawing the noise of step ``number``."""
        self.step = number
        self._drawn.clear()

    # -- host spans ----------------------------------------------------------------------------
    @contextmanager
    def annotation(self, name: str) -> Iterator[None]:
        """A record_function block; the profiler echoes it on each stream it launched to."""
        before = len(self.recorder.spans)
        with self._recorded("user_annotation", name, {}) as ident:
            yield
        lanes: dict[int, list[int]] = {}
        for span in self.recorder.spans[before:]:
            if span.cat in DEVICE_WORK:
                lanes.setdefault(span.thread, []).extend((span.start_ns, span.end_ns))
        for stream, ends in lanes.items():
            args = {"External id": ident}
            self.recorder.on_device(
                "gpu_user_annotation", name, stream, min(ends), max(ends), **args
            )

    @contextmanager
    def op(
        self,
        name: str,
        self_ns: float = OP_SELF_NS,
        dims: Any = None,
        types: Any = None,
        **args: Any,
    ) -> Iterator[int]:
        """A framework operator; half of its own time lies before what it contains."""
        if dims is not None:
            args["Input Dims"] = dims
            args["Input type"] = types if types is not None else ["float"] * len(dims)
        with self._recorded("cpu_op", name, args) as ident:
            self.spend(self_ns / 2, name)
            yield ident
            self.spend(self_ns / 2, name)

    def simple_op(self, name: str, self_ns: float = OP_SELF_NS, dims: Any = None) -> None:
        """An operator that launches nothing."""
        with self.op(name, self_ns, dims):
            pass

    @contextmanager
    def frame(self, name: str, always: bool = False) -> Iterator[None]:
        """A Python call, recorded when stacks are (``always``: the time counts, not the record)."""
        self._python += 1
        ident, parent, start = self._python, self._frames[-1], self.now
        self._frames.append(ident)
        yield
        self._frames.pop()
        if self.with_stack:
            args = {"Python parent id": parent, "Python id": ident}
            self.recorder.host("python_function", name, self.thread, start, self.now, **args)

    @contextmanager
    def on_autograd_thread(self) -> Iterator[None]:
        """What runs while the main thread waits in ``backward()``."""
        frames, self._frames = self._frames, [None]
        stack, self.with_stack = self.with_stack, False
        self.spend(18_000, "wake autograd")
        self.thread = self.autograd
        yield
        self.thread = self.main
        self.spend(14_000, "wake main")
        self._frames, self.with_stack = frames, stack

    @contextmanager
    def _recorded(self, cat: str, name: str, args: dict[str, Any]) -> Iterator[int]:
        self._external += 1
        ident, start, thread = self._external, self.now, self.thread
        self._open.append(ident)
        yield ident
        self._open.pop()
        recorded = {"External id": ident, "Record function id": 0, **args}
        self.recorder.host(cat, name, thread, start, self.now, **recorded)

    # -- CUDA calls ----------------------------------------------------------------------------
    def call(self, name: str, duration_ns: float, until_ns: int = 0) -> int:
        """A runtime call that lasts at least ``duration_ns`` and until ``until_ns``."""
        self._correlation += 1
        start = self.now
        extra, self.first_call_extra_ns = self.first_call_extra_ns, 0
        self.now = max(start + self.noisy(duration_ns, name), until_ns) + extra
        args = {"cbid": CALLBACK_IDS[name], "correlation": self._correlation, **self._external_id()}
        self.recorder.host("cuda_runtime", name, self.thread, start, self.now, **args)
        return self._correlation

    def launch(self, kernel: Kernel, stream: int = COMPUTE_STREAM) -> tuple[int, int]:
        """Launch a kernel; returns its start and end on the device."""
        begin = self.now
        room = self.gpu.room_at(begin)
        correlation = self.call("cudaLaunchKernel", LAUNCH_NS, room if room > begin else 0)
        issued = max(room, self.now - LAUNCH_NS) + START_LATENCY_NS
        duration = self.noisy(kernel.duration_ns(self.gpu.model), kernel.name, 0.02)
        start, end = self.gpu.enqueue(stream, issued, duration)
        self.record_kernel(kernel, stream, correlation, start, end)
        self.link(correlation, begin, stream, start)
        return start, end

    def record_kernel(
        self, kernel: Kernel, stream: int, correlation: int, start_ns: int, end_ns: int, **more: Any
    ) -> None:
        """Write the device record of a kernel."""
        warps = kernel.blocks * math_warps(kernel.threads) / self.gpu.model.sms
        args = {
            **self._external_id(),
            "queued": 0,
            "correlation": correlation,
            "registers per thread": 32,
            "shared memory": 0,
            "blocks per SM": round(kernel.blocks / self.gpu.model.sms, 6),
            "warps per SM": round(warps, 6),
            "grid": [kernel.blocks, 1, 1],
            "block": [kernel.threads, 1, 1],
            "est. achieved occupancy %": min(100, round(100 * warps / 64)),
            **more,
        }
        self.recorder.on_device("kernel", kernel.name, stream, start_ns, end_ns, **args)

    def copy(
        self, kind: str, moved_bytes: int, pinned: bool, stream: int = COMPUTE_STREAM
    ) -> tuple[int, int]:
        """``cudaMemcpyAsync`` of kind HtoD, DtoH or DtoD; pageable memory blocks the call."""
        model, begin = self.gpu.model, self.now
        rate = model.pinned_bandwidth if pinned else model.pageable_bandwidth
        rate = model.memory_bandwidth / 2 if kind == "DtoD" else rate
        duration = self.noisy(1_300 + moved_bytes / rate * 1e9, f"copy {kind}", 0.02)
        issued = max(self.gpu.room_at(begin), begin) + START_LATENCY_NS
        start, end = self.gpu.enqueue(stream, issued, duration)
        blocks = kind != "DtoD" and not pinned and moved_bytes > 65_536
        correlation = self.call("cudaMemcpyAsync", 5_500, end + 2_000 if blocks else 0)
        side = "Pinned" if pinned else "Pageable"
        ends = {"HtoD": f"{side} -> Device", "DtoH": f"Device -> {side}"}
        name = f"Memcpy {kind} ({ends.get(kind, 'Device -> Device')})"
        seen = round(moved_bytes / (end - start), 6)
        args: dict[str, Any] = {**self._external_id(), "correlation": correlation}
        args |= {"bytes": moved_bytes, "memory bandwidth (GB/s)": seen}
        self.recorder.on_device("gpu_memcpy", name, stream, start, end, **args)
        self.link(correlation, begin, stream, start)
        return start, end

    def link(self, correlation: int, begin_ns: int, stream: int, start_ns: int) -> None:
        """The arrow from a launch call to its device work."""
        self.recorder.flow("ac2g", correlation, (self.thread, begin_ns), (stream, start_ns), True)

    def synchronize(self, stream: int | None = COMPUTE_STREAM) -> None:
        """Wait for a stream, or with None for the device."""
        name = "cudaDeviceSynchronize" if stream is None else "cudaStreamSynchronize"
        idle = self.gpu.idle_at(stream)
        self.call(name, 3_000, idle + SYNC_RETURN_NS if idle > self.now else 0)

    def _external_id(self) -> dict[str, int]:
        return {"External id": self._open[-1]} if self._open else {}


def math_warps(threads: int) -> int:
    """Warps in a block of so many threads."""
    return -(-threads // 32)
