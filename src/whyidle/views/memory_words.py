"""Words for what memory snapshots show: sizes, devices, and the lines that hold memory."""

from __future__ import annotations

import polars as pl

from whyidle.diagnosis import EvidenceRow, Place, Remedy
from whyidle.model import Evidence
from whyidle.views.allocator import GROWS, SHRINKS, DeviceMemory
from whyidle.views.stacks import short, user_line

BEFORE = "memory taken before the recording"
NEAR_NS = 50_000


def size_text(count: float) -> str:
    """Bytes as people write them: 1.5 GiB, 20 MiB, 512 B."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if abs(value) < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} GiB"


def device_text(memory: DeviceMemory) -> str:
    """The device as a sentence names it."""
    device = "device ?" if memory.device is None else f"device {memory.device}"
    return device if memory.rank is None else f"{device} of rank {memory.rank}"


def place_of(memory: DeviceMemory, stack: str | None) -> Place:
    """The line that asked, on its device."""
    file, line = user_line(stack)
    return Place(file=file, line=line, rank=memory.rank, device=memory.device)


def stack_text(stack: str | None, *, seen: bool = True) -> str:
    """A stack as one phrase."""
    return BEFORE if stack is None and not seen else short(stack)


def holders_text(holders: pl.DataFrame, most: int = 3) -> str:
    """The stacks that hold most: "3 GiB in forward (train.py:7); ..."."""
    merged: dict[str, int] = {}
    for row in holders.head(200).iter_rows(named=True):
        text = stack_text(row["stack"], seen=row["seen"])
        merged[text] = merged.get(text, 0) + row["bytes"]
    best = sorted(merged.items(), key=lambda pair: (-pair[1], pair[0]))[:most]
    return "; ".join(f"{size_text(count)} in {text}" for text, count in best)


def source_of(evidence: Evidence, memory: DeviceMemory) -> str:
    """The file that holds the history of a device."""
    if memory.source < len(evidence.sources):
        return evidence.sources[memory.source].path.encode("utf-8", "replace").decode()
    return ""


def with_lines(claims: pl.DataFrame, memories: list[DeviceMemory]) -> pl.DataFrame:
    """Claims on the driver's memory calls, with the line that asked where a snapshot tells it.

    Traces and snapshots of one process count microseconds since 1970 on one clock. A call is joined
    to the event that is nearest, at most 50 us away; claims that have a line keep it.
    """
    frames = [
        memory.events.filter(
            pl.col("action").cast(pl.String).is_in([*GROWS, *SHRINKS])
            & pl.col("t_ns").is_not_null()
            & pl.col("stack").is_not_null()
        ).select("rank", "device", "t_ns", "stack")
        for memory in memories
    ]
    events = pl.concat(frames) if frames else pl.DataFrame()
    if not events.height or not claims.height:
        return claims
    lines = [user_line(stack) for stack in events["stack"].cast(pl.String).to_list()]
    events = events.with_columns(
        pl.Series("told_file", [file for file, _ in lines], dtype=pl.String),
        pl.Series("told_line", [line for _, line in lines], dtype=pl.Int32),
        pl.col("rank").fill_null(-1),
    ).sort("t_ns")
    only = events["rank"].n_unique() == 1 and events["rank"][0] == -1
    by = pl.lit(-1, dtype=pl.Int32) if only else pl.col("rank").fill_null(-1)
    marked = claims.with_row_index("order").with_columns(
        by.alias("by"), ((pl.col("start_ns") + pl.col("end_ns")) // 2).alias("middle")
    )
    joined = marked.sort("middle").join_asof(
        events.select("t_ns", "device", pl.col("rank").alias("by"), "told_file", "told_line"),
        left_on="middle", right_on="t_ns", by=["by", "device"], strategy="nearest",
        check_sortedness=False,
    ).sort("order")  # fmt: skip
    away = pl.max_horizontal(
        pl.col("start_ns") - pl.col("t_ns"), pl.col("t_ns") - pl.col("end_ns"), pl.lit(0)
    )
    told = (away <= NEAR_NS) & pl.col("file").is_null()
    kind = claims.schema["file"]
    return joined.with_columns(
        pl.when(told).then(pl.col("told_file").cast(kind)).otherwise("file").alias("file"),
        pl.when(told).then("told_line").otherwise("line").alias("line"),
    ).select(claims.columns)


def growing_segments(effect: str, prove: str) -> Remedy:
    """The remedy against memory in pieces: one segment that grows, instead of many.

    ``effect`` is the kind of its effect on a replay, ``prove`` how to see that it worked.
    """
    return Remedy(
        what="Let memory segments grow",
        how="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True in the environment before the first "
        "CUDA call (NVIDIA, Linux).",
        safe=False,
        why_safe="Results stay the same, but sharing CUDA tensors between processes and some "
        "libraries that register memory do not work with it.",
        effect={"kind": effect},
        prove=prove,
    )


def event_row(evidence: Evidence, memory: DeviceMemory, at: int, what: str) -> EvidenceRow:
    """One event of the history."""
    row = int(memory.events["event"][at]) if 0 <= at < memory.events.height else None
    return EvidenceRow(source=source_of(evidence, memory), row=row, what=what)
