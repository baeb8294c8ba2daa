"""Gradients are reduced over all ranks after every micro-batch, though only the last sum is used.

Looks like: accumulating over four micro-batches costs four full steps; a no_sync in the code may
be there and have no effect.

How we tell: between two calls of Optimizer.step several backward passes issue all-reduce or
reduce-scatter. A pass whose successor before the same Optimizer.step runs exactly the same
backward operators is repeated by it. The time in which the device did nothing but these repeated
reductions counts; what ran beside compute kernels is hidden and does not.

Change: reduce in the last micro-batch only. DistributedDataParallel: wrap forward and backward of
all others in model.no_sync() (wrapping backward alone does nothing, the choice is made in
forward). FSDP2: model.set_requires_gradient_sync(False), for hybrid sharding
model.set_requires_all_reduce(False). Accelerate: with accelerator.accumulate(model):.

May be wrong: two networks that share an architecture and one optimizer step, trained in turn,
look the same. Sharded gradients that are not reduced must be kept whole, which costs memory.

Sources: DistributedDataParallel.no_sync in the PyTorch documentation; cases
NVIDIA/cosmos-framework#161, baidu-baige/LoongForge#163, huggingface/accelerate#106,
facebookresearch/fairscale#1041.
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

TITLE = "Gradients reduced in every micro-batch"
STATUS = "preview"
NEEDS = ("blame",)
SITES = ("backward",)


def claims(views: Views) -> pl.DataFrame:
    """Communication alone on the device that a later pass repeats."""
    alone = views.exposed.filter("needless")
    told = pl.col("collective") + " repeated by a later backward pass of the same optimizer step"
    return frame(
        CLAIMS,
        alone.with_columns(
            pl.lit(1.0).alias("weight"), pl.lit("deduced").alias("level"), told.alias("op")
        ),
    )


def remedies(finding: Finding, facts: Facts) -> list[Remedy]:
    """Reduce only where the sum is used."""
    return [
        Remedy(
            what="Reduce gradients in the last micro-batch only",
            how="sync = (i + 1) % accumulation == 0; with contextlib.nullcontext() if sync else "
            "model.no_sync(): loss = model(x) ...; loss.backward(). Forward must be inside. FSDP2: "
            "model.set_requires_gradient_sync(sync) before forward.",
            safe=True,
            why_safe="Sums of gradients are the same up to the order of additions: the ranks add "
            "their accumulated gradients once. Sharded models need memory for whole gradients.",
            effect={"kind": "spans_removed", "only": "claimed"},
            prove="Record whole optimizer steps: gradient reductions must appear once per "
            "Optimizer.step, in its last backward pass.",
        )
    ]


def example() -> tuple[Evidence, float]:
    """Three optimizer steps of two micro-batches each; every micro-batch reduces for 3 ms alone.

    Only the second reduction of a step is needed: 3 x 3 ms are lost.
    """
    story = Story()
    gemm, reduce = "ampere_bf16_s16816gemm_bf16_128x128_tn", "ncclDevKernel_AllReduce_Sum_bf16_RING"
    for number in range(3):
        at = number * 20_000
        story.step(number, at, at + 20_000)
        for micro in range(2):
            begin = at + micro * 10_000
            story.op("aten::linear", begin, begin + 10)
            story.launch(gemm, (begin, begin + 5), (begin + 5, begin + 7005))
            node = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
            story.op(node, begin + 100, begin + 140, thread="autograd")
            story.op("c10d::allreduce_", begin + 105, begin + 135, thread="autograd")
            call, run = (begin + 110, begin + 120), (begin + 7005, begin + 10_005)
            story.launch(reduce, call, run, thread="autograd", lane=20)
        story.annotate("Optimizer.step#SGD.step", at + 19_000, at + 19_010)
    return story.evidence(), 3 * 3e-3
