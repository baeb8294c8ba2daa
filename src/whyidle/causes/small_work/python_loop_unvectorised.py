"""A Python loop works through a tensor element by element, one tiny operator at a time.

Looks like: thousands of ``aten::select``, ``aten::slice``, ``aten::index`` or ``aten::copy_`` per
step; backward takes many times as long as forward; the GPU is nearly empty and one core is busy.

How we tell: at least 300 indexing operators (select, slice, index, narrow, unbind, squeeze, fill,
copy) per step that make up at least 30 % of all outermost operators. Then empty time inside the
stretches in which at least 30 % of 16 neighbours are indexing operators, and in the Python between
operators, is counted here.

Change: write the loop as one operation on the whole tensor: broadcasting, ``torch.gather``,
``index_select``, ``torch.where``, ``scatter_add_``, ``torch.vmap``. Losses and metrics are the
usual places.

May be wrong: a model that really slices a lot (detection heads, ragged batches) looks the same;
there the remedy is padding to one shape, or ``torch.compile``.

Sources: broadcasting semantics and torch.vmap in the PyTorch documentation; a speaker-encoder
report on the PyTorch forum (backward 2,321 ms against 11 ms of forward).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whyidle.diagnosis import Finding, Remedy
from whyidle.stories import Story

if TYPE_CHECKING:
    import polars as pl

    from whyidle.model import Evidence, Facts
    from whyidle.views import Views

TITLE = "A Python loop over elements of a tensor"
STATUS = "preview"
NEEDS = ("blame", "ops")


def claims(views: Views) -> pl.DataFrame:
    """Empty time inside stretches of tiny indexing operators and in the Python between them."""
    return views.blamed("python_loop", level="deduced")


def remedies(finding: Finding, facts: Facts) -> list[Remedy]:
    """Vectorise it; compile it when it cannot be."""
    return [
        Remedy(
            what="Replace the loop by one tensor operation",
            how="x[idx] with a tensor of indices, torch.gather, torch.where(mask, a, b), "
            "scatter_add_, broadcasting (a[:, None] - b[None, :]), or torch.vmap(f)(x) for a "
            "function of one element.",
            safe=False,
            why_safe="It is a rewrite: compare values and gradients with the loop "
            "(torch.testing.assert_close); sums in another order differ in the last digits.",
            effect={"kind": "launches_scaled", "factor": 0.01},
            prove="Record the same steps again: the operators per step must fall by orders of "
            "magnitude, and the step with them.",
        )
    ]


def example() -> tuple[Evidence, float]:
    """One step of 200 turns of 20 us; in each the device waits 14 us for a select and a copy."""
    story = Story()
    story.step(0, 0, 4000)
    for at in range(0, 4000, 20):
        story.op("aten::select", at, at + 5)
        story.op("aten::copy_", at + 8, at + 16)
        story.launch("elementwise_kernel", (at + 10, at + 14), (at + 14, at + 20))
    return story.evidence(), 200 * 14e-6
