"""Part of the step is computed on the CPU while the device waits.

Looks like: in the middle of a step results go to the host, something runs there (assignment,
non-maximum suppression, SciPy or NumPy, an operator on CPU tensors), and a small tensor comes back.

How we tell: an empty interval that begins after a copy from the device (more than 8 bytes, not a
scalar read) and ends with a copy to it, inside one step and without the loader in it: everything in
between. Also empty time inside an operator that lasts more than 0.2 ms and calls nothing on
the device: it computes on the CPU.

Change: run that part on the device; or collect all of it and go to the host once per step instead
of once per item; or overlap it with other device work.

May be wrong: an operator that only waits for a lock or for memory also calls nothing. What the
line costs includes the kernels that were still in flight; those are not counted here.

Sources: pytorch/pytorch and facebookresearch/detr issues on Hungarian matching; LW-DETR (all costs
in one copy: 434 to 13 ms); ultralytics RT-DETR (1.2x to 1.43x on dense images, none on sparse).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whyidle.diagnosis import Finding, Remedy
from whyidle.stories import Story

if TYPE_CHECKING:
    import polars as pl

    from whyidle.model import Evidence, Facts
    from whyidle.views import Views

TITLE = "CPU work in the middle of the step"
STATUS = "preview"
NEEDS = ("device", "blame")


def claims(views: Views) -> pl.DataFrame:
    """Empty time between results fetched and sent back, and in operators on CPU tensors."""
    return views.blamed("cpu_roundtrip", level="deduced")


def remedies(finding: Finding, facts: Facts) -> list[Remedy]:
    """On the device, or once per step."""
    prove = (
        "Record the same steps again: fewer copies from and to the device per step, no hole "
        "between them; compare the results of the part that moved on a few batches."
    )
    return [
        Remedy(
            what="Compute it on the device",
            how="Keep the tensors on the device (check .device of the arguments: a CPU default in "
            "torch.zeros(...) or a CPU index makes the whole operator run there), and use a device "
            "version: torchvision.ops.nms or batched_nms, torch.cdist, torch.linalg, topk, "
            "segment sums by scatter_add_.",
            safe=False,
            why_safe="Another implementation: ties, order and rounding may differ.",
            effect={"kind": "spans_removed"},
            prove=prove,
        ),
        Remedy(
            what="Go to the host once per step",
            how="Stack what all images or layers need into one tensor, one .cpu() (or a copy into "
            "pinned memory with non_blocking=True and an event), work on it, and send back one "
            "tensor; launch device work that does not depend on it first.",
            safe=False,
            why_safe="The same numbers, but the code is reordered; check shapes and offsets.",
            effect={"kind": "spans_scaled", "factor": 0.3},
            prove=prove,
        ),
    ]


def example() -> tuple[Evidence, float]:
    """Two steps; from the end of the copy out (404 us) to the start of the copy back (710 us)."""
    story = Story()
    for number in range(2):
        begin = number * 1000
        story.step(number, begin, begin + 1000)
        story.op("aten::mm", begin, begin + 12)
        story.launch("gemm", (begin + 5, begin + 10), (begin + 10, begin + 400))
        story.op("aten::to", begin + 20, begin + 420)
        story.launch(
            "Memcpy DtoH (Device -> Pageable)", (begin + 30, begin + 406),
            (begin + 400, begin + 404), kind="copy", by="cudaMemcpyAsync", bytes=40_000,
        )  # fmt: skip
        story.frame("matcher.py(60): linear_sum_assignment", begin + 420, begin + 700)
        story.op("aten::to", begin + 700, begin + 720)
        story.launch(
            "Memcpy HtoD (Pageable -> Device)", (begin + 705, begin + 712),
            (begin + 710, begin + 712), kind="copy", by="cudaMemcpyAsync", bytes=400,
        )  # fmt: skip
        story.op("aten::mm", begin + 720, begin + 740)
        story.launch("gemm", (begin + 725, begin + 730), (begin + 730, begin + 1000))
    return story.evidence(), 2 * (710 - 404) * 1e-6
