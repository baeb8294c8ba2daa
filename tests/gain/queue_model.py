"""A training loop on one stream, timed by hand: the truth that the replay is held against.

The host works, launches, and at the end of a step may wait for the stream. A kernel starts LATENCY
after its launch call began, or GAP after the kernel before it, whichever is later; a wait returns
RETURN after the last kernel, or takes QUICK when that is done already. Whole microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from whyidle.model import Evidence
from whyidle.stories import Story

LATENCY, GAP, RETURN, QUICK, CALL = 9, 1, 4, 3, 5
WAIT = "cudaStreamSynchronize"
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


@dataclass(frozen=True)
class Step:
    """Microseconds: the loader, then per kernel the host's work before its launch and its own."""

    loader: int
    kernels: tuple[tuple[int, int], ...]
    waits: bool


@dataclass(frozen=True)
class Timed:
    """A told run: its evidence and when each step began and ended."""

    evidence: Evidence
    marks: tuple[tuple[int, int], ...]

    @property
    def steps(self) -> list[int]:
        """Length of each step in microseconds."""
        return [end - begin for begin, end in self.marks]


def timed(steps: list[Step]) -> Timed:
    """Play the loop."""
    story = Story()
    now, done = 0, -1000
    marks = []
    for number, step in enumerate(steps):
        begin = now
        if step.loader:
            story.annotate(LOADER, now, now + step.loader)
            now += step.loader
        for host, device in step.kernels:
            story.op("aten::mm", now, now + host + CALL)
            now += host
            start = max(now + LATENCY, done + GAP)
            story.launch("gemm", (now, now + CALL), (start, start + device))
            done = start + device
            now += CALL
        if step.waits:
            returned = max(now + 1 + QUICK, done + RETURN)
            story.op("aten::item", now, returned + 1)
            story.call(WAIT, now + 1, returned)
            now = returned + 1
        now += 2
        story.step(number, begin, now)
        marks.append((begin, now))
    return Timed(story.evidence(), tuple(marks))


def without_loader(steps: list[Step]) -> list[Step]:
    """The same loop with batches ready at once."""
    return [replace(step, loader=0) for step in steps]


def without_waits(steps: list[Step]) -> list[Step]:
    """The same loop that never waits for the device."""
    return [replace(step, waits=False) for step in steps]
