"""The device waits for a batch to be copied to it.

Looks like: at the start of a step the copy engine works alone and no kernel runs; large
``Memcpy HtoD`` in the training thread.

How we tell: every instant in which the device does nothing but a copy from the host (a kernel that
runs beside it hides it), and the empty time inside the call that starts a copy of more than 64 KiB
from pageable memory, which blocks its caller. The report names each copy as recorded:
``Pageable -> Device`` can be pinned; ``Pinned -> Device`` was pinned but not overlapped.

Change: pageable: ``DataLoader(pin_memory=True)`` and ``.to(device, non_blocking=True)``. Pinned:
copy the next batch on a side stream while this step computes. Both: send fewer bytes (uint8 images,
normalised on the device).

May be wrong: pinning once cost 9 % on a machine short of memory. A copy that starts a step cannot
be overlapped with that step, only with the one before.

Sources: A guide on good usage of non_blocking and pin_memory() in PyTorch (tutorial); How to
Optimize Data Transfers in CUDA C/C++ (NVIDIA developer blog).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from whyidle.diagnosis import Finding, Remedy
from whyidle.model import CLAIMS, frame
from whyidle.stories import Story

if TYPE_CHECKING:
    from whyidle.model import Evidence, Facts
    from whyidle.views import Views

TITLE = "Copies to the device that nothing hides"
STATUS = "stable"
NEEDS = ("device", "launches")


def claims(views: Views) -> pl.DataFrame:
    """Copy-only time of host-to-device copies, and empty time in calls that block for one."""
    found = views.blamed("pageable_copy")
    copies = views.activity.filter(pl.col("launch").is_not_null()).select(
        pl.col("launch").alias("row"), pl.col("name").cast(pl.String).alias("copy")
    )
    named = found.join(copies.unique("row"), on="row", how="left")
    both = pl.concat_str("op", "copy", separator=": ", ignore_nulls=True)
    return frame(CLAIMS, named.with_columns(both.alias("op")))


def remedies(finding: Finding, facts: Facts) -> list[Remedy]:
    """Pin what is pageable; overlap what is pinned."""
    pinned_s = sum(place.lost_s for place in finding.where if "Pinned" in (place.op or ""))
    return [_overlap()] if pinned_s > finding.lost_s / 2 else [_pin(), _overlap()]


def _pin() -> Remedy:
    return Remedy(
        what="Copy from pinned memory, without waiting",
        how="DataLoader(..., pin_memory=True) and batch.to(device, non_blocking=True); a custom "
        "batch class needs a pin_memory() method. Tensors made outside the loader: .pin_memory().",
        safe=True,
        why_safe="The device sees the same bytes in the same order of its stream. It takes locked "
        "host memory of a few batches; never write into the host tensor before the copy is done.",
        effect={"kind": "copies_scaled", "factor": 0.5, "asynchronous": True},
        prove="Record the same steps again: the copies read Pinned -> Device, the call returns at "
        "once, and copy-only time shrinks.",
    )


def _overlap() -> Remedy:
    return Remedy(
        what="Copy the next batch while this one is computed",
        how="side = torch.cuda.Stream(); with torch.cuda.stream(side): next_batch = "
        "batch.to(device, non_blocking=True); before using it: "
        "torch.cuda.current_stream().wait_stream(side) and "
        "next_batch.record_stream(torch.cuda.current_stream()).",
        safe=False,
        why_safe="Correct only with wait_stream and record_stream as written; it holds one more "
        "batch on the device.",
        effect={"kind": "copies_overlapped"},
        prove="Record the same steps again: copies to the device run beside kernels, on another "
        "stream.",
    )


def example() -> tuple[Evidence, float]:
    """Three steps; the blocking call costs 40 us before, 230 us during, 10 us after its copy."""
    story = Story()
    for number in range(3):
        begin = number * 1000
        story.step(number, begin, begin + 1000)
        story.op("aten::to", begin, begin + 300)
        story.launch(
            "Memcpy HtoD (Pageable -> Device)", (begin + 10, begin + 290),
            (begin + 50, begin + 280), kind="copy", by="cudaMemcpyAsync", bytes=4_000_000,
        )  # fmt: skip
        story.op("aten::mm", begin + 300, begin + 320)
        story.launch("gemm", (begin + 305, begin + 310), (begin + 310, begin + 1000))
    return story.evidence(), 3 * (40 + 230 + 10) * 1e-6
