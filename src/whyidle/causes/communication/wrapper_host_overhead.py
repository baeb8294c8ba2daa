"""The wrapper that distributes the model keeps the host, or the GPU's copy engine, busy.

Looks like: backward is limited by the host although the collectives are short; the same batch on
a single GPU is faster per GPU.

How we tell: the device was empty and the thread that would launch the next work was inside the
wrapper: its hooks (torch.distributed.ddp.reducer, FullyShardedDataParallel._pre/_post...), the
broadcast of buffers before forward, or the search for unused parameters. Time in which the device
only copied gradients between buckets and parameters for the wrapper counts as well.

Change: gradient_as_bucket_view=True spares the copies; broadcast_buffers=False where buffers need
not agree; find_unused_parameters=False, or static_graph=True when the unused set never changes;
FSDP: wrap larger units.

May be wrong: find_unused_parameters may be needed: without it a model whose parameters take turns
fails. Copies that run beside compute kernels are hidden and not counted.

Sources: DistributedDataParallel in the PyTorch documentation; cases numenta/nupic.research#526,
roboflow/rf-detr#1489, TensorAuto/OpenTau#177.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whyidle.diagnosis import Finding, Remedy
from whyidle.stories import Story

if TYPE_CHECKING:
    import polars as pl

    from whyidle.model import Evidence, Facts
    from whyidle.views import Views

TITLE = "Overhead of the distributed wrapper"
STATUS = "preview"
NEEDS = ("blame",)
SITES = ("data_parallel",)


def claims(views: Views) -> pl.DataFrame:
    """Empty and copy-only time that the wrapper's host side owns."""
    return views.blamed("wrapper")


def remedies(finding: Finding, facts: Facts) -> list[Remedy]:
    """Buckets as gradients, and no broadcast or search that is not needed."""
    names = " ".join(place.op or "" for place in finding.where)
    found = [_option("gradient_as_bucket_view=True", "gradients then live in the buckets")]
    if "broadcast" in names or "sync_buffers" in names:
        found.insert(
            0, _option("broadcast_buffers=False", "for models whose buffers do not change")
        )
    if "unused" in names or "prepare_for_backward" in names:
        found.insert(0, _option("static_graph=True", "the unused set is found once"))
    return found


def _option(option: str, reason: str) -> Remedy:
    return Remedy(
        what=f"DistributedDataParallel(..., {option})",
        how=f"Pass {option} where the model is wrapped: {reason}.",
        safe=option.startswith("gradient"),
        why_safe="The sums stay the same; gradients become views into buckets, so detach_() on "
        "them fails."
        if option.startswith("gradient")
        else "Only right if the model meets the condition: buffers equal on all ranks, or a graph "
        "that never changes.",
        effect={"kind": "spans_removed", "only": "claimed"},
        prove="Record the same steps: the named hooks and copies must be gone from the list.",
    )


def example() -> tuple[Evidence, float]:
    """Three steps of 10 ms: 8 ms of products, 1 ms bucket copy, 1 ms empty in a hook.

    The copy fills 8 to 9 ms of each step, the search for unused parameters lasts until its end, so
    that 9 to 10 ms are empty: 3 x (1 + 1) ms.
    """
    story = Story()
    reducer = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
    for number in range(3):
        at = number * 10_000
        story.step(number, at, at + 10_000)
        story.op("aten::mm", at, at + 10)
        story.launch("ampere_bf16_s16816gemm_bf16_128x128_tn", (at, at), (at, at + 8000))
        story.op(reducer, at + 20, at + 40)
        copy = "Memcpy DtoD (Device -> Device)"
        run = (at + 8000, at + 9000)
        story.launch(
            copy, (at + 25, at + 30), run, kind="copy", by="cudaMemcpyAsync", bytes=1 << 20
        )
        story.op("torch.distributed.ddp.reducer::search_unused_parameters", at + 50, at + 10_000)
    return story.evidence(), 3 * 2e-3
