"""Words for tiny runs, and how to ask what a diagnosis of one lost. All times in microseconds."""

from __future__ import annotations

from whyidle.diagnose import diagnose
from whyidle.diagnosis import Diagnosis, Finding
from whyidle.stories import Story

DISPATCH_US = 5 + 3
"""What ``work`` costs when the device is empty at its start: 5 in the operator, 3 in the call."""


def work(
    story: Story, start: int, end: int, *, op: str = "aten::mm", thread: str = "main"
) -> Story:
    """An operator of 10 us whose kernel runs from 8 us after ``start`` to ``end``."""
    story.op(op, start, start + 10, thread=thread)
    return story.launch("gemm", (start + 5, start + 8), (start + 8, end), thread=thread)


def copy(
    story: Story, name: str, call: tuple[int, int], run: tuple[int, int], size: int, lane: int = 7
) -> Story:
    """A cudaMemcpyAsync and its copy of ``size`` bytes."""
    return story.launch(
        f"Memcpy {name}", call, run, kind="copy", by="cudaMemcpyAsync", bytes=size, lane=lane
    )


def judged(story: Story) -> Diagnosis:
    """The diagnosis, in which no cause crashed."""
    found = diagnose(story.evidence())
    assert found.crashed == []
    return found


def lost_us(story: Story, state: str | None = None) -> dict[str, float]:
    """Cause -> microseconds that it won, in all states or in one; rounded to the nanosecond."""
    lost: dict[str, float] = {}
    for row in judged(story).ledger:
        if state is None or row.state == state:
            lost[row.cause] = lost.get(row.cause, 0.0) + row.lost_s * 1e6
    return {cause: round(us, 3) for cause, us in lost.items()}


def finding(story: Story, cause: str) -> Finding:
    """The finding of one cause."""
    (found,) = (f for f in judged(story).findings if f.cause == cause)
    return found
