"""Reads records of training steps in Parquet: one row per operation of each rank and step.

The format is that of the records published with "Understanding Stragglers in Large Model Training
Using What-if Analysis" (arXiv 2505.05713): columns dp_rank, stage, rank, step, optype, start_ts,
duration (seconds), seq_id, mc, mb_id, gmc. Instants count from the start of each step, and only
some steps of a run are recorded. Here the steps lie end to end, in order of their numbers; what
lay between them is not known.

Operations become device work: computing on one lane, each kind of communication on its own. Names
say what they are: ``forward_compute (stage 2)``, ``grads_reduce_scatter``. Single-precision seconds
are exact to about a microsecond in steps of ten seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from whyidle.errors import NothingRecorded, UnreadableEvidence
from whyidle.model import (
    MESSAGES,
    OPERATIONS,
    SPANS,
    THREADS,
    DeviceInfo,
    Evidence,
    Facts,
    SourceInfo,
    frame,
)

NAME = "step_records"

NEEDED = {
    "dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mb_id", "gmc",
}  # fmt: skip
MOST_ROWS = 50_000_000
LONGEST_S = 86_400.0
COMPUTES = ("forward-compute", "backward-compute", "optimizer")
PAIRS = {"forward-send": 1, "forward-recv": -1, "backward-send": -1, "backward-recv": 1}
"""Kinds of exchanges between stages, and where the counterpart lies."""

COLLECTIVES = {
    "params-all-gather": "all_gather",
    "grads-reduce-scatter": "reduce_scatter",
    "separate-grads-all-reduce": "all_reduce",
    "layernorm-grads-all-reduce": "all_reduce",
    "embedding-grads-all-reduce": "all_reduce",
    "optimizer-clip-main-grad": "all_reduce",
}
RECORD = (
    "Write the columns dp_rank, stage, rank, step, optype, start_ts, duration, seq_id, mb_id, gmc."
)

Progress = Callable[[int, int], None]


def sniff(path: Path, head: bytes) -> bool:
    """Whether this is a Parquet file with the columns of step records."""
    if not head.startswith(b"PAR1"):
        return False
    try:
        return set(pl.read_parquet_schema(path)) >= NEEDED
    except (pl.exceptions.PolarsError, OSError):
        return False


def read(path: Path, progress: Progress | None = None) -> Evidence:
    """The evidence in one file of step records, all ranks of it."""
    rows = _sound(_loaded(path), path)
    if progress is not None:
        progress(path.stat().st_size, path.stat().st_size)
    steps = rows.group_by("step").agg(
        pl.col("start").min().alias("first"), pl.col("end").max().alias("last")
    ).sort("step")  # fmt: skip
    lengths = (steps["last"] - steps["first"]).to_numpy()
    steps = steps.with_columns(
        pl.Series("laid", np.concatenate([[0], np.cumsum(lengths)[:-1]]), dtype=pl.Int64),
        pl.int_range(pl.len(), dtype=pl.Int64).alias("place"),
    )
    rows = rows.join(steps, on="step", how="left", maintain_order="left").with_columns(
        (pl.col("start") - pl.col("first") + pl.col("laid")).alias("start_ns"),
        (pl.col("end") - pl.col("first") + pl.col("laid")).alias("end_ns"),
    )
    spans, threads = _spans(rows, steps)
    tables = {
        "spans": spans,
        "threads": threads,
        "messages": _messages(rows),
        "operations": _operations(rows),
    }
    ranks = rows["rank"].unique().sort().to_list()
    numbers = steps["step"]
    note = (
        f"{steps.height} recorded steps ({numbers[0]} to {numbers[-1]}) of {len(ranks)} ranks, "
        "laid end to end; what lay between them was not recorded, nor was any host"
    )
    facts = Facts(devices={(rank, 0): DeviceInfo() for rank in ranks})
    only = ranks[0] if len(ranks) == 1 else None
    source = SourceInfo(str(path), NAME, only, rows.height, notes=(note,))
    return Evidence(tables, facts, (source,))


def _loaded(path: Path) -> pl.DataFrame:
    try:
        count = pl.scan_parquet(path).select(pl.len()).collect().item()
        if count > MOST_ROWS:
            raise UnreadableEvidence(
                str(path), f"{count} rows, more than {MOST_ROWS}", "Split it by steps."
            )
        return pl.read_parquet(path, columns=sorted(NEEDED)).with_row_index("event")
    except (pl.exceptions.PolarsError, OSError) as error:
        text = " ".join(str(error).split())[:200]
        raise UnreadableEvidence(
            str(path), f"not a sound Parquet file ({text})", "Write or copy the file again."
        ) from error


def _sound(rows: pl.DataFrame, path: Path) -> pl.DataFrame:
    """Rows with usable numbers; starts and ends in whole nanoseconds from the step's start."""
    whole = ("dp_rank", "stage", "rank", "step", "seq_id", "mb_id", "gmc")
    try:
        rows = rows.with_columns(
            *(pl.col(name).cast(pl.Int64) for name in whole),
            pl.col("optype").cast(pl.String),
            pl.col("start_ts").cast(pl.Float64),
            pl.col("duration").cast(pl.Float64),
        )
    except pl.exceptions.PolarsError as error:
        raise UnreadableEvidence(
            str(path), "columns of another type than numbers and names", RECORD
        ) from error
    usable = (
        pl.col("start_ts").is_finite()
        & pl.col("duration").is_between(0, LONGEST_S)
        & (pl.col("start_ts").abs() < 1e9)
        & pl.col("rank").is_between(0, (1 << 31) - 1)
        & pl.all_horizontal(pl.col(name).is_not_null() for name in (*whole, "optype"))
    )
    kept = rows.filter(usable)
    if not kept.height:
        raise NothingRecorded(str(path), "no operation with a usable start and duration", RECORD)
    start, end = pl.col("start_ts") * 1e9, (pl.col("start_ts") + pl.col("duration")) * 1e9
    return kept.with_columns(
        start.round().cast(pl.Int64).alias("start"), end.round().cast(pl.Int64).alias("end")
    )


def _spans(rows: pl.DataFrame, steps: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Operations as device work, steps as marks of one thread per rank."""
    base = pl.col("optype").str.replace_all("-", "_")
    pair = pl.col("optype").is_in(list(PAIRS))
    name = (
        pl.when(pl.col("optype").is_in(COMPUTES))
        .then(pl.format("{} (stage {})", base, "stage"))
        .when(pair)
        .then(pl.format("{} (SendRecv)", base))
        .when(pl.col("optype") == "optimizer-clip-main-grad")
        .then(pl.format("{} (all_reduce)", base))
        .otherwise(base)
    )
    kinds = sorted({*PAIRS, *COLLECTIVES})
    lane = pl.col("optype").replace_strict(
        kinds, range(20, 20 + len(kinds)), default=7, return_dtype=pl.Int64
    )
    work = rows.filter(pl.col("end_ns") > pl.col("start_ns")).select(
        "event", "rank", pl.lit(0).alias("device"), lane.alias("lane"),
        pl.lit("kernel").alias("kind"), name.alias("name"), "start_ns", "end_ns",
    )  # fmt: skip
    ranks = rows["rank"].unique().sort()
    threads = frame(
        THREADS,
        {
            "thread": list(range(len(ranks))),
            "rank": ranks.to_list(),
            "process": ["records"] * len(ranks),
            "name": ["steps"] * len(ranks),
        },
    )
    marks = steps.join(threads.select("rank", "thread"), how="cross").select(
        "rank", "thread",
        pl.lit("annotation").alias("kind"),
        pl.format("ProfilerStep#{}", "step").alias("name"),
        pl.col("laid").alias("start_ns"),
        (pl.col("laid") + pl.col("last") - pl.col("first")).alias("end_ns"),
    )  # fmt: skip
    both = pl.concat([frame(SPANS, work), frame(SPANS, marks)]).sort(
        "start_ns", "end_ns", descending=[False, True], maintain_order=True
    )
    return both.with_columns(
        pl.int_range(pl.len(), dtype=pl.UInt32).alias("row"),
        pl.lit(0, pl.UInt16).alias("source"),
    ), threads


def _messages(rows: pl.DataFrame) -> pl.DataFrame:
    """Who takes part in each exchange, and its running number."""
    stages, replicas = rows["stage"].n_unique(), rows["dp_rank"].n_unique()
    moves = rows.filter(pl.col("optype").is_in([*PAIRS, *COLLECTIVES]))
    kind = pl.col("optype")
    on = kind.replace_strict(PAIRS, default=0, return_dtype=pl.Int64)
    other = (pl.col("stage") + on) % stages
    sends, pair = kind.str.ends_with("-send"), kind.is_in(list(PAIRS))
    replica, stage = pl.col("dp_rank"), pl.col("stage")
    group = (
        pl.when(pair).then(pl.format("{} of replica {}", kind.str.split("-").list.first(), replica))
        .when(kind == "embedding-grads-all-reduce")
        .then(pl.format("embeddings of replica {}", replica))
        .when(kind == "layernorm-grads-all-reduce")
        .then(pl.format("rank {}", "rank"))
        .when(kind == "optimizer-clip-main-grad")
        .then(pl.lit("all"))
        .otherwise(pl.format("{} of stage {}", kind, stage))
    )  # fmt: skip
    size = (
        pl.when(pair).then(2)
        .when(kind == "embedding-grads-all-reduce").then(min(stages, 2))
        .when(kind == "layernorm-grads-all-reduce").then(1)
        .when(kind == "optimizer-clip-main-grad").then(stages * replicas)
        .otherwise(replicas)
    )  # fmt: skip
    told = moves.select(
        pl.lit(0).alias("source"),
        "event",
        group.alias("group"),
        size.alias("size"),
        (pl.col("place") * (1 << 20) + pl.col("seq_id")).alias("sequence"),
        kind.replace_strict(COLLECTIVES, default="send_recv", return_dtype=pl.String)
        .alias("collective"),
        pl.when(pair).then(pl.when(sends).then(stage).otherwise(other)).alias("sender"),
        pl.when(pair).then(pl.when(sends).then(other).otherwise(stage)).alias("receiver"),
    )  # fmt: skip
    return frame(MESSAGES, told)


def _operations(rows: pl.DataFrame) -> pl.DataFrame:
    names: dict[str, Any] = {
        "dp_rank": "replica", "optype": "name", "seq_id": "sequence", "mb_id": "micro_batch",
        "gmc": "chunk", "start": "start_ns", "end": "end_ns",
    }  # fmt: skip
    kept = rows.drop("start_ns", "end_ns").rename(names)
    return frame(OPERATIONS, kept.with_columns(pl.lit(0).alias("source")))
