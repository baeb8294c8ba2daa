"""Issuing collectives keeps the host so long that the GPU runs dry.

Looks like: many collectives per step, each short on the GPU; between them the GPU is empty while
the host is inside c10d or NCCL calls.

How we tell: the device was empty and the thread that would launch the next work was inside the
call that issues a collective (c10d::..., nccl:..., record_param_comms), not waiting for the
device.

Change: issue fewer and larger collectives: reduce gradients in buckets (DistributedDataParallel),
flatten small tensors, use the coalescing collectives, put what is only logged into one tensor.

May be wrong: the first collective of a communicator sets up connections for seconds, once; a
window of a few steps after warm-up does not contain it. TORCH_DISTRIBUTED_DEBUG=DETAIL adds a
check to every call.

Sources: torch.distributed documentation, collective functions and debugging.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whyidle.diagnosis import Finding, Remedy
from whyidle.stories import Story

if TYPE_CHECKING:
    import polars as pl

    from whyidle.model import Evidence, Facts
    from whyidle.views import Views

TITLE = "Issuing collectives holds up the host"
STATUS = "preview"
NEEDS = ("blame",)


def claims(views: Views) -> pl.DataFrame:
    """Empty time while the launching thread issued a collective."""
    return views.blamed("collective")


def remedies(finding: Finding, facts: Facts) -> list[Remedy]:
    """Fewer calls."""
    return [
        Remedy(
            what="Issue fewer, larger collectives",
            how="Let DistributedDataParallel reduce gradients in buckets (bucket_cap_mb); in own "
            "code flatten tensors into one before all_reduce, or use "
            "torch.distributed._coalescing_manager; reduce logged values together every N steps.",
            safe=False,
            why_safe="The same sums in another order: results differ in the last bits.",
            effect={"kind": "spans_removed", "only": "claimed"},
            prove="Record the same steps: fewer c10d calls per step, no empty time inside them.",
        )
    ]


def example() -> tuple[Evidence, float]:
    """Three steps of 10 ms; in each the device is empty for 2 ms while a collective is issued.

    A product runs until 7 ms, the call lasts from 7 to 9 ms, the collective from 9 to 10 ms.
    """
    story = Story()
    for number in range(3):
        at = number * 10_000
        story.step(number, at, at + 10_000)
        story.op("aten::mm", at, at + 10)
        story.launch("ampere_bf16_s16816gemm_bf16_128x128_tn", (at, at), (at, at + 7000))
        story.op("c10d::allreduce_", at + 6990, at + 9000)
        run = (at + 9000, at + 10_000)
        story.launch("ncclDevKernel_AllReduce_Sum_bf16_RING", (at + 9000, at + 9000), run, lane=20)
    return story.evidence(), 3 * 2e-3
