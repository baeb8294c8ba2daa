"""Single operators launch too few thread blocks for the GPU while the rest of the work fills it.

Looks like: a few operators, often the optimizer's updates of one small parameter each, reductions
or small fills, keep the GPU busy with a handful of its multiprocessors.

How we tell: a kernel that ran alone on the device with blocks for at most 75 % of the
multiprocessors (SMs) loses 1 - blocks / SMs of its time: 4 blocks on 80 SMs lose 95 %. Counted
here unless small_work.batch_too_small counts it: that one takes the under-filled kernels outside
Optimizer.step when at least half of the time of matrix kernels is under-filled too. In readings of
the GPU: stretches in which the multiprocessors were active for at most half of the busy time lose
what is missing (*suspected*: communication needs few of them by design).

Change: do many small things in one kernel: fused or foreach optimizers, torch.compile for chains
of small operators, one batched operator in place of a loop; let small independent work run beside
other work on a second stream.

May be wrong: a kernel of a few microseconds takes that long however many blocks it has; merging
it saves its time, splitting it does not. Some work is small by nature, such as one scalar.
Kernels that stay on the device launch few blocks by design.

Sources: CUDA C++ Best Practices Guide, execution configuration; torch.optim documentation,
foreach and fused implementations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from whyidle.diagnosis import Finding, Remedy
from whyidle.sampled_stories import Sampling
from whyidle.stories import Story
from whyidle.views.kernels import kernel_claims
from whyidle.views.sampled_power import empty_sms
from whyidle.views.sampled_telling import job_claims_of
from whyidle.views.underfilled import underfilled

if TYPE_CHECKING:
    from whyidle.model import Evidence, Facts
    from whyidle.views import Views

TITLE = "Operators too small to fill the GPU"
STATUS = "preview"
NEEDS = ("blocks", "sms")
JOB_NEEDS = ("sampled_sms",)
_UPDATES = (
    "aten::add_",
    "aten::mul_",
    "aten::addcmul_",
    "aten::addcdiv_",
    "aten::sqrt",
    "aten::lerp_",
)


def claims(views: Views) -> pl.DataFrame:
    """Under-filled kernels that a larger batch would not fill."""
    return kernel_claims(underfilled(views.kernels).filter(~pl.col("batch")), views)


def job_claims(views: Views) -> pl.DataFrame:
    """Busy time of sampled GPUs in which most multiprocessors were empty."""
    found = empty_sms(views.sampled)
    words = [
        f"busy for {busy:.0%}, multiprocessors active for {active:.0%}"
        for busy, active in found.select("busy", "active").iter_rows()
    ]
    return job_claims_of(found, "busy", words, weight=1 - pl.col("active") / pl.col("busy"))


def remedies(finding: Finding, facts: Facts) -> list[Remedy]:
    """A fused optimizer when its updates lose most, else fewer and larger kernels."""
    first = finding.where[0].op or ""
    found = [
        Remedy(
            what="Merge small kernels",
            how="Wrap the model in torch.compile, which turns chains of small operators into one "
            "kernel; replace loops over tensors by one batched operator or torch._foreach_*.",
            safe=False,
            why_safe="Compiled kernels may round differently in the last bits and recompile when "
            "shapes change; compare the loss of a few steps.",
            effect={"kind": "kernels_scaled", "factor": 0.3, "only": "claimed"},
            prove="Record the same steps: the named kernels must be fewer and their sum shorter.",
        )
    ]
    if first.startswith(_UPDATES):
        found.insert(0, _fused_optimizer())
    return found


def _fused_optimizer() -> Remedy:
    return Remedy(
        what="Update all parameters in a few kernels",
        how="Build the optimizer with fused=True (Adam, AdamW, SGD, Adagrad), else foreach=True.",
        safe=False,
        why_safe="The same formula in another order: results may differ in the last bits. foreach "
        "needs memory for temporary copies of the parameters.",
        effect={"kind": "kernels_scaled", "factor": 0.2, "only": "claimed"},
        prove="Record the same steps: Optimizer.step must launch a few multi_tensor_apply kernels.",
    )


def example() -> tuple[Evidence, float]:
    """Three steps of 4 ms: a full product of 3 ms, then 1 ms of updates with 27 blocks on 108 SMs.

    Each update loses 1 - 27/108 = 0.75 of its 1 ms; the product has 4096 blocks and loses nothing.
    """
    story = Story()
    for number in range(3):
        at = number * 4000
        story.step(number, at, at + 4000)
        story.op("aten::mm", at, at + 10)
        story.launch("ampere_bf16_s16816gemm_bf16_128x64_tn", (at, at + 5), (at + 5, at + 3005))
        story.annotate("Optimizer.step#SGD.step", at + 1000, at + 1020)
        story.op("aten::add_", at + 1000, at + 1010)
        call = (at + 1000, at + 1005)
        story.launch("vectorized_elementwise_kernel", call, (at + 3005, at + 4005), blocks=27)
    return story.evidence(), 3 * 0.75 * 1e-3


def job_example() -> tuple[Evidence, float]:
    """Ten minutes at 100 % with a quarter of the multiprocessors active: 450 s."""
    story = Sampling(period_s=10).runs(600, gpu_utilization=1.0, sm_active=0.25)
    return story.evidence(), 450.0
