"""What host threads did, in an Nsight Systems export: CUDA calls, NVTX ranges, system calls.

NVTX ranges that PyTorch's ``emit_nvtx`` writes carry more than a name, such as
``aten::mm, seq = 12, op_id = 345, sizes = [[8, 8], [8, 8]]``: they are taken apart into name,
autograd sequence number and shapes, and are operators; every other range is an annotation.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from whyidle.model import KINDS
from whyidle.readers.nsys_device import distinct, looked_up, part
from whyidle.readers.nsys_tables import Tables
from whyidle.readers.torch_names import MARKS

CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
OVERHEAD = "CUPTI_ACTIVITY_KIND_OVERHEAD"
PROFILER = "PROFILER_OVERHEAD"
RANGES = "NVTX_EVENTS"
SYSTEM = "OSRT_API"

PROCESS_BITS = 24
"""A global thread id is the process's global id with the thread id in its low 24 bits."""
_LOW = (1 << PROCESS_BITS) - 1

PUSH_POP, START_END = 59, 60
"""eventType of a range that nests in its thread, and of one that may end anywhere."""

_QUEUE_FULL = 8
"""overheadType (ENUM_CUPTI_OVERHEAD_TYPE) of a launch that waits for room in the queue."""

_VERSION = r"(_v\d{4,5})?(_ptsz|_ptds)?$"
"""CUPTI's name of a runtime call ends in the CUDA version that brought it."""
_EMITTED = r", (?:seq|op_id|sizes|input_op_ids) = "


def host_parts(tables: Tables) -> Iterator[pl.DataFrame]:
    """Frames of PART with everything that host threads recorded."""
    yield from _calls(tables)
    yield from _overhead(tables)
    yield from _ranges(tables)
    yield from _system(tables)


def _calls(tables: Tables) -> Iterator[pl.DataFrame]:
    batches = list(_named(tables, CALLS))
    texts = tables.strings(distinct(batches, "text"))
    plain = pl.Series([*texts.values()], dtype=pl.String).str.replace(_VERSION, "")
    texts = dict(zip(texts, plain.to_list(), strict=True))
    for batch in batches:
        yield part(batch, "runtime", looked_up(batch["text"], texts, "CUDA call"))


def _overhead(tables: Tables) -> Iterator[pl.DataFrame]:
    """Time that the profiler or the driver took; a full launch queue is neither."""
    full = pl.col("type").eq(_QUEUE_FULL).fill_null(value=False)
    for table in (OVERHEAD, PROFILER):
        batches = [batch.filter(~full) for batch in _named(tables, table, type="overheadType")]
        texts = tables.strings(distinct(batches, "text"))
        for batch in batches:
            named = looked_up(batch["text"], texts, "profiler overhead")
            yield part(batch.drop("correlation"), "overhead", named)


def _system(tables: Tables) -> Iterator[pl.DataFrame]:
    """Calls of the operating system's libraries, such as read and poll."""
    batches = list(_named(tables, SYSTEM))
    texts = tables.strings(distinct(batches, "text"))
    for batch in batches:
        yield part(
            batch.drop("correlation"), "system", looked_up(batch["text"], texts, "system call")
        )


def _named(tables: Tables, table: str, **more: str) -> Iterator[pl.DataFrame]:
    if tables.has(table, "start", "end"):
        for batch in tables.numbers(
            table,
            start_ns="start",
            end_ns="end",
            thread="globalTid",
            correlation="correlationId",
            text="nameId",
            **more,
        ):
            yield _on_threads(batch)


def _on_threads(batch: pl.DataFrame) -> pl.DataFrame:
    thread = pl.col("thread")
    return batch.with_columns(
        (thread - (thread & _LOW)).alias("process"), (thread & _LOW).alias("tid")
    )


def _ranges(tables: Tables) -> Iterator[pl.DataFrame]:
    if not tables.has(RANGES, "start", "end"):
        return
    numbers = tables.numbers(
        RANGES, start_ns="start", end_ns="end", thread="globalTid", type="eventType", id="textId"
    )
    for batch, written in zip(numbers, _written(tables), strict=False):
        texts = tables.strings(batch["id"].drop_nulls().unique().to_list())
        spoken = looked_up(batch["id"], texts, "").cast(pl.String)
        whole = batch.with_columns(
            (spoken if written is None else written.fill_null(spoken)).alias("text")
        )
        wanted = pl.col("type").is_null() | pl.col("type").is_in([PUSH_POP, START_END])
        whole = whole.filter(wanted & pl.col("end_ns").is_not_null() & (pl.col("text") != ""))
        yield _ranged(_on_threads(whole))


def _written(tables: Tables) -> Iterator[pl.Series | None]:
    """Texts that stand in the table itself, batch by batch; None where it has no such column."""
    if tables.has(RANGES, "text"):
        yield from tables.texts(RANGES, "text")
    while True:
        yield None


def _ranged(batch: pl.DataFrame) -> pl.DataFrame:
    """Ranges as spans: what ``emit_nvtx`` wrote is taken apart."""
    if batch["text"].str.contains(_EMITTED).any():
        batch = _apart(batch)
    else:
        batch = batch.with_columns(
            pl.lit(None, dtype=pl.Int64).alias("sequence"), pl.lit(False).alias("emitted")
        )
    name = batch["text"].cast(pl.Categorical)
    numbered = batch["emitted"] & (
        batch["sequence"].is_not_null() | name.is_in(_operators(name.unique()).implode())
    )
    kind = pl.select(
        pl.when(numbered).then(pl.lit("op", dtype=KINDS)).otherwise(
            pl.lit("annotation", dtype=KINDS)
        )
    ).to_series()  # fmt: skip
    return part(batch, "annotation", name).with_columns(kind.alias("kind"))


def _apart(batch: pl.DataFrame) -> pl.DataFrame:
    """Names without what PyTorch wrote behind them, and that as columns.

    The order is fixed: name, seq, op_id, sizes, input_op_ids; any may be missing.
    """
    first, rest = "field_0", "field_1"
    text = batch["text"].str.splitn(", input_op_ids = ", 2).struct.field(first)
    sized = text.str.splitn(", sizes = ", 2).struct.unnest()
    counted = sized[first].str.splitn(", op_id = ", 2).struct.unnest()
    named = counted[first].str.splitn(", seq = ", 2).struct.unnest()
    shapes = sized.select(pl.when(pl.col(rest).str.contains(r"^\[.*\]$")).then(rest)).to_series()
    return batch.with_columns(
        named[first].alias("text"),
        named[rest].str.to_integer(strict=False).alias("sequence"),
        shapes.cast(pl.Categorical).alias("shapes"),
        (named[first].str.len_bytes() < batch["text"].str.len_bytes()).alias("emitted"),
    )


def _operators(names: pl.Series) -> pl.Series:
    """Those of the names that are framework operators, not marks that a user or it could set."""
    text = names.cast(pl.String)
    operator = text.str.contains(r"::|Backward\d*$") & ~text.str.contains_any(list(MARKS))
    return names.filter(operator)
