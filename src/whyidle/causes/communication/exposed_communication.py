"""The GPU only communicates: nothing is computed while data moves or a peer is waited for.

Looks like: utilisation reads 100 %, because a waiting collective spins on the GPU, yet adding
GPUs hardly shortens the step.

How we tell: a collective ran on the device and no compute kernel did. All of that time counts.
The collective is named by its kernel, or by the operator that issued it when the kernel's name
does not tell. Reductions that a later backward pass repeats belong to
communication.sync_every_microstep.

Change: let communication run beside the backward pass (DistributedDataParallel does so bucket by
bucket), move less (gradients in BF16, larger per-GPU batches, accumulation), or make it faster.

May be wrong: a collective waits inside its kernel for the last rank to arrive, and the trace of
one rank cannot tell that wait from moving bytes. Compare the same collective on all ranks first:
where the kernel is long on all ranks but one, that one is late and the network is not at fault.

Sources: PyTorch notes on distributed data parallel; NCCL user guide; cases
huggingface/transformers#47340, facebookresearch/fairchem#267, Tencent-Hunyuan/UniRL#45.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from whyidle.diagnosis import Finding, Remedy
from whyidle.model import CLAIMS, frame
from whyidle.stories import Story
from whyidle.views import names
from whyidle.views.kernel_names import short_name

if TYPE_CHECKING:
    from whyidle.model import Evidence, Facts
    from whyidle.views import Views

TITLE = "Communication that nothing hides"
STATUS = "stable"
NEEDS = ("work",)
MANY = 50
"""Collectives of one kind per step from which merging them is advised first."""


def claims(views: Views) -> pl.DataFrame:
    """Communication alone on the device, named by collective and by how many there are."""
    alone = views.exposed.filter(~pl.col("needless"))
    steps = max(views.marks["number"].n_unique(), 1)
    counts = alone.group_by("rank", "device", "collective", "name").agg(
        (pl.col("row").n_unique() / steps).ceil().cast(pl.Int64).alias("count")
    )
    keys = ["rank", "device", "collective", "name"]
    alone = alone.join(counts, on=keys, how="left", nulls_equal=True, maintain_order="left")
    per = "a step" if views.marks.height else "in all"
    told = pl.format("{} ({}), {} {}", "collective", "short", "count", pl.lit(per))
    alone = alone.with_columns(names.told(alone["name"], short_name).alias("short"))
    return frame(
        CLAIMS,
        alone.with_columns(
            pl.lit(1.0).alias("weight"), pl.lit("seen").alias("level"),
            told.alias("op"),
        ),
    )  # fmt: skip


def remedies(finding: Finding, facts: Facts) -> list[Remedy]:
    """Merge many small collectives first; then hide them, then find out who is late."""
    counts = [
        int(n) for place in finding.where for n in re.findall(r"(\d+) a step$", place.op or "")
    ]
    found = [_overlap(), _compare()]
    return [_merge(), *found] if max(counts, default=0) >= MANY else found


def _merge() -> Remedy:
    return Remedy(
        what="Reduce gradients in buckets instead of one by one",
        how="Wrap the model in torch.nn.parallel.DistributedDataParallel, which reduces buckets of "
        "25 MB (bucket_cap_mb) as backward fills them; in own code flatten with "
        "torch._utils._flatten_dense_tensors before all_reduce.",
        safe=False,
        why_safe="The same sums in another order: results differ in the last bits.",
        effect={"kind": "communication_overlapped"},
        prove="Record the same steps: fewer, longer collectives that run beside backward kernels.",
    )


def _overlap() -> Remedy:
    return Remedy(
        what="Hide communication behind the backward pass, or move less",
        how="DistributedDataParallel with gradient_as_bucket_view=True, a smaller bucket_cap_mb if "
        "the last bucket is what shows; gradients in BF16 through model.register_comm_hook(None, "
        "torch.distributed.algorithms.ddp_comm_hooks.default_hooks.bf16_compress_hook); a larger "
        "batch per GPU.",
        safe=False,
        why_safe="Buckets do not change results; BF16 gradients round, and a larger batch changes "
        "training.",
        effect={"kind": "communication_overlapped"},
        prove="Record the same steps: the time with communication alone must fall.",
    )


def _compare() -> Remedy:
    return Remedy(
        what="Find out whether a peer is late or the link is slow",
        how="Record every rank over the same steps and diagnose the folder of traces: whyidle "
        "diagnose TRACES/. A late peer needs balanced batches; a slow link shows as bytes per "
        "second far below the hardware (NCCL_DEBUG=INFO prints NET/Socket when RDMA is not used).",
        safe=True,
        why_safe="It only measures.",
        effect={},
        prove="The report over all ranks names the rank that the others waited for, or none.",
    )


def example() -> tuple[Evidence, float]:
    """Three steps of 10 ms: 7 ms of products; an all-reduce of 5 ms of which 2 ms run beside them.

    Alone on the device: 3 ms a step.
    """
    story = Story()
    for number in range(3):
        at = number * 10_000
        story.step(number, at, at + 10_000)
        story.op("aten::mm", at, at + 10)
        story.launch("ampere_bf16_s16816gemm_bf16_128x128_tn", (at, at + 5), (at + 5, at + 7005))
        story.op("c10d::allreduce_", at + 100, at + 120)
        run = (at + 5005, at + 10_005)
        story.launch("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", (at + 105, at + 110), run, lane=20)
    return story.evidence(), 3 * 3e-3
