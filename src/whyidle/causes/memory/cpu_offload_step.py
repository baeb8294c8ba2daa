"""The optimizer works on the processor (offloaded state) while the device waits.

Looks like: ``Optimizer.step`` is most of the step, the GPU lane is empty in it, one or more CPU
cores are at 100 %, and gradients and weights cross the PCIe bus in every step.

How we tell: the device is empty or only copies, the launching thread is inside ``Optimizer.step``,
and the operators there are so long that launching cannot explain them: one operator (or stretch
between two) of at least a millisecond that launches nothing.

Change: keep the optimizer's state on the device if it fits (``offload_optimizer: none``, no
``cpu_offload``); else make it smaller (8-bit or sharded state, bf16 moments), or overlap it with
backward (DeepSpeed ``overlap_comm``, ZenFlow), with a fused CPU optimizer and enough threads.

May be wrong: an optimizer that does long Python work of its own looks the same. Offloading may be
the only way to fit, and once it was faster because it made a larger batch possible.

Sources: DeepSpeed ZeRO-Offload documentation; reports (22.9 s of a 24 s step; 0.2 against 10 s).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whyidle.diagnosis import Finding, Remedy
from whyidle.stories import Story
from whyidle.views.offloading import in_optimizer
from whyidle.views.places import claims_of

if TYPE_CHECKING:
    import polars as pl

    from whyidle.model import Evidence, Facts
    from whyidle.views import Views

TITLE = "Optimizer state on the CPU"
STATUS = "preview"
NEEDS = ("device", "blame", "ops")


def claims(views: Views) -> pl.DataFrame:
    """Empty and copy-only time inside the optimizer under long operators that launch nothing."""
    rows = in_optimizer(views.blame, views.host, offloaded=True)
    return claims_of(rows, views.host, "deduced")


def remedies(finding: Finding, facts: Facts) -> list[Remedy]:
    """State on the device; else a cheaper one."""
    return [
        Remedy(
            what="Keep the optimizer on the GPU",
            how="Turn offloading off (DeepSpeed: remove offload_optimizer; FSDP: "
            "CPUOffload(offload_params=False) or no offload_policy) if parameters, gradients and "
            "state fit: about 16 bytes per parameter with Adam and mixed precision, divided by the "
            "ranks when sharded. Otherwise use an 8-bit optimizer.",
            safe=False,
            why_safe="It needs memory on the device; 8-bit state changes rounding.",
            effect={"kind": "spans_scaled", "name": "Optimizer.step", "factor": 0.1},
            prove="Record the same steps again: Optimizer.step must shrink and launch kernels.",
        )
    ]


def example() -> tuple[Evidence, float]:
    """Three steps; after 4 ms of compute the optimizer works 6 ms on the processor."""
    story = Story()
    for number in range(3):
        at = number * 10_000
        story.step(number, at, at + 10_000)
        story.op("aten::mm", at, at + 10)
        story.launch("gemm", (at + 2, at + 8), (at + 8, at + 4000))
        story.annotate("Optimizer.step#DeepSpeedCPUAdam.step", at + 4000, at + 10_000)
        story.op("aten::addcdiv_", at + 4000, at + 9990)
    story.launch("gemm", (30_000, 30_005), (30_005, 30_100))
    return story.evidence(), 3 * 5.99e-3
