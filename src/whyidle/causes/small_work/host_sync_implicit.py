"""Something waits for the device although no value is read: a hidden or forgotten synchronisation.

Looks like: no ``.item()`` in the code, yet the CPU waits in every step; the GPU is empty
afterwards until launching has caught up.

How we tell: a synchronisation call (``cudaStreamSynchronize``, ``cudaDeviceSynchronize``, an event)
that belongs to no read of a scalar, an operator whose result size depends on the data
(``aten::nonzero``, boolean masks, ``unique``, ``bincount``, ``repeat_interleave``, truth tests),
or a tiny blocking copy to the device (at most 64 KiB: ``torch.tensor(x, device="cuda")``). Counted
are the empty time inside the call (seen) and after it the dispatch and launch time up to the
launch lead that the wait destroyed (deduced). The rest of the wait is the device at work: no loss.

Change: ask torch where it waits: ``torch.cuda.set_sync_debug_mode("warn")``. Replace boolean
indexing by ``torch.where``; build constants on the device once; remove timers and
``torch.cuda.synchronize()`` from the loop.

May be wrong: a synchronisation that the program needs (a pinned buffer used again, a library's own
stream) cannot go. The one at the end of a recorded run is the profiler's.

Sources: CUDA semantics (asynchronous execution) and torch.cuda.set_sync_debug_mode in the PyTorch
documentation; a report of 25 % for a stray synchronize; pytorch/vision Mask R-CNN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whyidle.diagnosis import Finding, Remedy
from whyidle.stories import Story
from whyidle.views.certainty import waiting

if TYPE_CHECKING:
    import polars as pl

    from whyidle.model import Evidence, Facts
    from whyidle.views import Views

TITLE = "Hidden waits for the device"
STATUS = "preview"
NEEDS = ("device", "calls")


def claims(views: Views) -> pl.DataFrame:
    """Time lost in synchronisations other than reads, and by the lead they destroyed."""
    return views.blamed("sync", level=waiting)


def remedies(finding: Finding, facts: Facts) -> list[Remedy]:
    """The rewrite that fits what was waited in, and how to find the line."""
    named = [place.op or "" for place in finding.where]
    explicit = any("Synchronize" in op for op in named)
    return [_delete(), _rewrite()] if explicit else [_rewrite()]


def _prove() -> str:
    return (
        "Record the same steps again: the synchronisation is gone and launches stay ahead of the "
        'device. torch.cuda.set_sync_debug_mode("error") in a test keeps it that way.'
    )


def _delete() -> Remedy:
    return Remedy(
        what="Remove the explicit synchronisation from the loop",
        how="Delete torch.cuda.synchronize() and timers around steps; time with "
        "torch.cuda.Event(enable_timing=True) and read the events once, after the loop.",
        safe=False,
        why_safe="Work on one stream stays in order without it; code that shares pinned buffers or "
        "streams may rely on it.",
        effect={"kind": "syncs_dropped"},
        prove=_prove(),
    )


def _rewrite() -> Remedy:
    return Remedy(
        what="Avoid results whose size or value the host must know",
        how='Find the lines with torch.cuda.set_sync_debug_mode("warn"). Then: x[mask] -> '
        "torch.where(mask, x, 0) or masked_fill; if mask.any(): -> do it always; torch.tensor(v, "
        'device="cuda") per step -> build it once, or torch.full((), v, device="cuda"); '
        "repeat_interleave(x, n) -> give output_size=; small blocking copies -> pin_memory() and "
        "non_blocking=True.",
        safe=False,
        why_safe="The rewrite has to keep values and gradients: compare them once with the old "
        "code on a few batches.",
        effect={"kind": "syncs_dropped"},
        prove=_prove(),
    )


def example() -> tuple[Evidence, float]:
    """Three steps with a torch.cuda.synchronize() each; 30 us lost there, 10 us in the next step.

    Per step: the device is done at 600 us, the call returns at 620 (20 us lost), then 5 us of
    dispatch and 5 us of launch lie within the lead (600 us of wait, 20 empty); so do the 10 us with
    which the next step begins.
    """
    story = Story()
    for number in range(3):
        begin = number * 1000
        story.step(number, begin, begin + 1000)
        story.op("aten::mm", begin, begin + 15)
        story.launch("gemm", (begin + 5, begin + 10), (begin + 10, begin + 600))
        story.call("cudaDeviceSynchronize", begin + 20, begin + 620)
        story.op("aten::mm", begin + 620, begin + 640)
        story.launch("gemm", (begin + 625, begin + 630), (begin + 630, begin + 1000))
    return story.evidence(), (3 * 30 + 2 * 10) * 1e-6
