"""The compiler runs inside the measured steps while the device waits.

Looks like: some steps take seconds instead of milliseconds; they come back with every new sequence
length or batch size; ``TORCH_LOGS=recompiles`` prints guards that failed.

How we tell: the device is empty, and the thread that launches the next work is inside
``torch.compile`` (``_compile.compile_inner``, ``entire_frame_compile``, ``inductor_compile`` and
kin) or the Triton compiler. On a run without a GPU the same time counts.

Change: give the compiler shapes that do not change: pad or bucket the batch; or tell it which
dimension varies: ``torch.compile(dynamic=True)``, ``torch._dynamo.mark_dynamic(x, 0)``. CUDA graphs
(``mode="reduce-overhead"``) record one graph per shape: not for varying shapes.

May be wrong: the first compilation of a run looks the same as a later one. If it happens only in
the first recorded step, record later steps (``schedule(wait=..., warmup=...)``) before changing
anything. A cache on disk makes the first one shorter, not the later ones.

Sources: Dynamic Shapes and the torch.compile troubleshooting page of the PyTorch documentation;
huggingface/trl (reduce-overhead with nine padded lengths: 14 % slower); Triton per-shape compiles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whyidle.diagnosis import Finding, Remedy
from whyidle.stories import Story

if TYPE_CHECKING:
    import polars as pl

    from whyidle.model import Evidence, Facts
    from whyidle.views import Views

TITLE = "Compiling inside the measured steps"
STATUS = "preview"
NEEDS = ("blame",)


def claims(views: Views) -> pl.DataFrame:
    """Empty time while the launching thread, or its feeder, compiled."""
    return views.blamed("compile")


def remedies(finding: Finding, facts: Facts) -> list[Remedy]:
    """Fixed shapes, or a compiler that knows which dimension varies."""
    prove = (
        "Run with TORCH_LOGS=recompiles and count the lines after warm-up: there must be none. "
        "Record the same steps again: no compile ranges in them."
    )
    return [
        Remedy(
            what="Tell the compiler which dimension varies",
            how="torch.compile(model, dynamic=True), or torch._dynamo.mark_dynamic(x, dim) on the "
            "inputs before the first call; keep Python numbers that change (a step counter, the "
            "learning rate) out of the compiled code or make them tensors.",
            safe=False,
            why_safe="The same computation by other kernels: rounding may differ, and kernels for "
            "any shape can be slower than those for one.",
            effect={"kind": "spans_removed"},
            prove=prove,
        ),
        Remedy(
            what="Pad or bucket the inputs",
            how="Pad the varying dimension to a multiple of 64 or to a few bucket lengths in the "
            "collate function, and drop or pad the last incomplete batch (drop_last=True).",
            safe=False,
            why_safe="Padding must be masked out of attention, losses and statistics, and costs "
            "computation.",
            effect={"kind": "spans_removed"},
            prove=prove,
        ),
    ]


def example() -> tuple[Evidence, float]:
    """Two steps of 1 ms; in each the device waits 800 us for the compiler, then computes."""
    story = Story()
    for number in range(2):
        begin = number * 1000
        story.step(number, begin, begin + 1000)
        story.op("_compile.compile_inner (dynamo_timed)", begin, begin + 800)
        story.op("aten::empty", begin + 100, begin + 200)
        story.op("Torch-Compiled Region: 0/1", begin + 800, begin + 860)
        story.launch(
            "triton_poi_fused_add_0", (begin + 810, begin + 815), (begin + 815, begin + 1000)
        )
    return story.evidence(), 2 * 800e-6
