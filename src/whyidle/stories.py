"""Tells a tiny run, span by span, as evidence: for the examples of causes and for tests.

Instants are whole microseconds from the start of the story; one process, threads by name.
"""

from __future__ import annotations

from typing import Any

from whyidle.model import DeviceInfo, Evidence, Facts, evidence_of

US = 1000
Interval = tuple[int, int]


class Story:
    """Collects spans; ``evidence()`` ends the story. Every method returns the story itself."""

    def __init__(
        self,
        *,
        rank: int | None = 0,
        device: int = 0,
        name: str | None = "NVIDIA A100-SXM4-80GB",
        sms: int | None = 108,
        capability: tuple[int, int] | None = (8, 0),
        origin_ns: int = 1_700_000_000_000_000_000,
    ) -> None:
        """One rank with one device; ``origin_ns`` is where its microsecond 0 lies."""
        self._rank = rank
        self._device = device
        self._origin = origin_ns
        self._rows: list[dict[str, Any]] = []
        self._threads: list[str] = ["main"]
        self._launched = 0
        info = DeviceInfo(
            name=name, sms=sms, vendor="nvidia", capability=capability, threads_per_sm=2048
        )
        self._facts = Facts(devices={(rank, device): info})

    def _add(self, kind: str, name: str, when: Interval, **more: Any) -> Story:
        start, end = when
        row = {
            "rank": self._rank,
            "kind": kind,
            "name": name,
            "start_ns": self._origin + start * US,
            "end_ns": self._origin + end * US,
        }
        self._rows.append(row | more)
        return self

    def _on(self, thread: str) -> int:
        if thread not in self._threads:
            self._threads.append(thread)
        return self._threads.index(thread)

    def step(self, number: int, start: int, end: int) -> Story:
        """A marked step of the main thread."""
        return self.annotate(f"ProfilerStep#{number}", start, end)

    def annotate(self, name: str, start: int, end: int, thread: str = "main") -> Story:
        """A record_function range."""
        return self._add("annotation", name, (start, end), thread=self._on(thread))

    def op(self, name: str, start: int, end: int, thread: str = "main", **more: Any) -> Story:
        """A framework operator; ``more`` may give shapes and types as JSON text, or a stack."""
        return self._add("op", name, (start, end), thread=self._on(thread), **more)

    def frame(self, name: str, start: int, end: int, thread: str = "main") -> Story:
        """A Python call, named ``file.py(12): function``."""
        return self._add("python", name, (start, end), thread=self._on(thread))

    def overhead(self, name: str, start: int, end: int, thread: str = "main") -> Story:
        """The profiler at work."""
        return self._add("overhead", name, (start, end), thread=self._on(thread))

    def call(self, name: str, start: int, end: int, thread: str = "main") -> Story:
        """A runtime call that starts no device work."""
        self._launched += 1
        thread_ = self._on(thread)
        return self._add("runtime", name, (start, end), thread=thread_, correlation=self._launched)

    def launch(
        self,
        name: str,
        call: Interval,
        run: Interval,
        *,
        kind: str = "kernel",
        by: str = "cudaLaunchKernel",
        thread: str = "main",
        lane: int = 7,
        **more: Any,
    ) -> Story:
        """Device work and the call that launched it; ``more`` may give blocks, bytes, ..."""
        self.call(by, call[0], call[1], thread)
        more = {"blocks": 4096, "block_threads": 256} | more if kind == "kernel" else more
        return self._add(
            kind, name, run, device=self._device, lane=lane, correlation=self._launched, **more
        )

    def unlaunched(self, name: str, start: int, end: int, lane: int = 7, **more: Any) -> Story:
        """Device work without a launch record."""
        return self._add("kernel", name, (start, end), device=self._device, lane=lane, **more)

    def evidence(self) -> Evidence:
        """Everything told so far."""
        return evidence_of(self._rows, self._facts, tuple(self._threads))


def clean_run(steps: int = 4) -> Evidence:
    """A healthy run: every step the device computes from end to end, launched well ahead."""
    story = Story()
    for number in range(steps):
        begin = number * 1000
        story.step(number, begin, begin + 1000)
        for index in range(4):
            at = begin + index * 250
            story.op("aten::mm", max(at - 100, 0), max(at - 80, 20))
            story.launch(
                "ampere_gemm_tn", (max(at - 95, 2), max(at - 90, 6)), (max(at, 6), at + 250)
            )
    return story.evidence()


def loader_run(frame: str, busy_us: int) -> Evidence:
    """Three steps; in each the device waits 5 ms for the loader, ``busy_us`` of it in a frame."""
    story = Story()
    for number in range(3):
        begin = number * 10_000
        story.step(number, begin, begin + 10_000)
        loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        story.annotate(loader, begin, begin + 5000)
        story.frame("train.py(12): fetch", begin + 100, begin + 4900)
        story.frame(frame, begin + 500, begin + 500 + busy_us)
        story.op("aten::conv2d", begin + 5000, begin + 5010)
        story.launch("implicit_gemm", (begin + 5002, begin + 5008), (begin + 5008, begin + 10_000))
    return story.evidence()
