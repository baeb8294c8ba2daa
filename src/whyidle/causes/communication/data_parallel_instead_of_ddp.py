"""One process drives all GPUs and copies the model to them in every step (DataParallel).

Looks like: one process id on all GPUs; GPU 0 is fuller and busier than the others; two GPUs are
hardly faster than one.

How we tell: the operators with which ``torch.nn.DataParallel`` replicates the model, splits the
batch and collects the outputs (``Broadcast``, ``Scatter``, ``Gather``) run in one process in which
two or more devices work.

Change: ``DistributedDataParallel`` with one process per GPU (``torchrun --nproc-per-node=N``) and a
``DistributedSampler``; then the model is copied once and gradients travel while backward runs.

May be wrong: code of its own that splits tensors over devices with ``torch.cuda.comm`` shows the
same operators; how much a change gains is not in this trace.

Sources: DataParallel documentation of PyTorch ("it is recommended to use DistributedDataParallel,
instead of this class"); reports of 50 to 70 % utilisation under DataParallel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from whyidle.diagnosis import Place, Remedy, Sign
from whyidle.model import DEVICE_KINDS, DeviceInfo, Evidence, Facts, evidence_of
from whyidle.views import names

if TYPE_CHECKING:
    from whyidle.views import Views

TITLE = "DataParallel instead of one process per GPU"
STATUS = "preview"
OBSERVES = ("device", "ops")
OPERATORS = ("Broadcast", "Scatter", "Gather", "BroadcastBackward", "GatherBackward")
REPLICATES = ("Broadcast", "BroadcastBackward")


def observations(views: Views) -> list[Sign]:
    """Ranks whose one process replicates the model to several devices."""
    spans = views.evidence.table("spans")
    devices = spans.filter(pl.col("kind").is_in(DEVICE_KINDS))
    devices = devices.group_by("rank").agg(pl.col("device").n_unique().alias("devices"))
    name = pl.col("name").cast(pl.String)
    calls = spans.filter((pl.col("kind") == "op") & names.contained(spans["name"], OPERATORS))
    calls = calls.group_by("rank").agg(
        pl.len().alias("calls"), name.is_in(REPLICATES).sum().alias("copies")
    )
    both = calls.join(devices, on="rank", how="inner", nulls_equal=True).sort("rank")
    found = both.filter((pl.col("devices") > 1) & (pl.col("copies") > 0))
    return [
        Sign(
            level="seen",
            what=f"One process replicates the model to {row['devices']} devices "
            f"({row['copies']} Broadcast operators here) and scatters and gathers every batch.",
            where=[Place(op="DataParallel", rank=row["rank"])],
            remedies=[_remedy()],
        )
        for row in found.iter_rows(named=True)
    ]


def _remedy() -> Remedy:
    return Remedy(
        what="Use DistributedDataParallel",
        how="torch.distributed.init_process_group('nccl'); model = "
        "DistributedDataParallel(model.to(local_rank), device_ids=[local_rank]); "
        "DataLoader(..., sampler=DistributedSampler(dataset)) with the batch divided by the number "
        "of GPUs; start it with torchrun --nproc-per-node=N train.py.",
        safe=False,
        why_safe="Gradients are averaged over equal parts of the same batch, so training is the "
        "same up to rounding, except for BatchNorm statistics and random numbers per process.",
        effect={"kind": "none"},
        prove="Samples per second before and after, on the same GPUs.",
    )


def observed_example() -> tuple[Evidence, str]:
    """Three steps on two devices, the model copied from the first to the second in each."""
    rows = []
    for number in range(3):
        at = number * 1_000_000
        for name, start, end in (
            (f"ProfilerStep#{number}", 0, 1_000_000),
            ("Scatter", 10_000, 50_000),
            ("Broadcast", 60_000, 300_000),
            ("Gather", 800_000, 900_000),
        ):
            kind = "annotation" if name.startswith("Prof") else "op"
            times = {"start_ns": at + start, "end_ns": at + end}
            rows.append({"rank": 0, "kind": kind, "name": name, "thread": 0, **times})
        for device in (0, 1):
            times = {"start_ns": at + 310_000, "end_ns": at + 790_000}
            work = {"rank": 0, "kind": "kernel", "name": "gemm", "device": device, "lane": 7}
            rows.append(work | times)
    gpu = DeviceInfo(name="NVIDIA A100-SXM4-40GB", sms=108, vendor="nvidia")
    return evidence_of(rows, Facts(devices={(0, 0): gpu, (0, 1): gpu})), "to 2 devices"
