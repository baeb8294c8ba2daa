"""Processes that hold memory on a GPU, and sampled against traced work of the same GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from whyidle.intervals import overlap_ns
from whyidle.views.sampled_gpus import NAMES
from whyidle.views.sampled_matches import on_trace_clock

if TYPE_CHECKING:
    from whyidle.views import Views

CONTEXT_BYTES = 64 * 2**20
"""A process that computes holds more than this: its CUDA context alone does."""

MOSTLY = 0.8
"""A reading is compared with a trace that covers so much of its period."""

LEAST_COMPARED = 2

SHARING: dict[str, Any] = {
    "number": pl.UInt32, "processes": pl.List(pl.Int64), "bytes": pl.List(pl.Float64),
    "source": pl.UInt16,
}  # fmt: skip
"""One row: a GPU on which several processes held memory at one instant; the fullest instant."""


def sharing(views: Views) -> pl.DataFrame:
    """GPUs with several processes that hold memory at once; see SHARING.

    Graphics processes, and GPUs that are partitioned (MIG), are left out.
    """
    sampled = views.sampled
    rows = (
        views.evidence.table("samples").lazy()
        .filter(pl.col("process").is_not_null() & (pl.col("value") > CONTEXT_BYTES))
        .with_columns(pl.col("host", "gpu", "metric").cast(pl.String))
        .filter(pl.col("metric") == "memory_used")
        .join(sampled.members.lazy(), on=list(NAMES), nulls_equal=True)
        .collect()
    )  # fmt: skip
    parted = sampled.settings.filter(
        (pl.col("key") == "mig_mode") & (pl.col("value") == "Enabled")
    )["number"]  # fmt: skip
    rows = rows.filter(~pl.col("number").is_in(parted.implode()))
    drawing = _graphics(views)
    rows = rows.join(drawing, on=["number", "process"], how="anti")
    rows = rows.unique(["number", "source", "t_ns", "process"])
    moments = rows.sort("process").group_by("number", "source", "t_ns").agg(
        pl.col("process").alias("processes"),
        pl.col("value").alias("bytes"),
        pl.col("process").n_unique().alias("count"),
    )  # fmt: skip
    most = moments.filter(pl.col("count") > 1).sort(
        "number", "count", "t_ns", descending=[False, True, False]
    )
    found = most.unique("number", keep="first", maintain_order=True)
    return found.select(pl.col(name).cast(kind) for name, kind in SHARING.items())


def _graphics(views: Views) -> pl.DataFrame:
    """number, process of processes that only draw."""
    told = views.sampled.settings.filter(pl.col("key") == "process").select(
        "number", pl.col("value").str.split(" ").alias("words")
    )
    drawing = told.filter(pl.col("words").list.get(1, null_on_oob=True) == "G")
    pid = pl.col("words").list.get(0).cast(pl.Int64, strict=False).alias("process")
    return drawing.select("number", pid).unique()


def process_names(views: Views) -> dict[int, str]:
    """What a process is called, by pid, where that was told."""
    told = views.sampled.settings.filter(pl.col("key") == "process")["value"].drop_nulls()
    found: dict[int, str] = {}
    for text in told.to_list():
        pid, _, rest = text.partition(" ")
        name = rest.partition(" ")[2].strip()
        if pid.isdigit() and name:
            found[int(pid)] = name.replace("\\", "/").rsplit("/", 1)[-1].split(" ")[0]
    return found


class Compared(NamedTuple):
    """Busy shares of one GPU over the same ``seconds``.

    ``kernels`` and ``work`` are traced: kernels alone, and with copies.
    """

    number: int
    seconds: float
    sampled: float
    kernels: float
    work: float


def compared(views: Views) -> list[Compared]:
    """Sampled against traced work, for GPUs that are known to be the same on one clock."""
    sampled = views.sampled
    sources = dict(sampled.gpus.select("number", "source").iter_rows())
    found: list[Compared] = []
    for number, match in sorted(views.matches.items()):
        if not on_trace_clock(views, sources[number]):
            continue
        mine = sampled.pieces.filter((pl.col("number") == number) & pl.col("busy_ns").is_not_null())
        one = _compared(views, match.rank, match.device, mine)
        if one is not None:
            found.append(Compared(number, *one))
    return found


def _compared(
    views: Views, rank: int | None, device: int, pieces: pl.DataFrame
) -> tuple[float, float, float, float] | None:
    states = views.states
    start, end = pieces["start_ns"].to_numpy(), pieces["end_ns"].to_numpy()
    total = busy = kernels = work = 0
    count = 0
    for at, row in enumerate(states.windows.iter_rows(named=True)):
        if (row["rank"], row["device"]) != (rank, device):
            continue
        low, high = np.maximum(start, row["start_ns"]), np.minimum(end, row["end_ns"])
        inside = np.flatnonzero(high - low >= MOSTLY * (end - start))
        if not inside.size:
            continue
        group = np.full(inside.size, at)
        begins, finishes = states.axis.put(group, low[inside]), states.axis.put(group, high[inside])
        took = (finishes - begins).astype(np.int64)
        compute, talk, copies = (
            int(overlap_ns(begins, finishes, states.sets[code]).sum()) for code in (0, 1, 2)
        )
        count += inside.size
        total += int(took.sum())
        busy += int((pieces["value"].to_numpy()[inside] * took).sum())
        kernels += compute + talk
        work += compute + talk + copies
    if count < LEAST_COMPARED or total == 0:
        return None
    return total / 1e9, busy / total, kernels / total, work / total
