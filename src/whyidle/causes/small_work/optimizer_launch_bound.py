"""The device waits while the optimizer prepares its update on the host.

Looks like: at the end of every step the GPU does thousands of tiny kernels, or nothing, while the
CPU is in ``Optimizer.step`` or ``Optimizer.zero_grad``; models with many small parameters suffer
most.

How we tell: the device is empty, and the thread that launches the next work is inside
``Optimizer.step#...`` or ``Optimizer.zero_grad#...``: its operators, its launch calls and its
Python. A scalar read or an allocator call inside is counted elsewhere, and so is an operator of a
millisecond or more that launches nothing: that is the update itself, on the processor. On a run
without a GPU it is the Python inside the optimizer, between its operators.

Change: let one kernel update all parameters: ``fused=True``. Where the optimizer has no fused
form, ``foreach=True`` or a compiled step. ``zero_grad(set_to_none=True)`` (the default) launches
nothing.

May be wrong: the gain is bounded by the share given here; a report of 2.75x on this part was 3 %
of the step. An optimizer that keeps its state on the CPU and updates it in many short operators
looks the same and needs memory, not fusion.

Sources: torch.optim documentation (fused and foreach implementations); pytorch/torchtitan and
deepmodeling/deepmd-kit reports (fused AdamW: 1.5 to 2 points of MFU; 22 to 8 ms).
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

TITLE = "Optimizer step bound by the host"
STATUS = "stable"
NEEDS = ("blame",)
SITES = ("optimizer",)
FUSED = ("Adam", "AdamW", "SGD")
"""Optimizers of torch.optim with a fused CUDA implementation in torch 2.4."""


def claims(views: Views) -> pl.DataFrame:
    """Empty time while the launching thread was inside the optimizer."""
    rows = in_optimizer(views.blame, views.host, offloaded=False)
    return claims_of(rows, views.host, "seen")


def remedies(finding: Finding, facts: Facts) -> list[Remedy]:
    """fused=True where torch has it; else a compiled step. zero_grad on its own too."""
    named = {(place.op or "").split("#")[-1].split(".")[0] for place in finding.where}
    fused = sorted(named & set(FUSED))
    zeroing = sum(p.lost_s for p in finding.where if "zero_grad" in (p.op or ""))
    update = _fused(fused[0]) if fused else _compiled()
    if zeroing > finding.lost_s / 2:
        return [_set_to_none(), update]
    return [update, _set_to_none()] if zeroing > finding.lost_s / 3 else [update]


def _fused(name: str) -> Remedy:
    return Remedy(
        what="Use the fused optimizer",
        how=f"torch.optim.{name}(model.parameters(), ..., fused=True).",
        safe=False,
        why_safe="The same update in another order of rounding, so results differ in the last "
        "digits; all parameters must be floating point and on the device.",
        effect={"kind": "launches_scaled", "factor": 0.1},
        prove="Record the same steps again: Optimizer.step per step must shrink and hold a handful "
        "of kernels; then compare the loss curve.",
    )


def _compiled() -> Remedy:
    return Remedy(
        what="Update all parameters in few kernels",
        how="If the optimizer takes foreach= or fused=, turn it on; else compile the step: "
        "step = torch.compile(optimizer.step), with the learning rate as a tensor "
        "(lr=torch.tensor(1e-3)) so that a schedule does not recompile it.",
        safe=False,
        why_safe="The same update in another order of rounding, so results differ in the last "
        "digits; foreach needs memory for temporaries of the size of the parameters.",
        effect={"kind": "launches_scaled", "factor": 0.2},
        prove="Record the same steps again: Optimizer.step per step must shrink; then compare the "
        "loss curve.",
    )


def _set_to_none() -> Remedy:
    return Remedy(
        what="Drop gradients instead of zeroing them",
        how="optimizer.zero_grad(set_to_none=True), the default since torch 2.0; look for a call "
        "with False, for model.zero_grad(set_to_none=False), or for a wrapper that keeps gradient "
        "buffers (DDP with gradient_as_bucket_view keeps views, which is fine).",
        safe=False,
        why_safe="Code that reads .grad after zero_grad sees None instead of zeros, and a "
        "parameter without gradient is skipped instead of updated with zero.",
        effect={"kind": "spans_removed", "name": "Optimizer.zero_grad"},
        prove="Record the same steps again: Optimizer.zero_grad must launch nothing.",
    )


def example() -> tuple[Evidence, float]:
    """Three steps; after 500 us of compute come five updates, each launched 56 us late."""
    story = Story()
    for number in range(3):
        begin = number * 1000
        story.step(number, begin, begin + 1000)
        story.op("aten::mm", begin, begin + 10)
        story.launch("gemm", (begin + 2, begin + 8), (begin + 8, begin + 500))
        story.annotate("Optimizer.step#AdamW.step", begin + 500, begin + 1000)
        for at in range(begin + 500, begin + 1000, 100):
            story.op("aten::_foreach_add_", at, at + 90)
            story.launch("multi_tensor_apply_kernel", (at + 50, at + 56), (at + 56, at + 100))
    return story.evidence(), 3 * 5 * 56e-6
