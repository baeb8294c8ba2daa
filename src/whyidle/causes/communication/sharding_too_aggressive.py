"""Sharded parameters are gathered a second time in backward, though memory would hold them.

Looks like: more GPUs or more machines make the step slower; all-gathers fill forward and backward
alike; a good part of the GPU's memory is never used.

How we tell: an all-gather that the wrapper (FSDP, ZeRO-3) launched in backward repeats one of the
same step's forward: the same module where the wrapper names it, else the same group and size. Only
what the device did alone counts, and only from 1 % of the recorded time on. Where the allocator's
reserve and the GPU's memory were recorded and the parameters of a step fit into what was free, it
is *deduced*; where memory was not recorded, *suspected*; where they do not fit, it is not told. It
has no seconds of its own: they stand under communication that nothing hides.

Change: keep parameters from forward to backward (reshard_after_forward=False; FSDP1:
ShardingStrategy.SHARD_GRAD_OP; DeepSpeed: ZeRO stage 2), or shard inside a machine only (hybrid
sharding). Compare the loss after the change.

May be wrong: free memory is what this process had not reserved; other processes may hold it, and
steps that were not recorded may need it. Activation checkpointing that gathers for its second
forward looks the same and is helped by the same change.

Sources: fully_shard in the PyTorch documentation; cases meta-pytorch/torchtune#2402 (8 % more
tokens a second), hiyouga/LlamaFactory#6372 (hybrid sharding broke training once),
deepspeedai/DeepSpeed#2928.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from whyidle.diagnosis import Place, Remedy, Sign
from whyidle.stories import Story
from whyidle.views.regathers import regathers

if TYPE_CHECKING:
    from whyidle.model import Evidence
    from whyidle.views import Views

TITLE = "Sharded parameters gathered twice a step"
STATUS = "preview"
OBSERVES = ("blame",)

LEAST_SHARE = 0.01
"""Below this share of the recorded time it is not told: there is nothing to win."""

GIB = 2**30


def observations(views: Views) -> list[Sign]:
    """The rank that lost most to gathering again; one sign for all ranks."""
    again = regathers(views)
    if not again.height:
        return []
    wall = views.windows.group_by("rank", "device").agg(
        (pl.col("end_ns") - pl.col("start_ns")).sum().alias("wall_ns")
    )
    lost = again.group_by("rank", "device").agg(pl.col("alone_ns").sum(), pl.col("size").max())
    lost = lost.join(wall, on=["rank", "device"], nulls_equal=True).filter(
        pl.col("alone_ns") >= LEAST_SHARE * pl.col("wall_ns")
    )
    signs = (
        _sign(views, row, again, lost.height)
        for row in lost.sort("alone_ns", "rank", descending=[True, False]).iter_rows(named=True)
    )
    return [sign for sign in signs if sign is not None][:1]


def _sign(views: Views, row: dict[str, Any], again: pl.DataFrame, ranks: int) -> Sign | None:
    """The sign of one device; None when its memory would not hold the parameters."""
    rank, device = row["rank"], row["device"]
    mine = again.filter(pl.col("rank").eq_missing(rank) & (pl.col("device") == device))
    held, free = _held(mine), _free(views, rank, device)
    if held is not None and free is not None and held > free:
        return None
    many = f" ({ranks} ranks likewise)" if ranks > 1 else ""
    who = f"Rank {rank}" if rank is not None else "The GPU"
    each = mine.height / max(mine["step"].n_unique(), 1)
    what = (
        f"{who}{many}: {row['alone_ns'] / 1e6:.4g} ms ({row['alone_ns'] / row['wall_ns']:.1%} of "
        f"the time) went by in all-gathers alone that fetch in backward what forward had fetched, "
        f"{each:.3g} of them a step"
    )
    if held is not None:
        what += f"; to keep it takes {held / GIB:.3g} GiB"
        what += f", and {free / GIB:.3g} GiB were free" if free is not None else ""
    return Sign(
        level="deduced" if held is not None and free is not None else "suspected",
        what=f"{what}.",
        where=_places(mine),
        remedies=[_keep(held), _hybrid(row["size"])],
    )


def _held(again: pl.DataFrame) -> int | None:
    """Bytes that keeping a step's parameters takes; None when any size is not known."""
    if again["bytes"].null_count():
        return None
    return int(again.group_by("step").agg(pl.col("bytes").sum())["bytes"].to_numpy().max())


def _free(views: Views, rank: int | None, device: int) -> float | None:
    """Bytes of the GPU that its process never reserved; None when not recorded."""
    total = views.facts.device(rank, device).memory_bytes
    readings = views.evidence.table("samples").filter(
        (pl.col("metric").cast(pl.String) == "allocator.reserved")
        & pl.col("rank").eq_missing(rank) & (pl.col("device") == device)
    )["value"].drop_nulls()  # fmt: skip
    if total is None or not len(readings):
        return None
    return total - float(readings.to_numpy().max())


def _places(again: pl.DataFrame) -> list[Place]:
    units = again.group_by("unit", "rank", "device").agg(pl.col("alone_ns").sum())
    units = units.sort("alone_ns", "unit", descending=[True, False], nulls_last=True).head(3)
    return [
        Place(op=f"all-gather of {unit}" if unit else "all-gather", rank=rank, device=device)
        for unit, rank, device in units.select("unit", "rank", "device").iter_rows()
    ]


def _keep(held: int | None) -> Remedy:
    much = f"{held / GIB:.3g} GiB" if held is not None else "the gathered parameters"
    return Remedy(
        what="Keep parameters from forward to backward",
        how=f"fully_shard(module, reshard_after_forward=False), if {much} more fit beside the peak "
        "of a step; FSDP1: sharding_strategy=ShardingStrategy.SHARD_GRAD_OP; DeepSpeed: "
        '"zero_optimization": {"stage": 2}.',
        safe=True,
        why_safe="The same values are used; only memory grows. Watch the peak of a whole epoch.",
        effect={"kind": "communication_scaled", "factor": 0.5},
        prove="Record the same steps: all-gathers only in forward, and a shorter backward.",
    )


def _hybrid(size: int | None) -> Remedy:
    group = f"The group has {size} ranks. " if size else ""
    return Remedy(
        what="Shard inside a machine only",
        how=f"{group}Where it spans machines: fully_shard(module, mesh=init_device_mesh('cuda', "
        "(machines, gpus_per_machine), mesh_dim_names=('replicate', 'shard'))); FSDP1: "
        "ShardingStrategy.HYBRID_SHARD. Parameters then come over NVLink, and only gradients "
        "cross the network.",
        safe=False,
        why_safe="It takes as many times the memory as there are machines, and in one report the "
        "loss froze after such a change: compare it over some hundred steps.",
        effect={"kind": "communication_scaled"},
        prove="Record the same steps and compare the loss: all-gathers get shorter.",
    )


def observed_example() -> tuple[Evidence, str]:
    """Three steps of 10 ms; two layers are gathered in forward, and for 1 ms each in backward."""
    return sharded_run(), "6 ms (20.0% of the time)"


def sharded_run(*, wrapped: bool = True, again: bool = True, hidden: bool = False) -> Evidence:
    """Steps of a sharded model of two layers; see ``observed_example``.

    ``wrapped``: the wrapper marks its calls; ``again``: backward gathers a second time; ``hidden``:
    compute kernels run beside that.
    """
    story = Story()
    gather, gemm = "ncclDevKernel_AllGather_RING_LL", "ampere_bf16_s16816gemm_bf16_128x128_tn"
    for number in range(3):
        at = number * 10_000
        story.step(number, at, at + 10_000)
        for index, layer in enumerate("ab" * 2):
            backward = index > 1
            begin, call, run = at + index * 100, index * 2500 + at, index * 2500 + at + 1000
            thread = "autograd" if backward else "main"
            if backward:
                node = "autograd::engine::evaluate_function: AddBackward0"
                story.op(node, begin, begin + 90, thread)
            if not backward or again:
                if wrapped:
                    story.annotate(f"FSDP::all_gather ({layer})", begin + 5, begin + 50, thread)
                story.op("c10d::_allgather_base_", begin + 10, begin + 40, thread)
                when = (begin + 20, begin + 30)
                story.launch(gather, when, (call, run), thread=thread, lane=20)
            story.op("aten::mm", begin + 60, begin + 80, thread)
            start = call if backward and (hidden or not again) else run
            story.launch(gemm, (begin + 65, begin + 70), (start, call + 2500), thread=thread)
    return story.evidence()
