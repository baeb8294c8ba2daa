"""Device work of an Nsight Systems export: kernels, copies, sets, whole graphs, waits.

Frames here have the columns of ``PART``; one row is one span. Copies, sets and waits are named as
the PyTorch profiler names them, so that one rule reads both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import polars as pl

from whyidle.model import KINDS, SPANS
from whyidle.readers.nsys_tables import Tables

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
SETS = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
WAITS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"

PART: dict[str, pl.DataType | type[pl.DataType]] = {
    "process": pl.Int64,  # global id of the process: its id in bits 24 to 47, the machine above
    "tid": pl.Int64,  # the operating system's thread id; null on a device
    **{
        name: SPANS[name]
        for name in (
            "device", "lane", "kind", "name", "start_ns", "end_ns", "correlation", "sequence",
            "bytes", "blocks", "block_threads", "shapes",
        )
    },
}  # fmt: skip

_COPY_WAYS = {
    1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD",
    9: "HtoH", 10: "PtoP", 11: "HtoD", 12: "DtoH", 13: "DtoD",
}  # fmt: skip
"""copyKind (ENUM_CUDA_MEMCPY_OPER); 11 to 13 are moves of managed memory."""
_MANAGED = (11, 12, 13)
_MEMORY = {
    0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device Static",
    6: "Managed Static",
}  # fmt: skip
"""srcKind, dstKind and memKind (ENUM_CUDA_MEM_KIND)."""
_WAITS = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
"""syncType (ENUM_CUPTI_SYNC_TYPE)."""


def device_parts(tables: Tables) -> Iterator[pl.DataFrame]:
    """Frames of PART with everything that devices recorded."""
    yield from _kernels(tables)
    yield from _copies(tables)
    yield from _sets(tables)
    yield from _graphs(tables)
    yield from _waits(tables)


def _spans(tables: Tables, table: str, **more: str) -> Iterator[pl.DataFrame]:
    """Batches of what all device tables share, and ``more`` columns."""
    if tables.has(table, "start", "end"):
        yield from tables.numbers(
            table,
            start_ns="start",
            end_ns="end",
            device="deviceId",
            lane="streamId",
            correlation="correlationId",
            process="globalPid",
            **more,
        )


def _kernels(tables: Tables) -> Iterator[pl.DataFrame]:
    batches = list(
        _spans(
            tables,
            KERNELS,
            long="demangledName",
            short="shortName",
            mangled="mangledName",
            blocks="gridX*gridY*gridZ",
            block_threads="blockX*blockY*blockZ",
        )
    )
    named = [batch.with_columns(pl.coalesce("long", "short", "mangled")) for batch in batches]
    texts = tables.strings(distinct(named, "long"))
    for batch in named:
        yield part(batch, "kernel", looked_up(batch["long"], texts, "kernel"))


def _copies(tables: Tables) -> Iterator[pl.DataFrame]:
    for batch in _spans(
        tables, COPIES, bytes="bytes", way="copyKind", source="srcKind", target="dstKind"
    ):
        named = batch.select(
            pl.format(
                "Memcpy {} ({} -> {}){}",
                _told("way", _COPY_WAYS, "?"),
                _told("source", _MEMORY, "Unknown"),
                _told("target", _MEMORY, "Unknown"),
                pl.when(pl.col("way").is_in(_MANAGED)).then(pl.lit(" migration")).otherwise(
                    pl.lit("")
                ),
            )
        ).to_series()  # fmt: skip
        yield part(batch, "copy", named)


def _sets(tables: Tables) -> Iterator[pl.DataFrame]:
    for batch in _spans(tables, SETS, bytes="bytes", memory="memKind"):
        named = batch.select(pl.format("Memset ({})", _told("memory", _MEMORY, "Unknown")))
        yield part(batch, "set", named.to_series())


def _graphs(tables: Tables) -> Iterator[pl.DataFrame]:
    """Whole graphs, which stand for all their kernels where nodes were not recorded."""
    for batch in _spans(tables, GRAPHS, graph="graphId"):
        named = batch.select(
            pl.format("CUDA graph {}", pl.col("graph").cast(pl.String).fill_null("?"))
        ).to_series()
        yield part(batch, "kernel", named)


def _waits(tables: Tables) -> Iterator[pl.DataFrame]:
    for batch in _spans(tables, WAITS, what="syncType"):
        named = batch.select(_told("what", _WAITS, "Sync")).to_series()
        yield part(batch, "device_sync", named)


def _told(column: str, names: Mapping[int, str], otherwise: str) -> pl.Expr:
    return pl.col(column).replace_strict(names, default=otherwise, return_dtype=pl.String)


def part(batch: pl.DataFrame, kind: str, name: pl.Series) -> pl.DataFrame:
    """A frame of PART; numbers that do not fit their column become null."""
    have = {*batch.columns} & {*PART}
    whole = batch.select(have).with_columns(
        name.cast(pl.Categorical).alias("name"), pl.lit(kind, dtype=KINDS).alias("kind")
    )
    return whole.select(
        (pl.col(column) if column in whole.columns else pl.lit(None))
        .cast(dtype, strict=False)
        .alias(column)
        for column, dtype in PART.items()
    )


def distinct(batches: Iterable[pl.DataFrame], column: str) -> set[int]:
    """The different numbers of a column in all batches."""
    found: set[int] = set()
    for batch in batches:
        found |= set(batch[column].drop_nulls().unique().to_list())
    return found


def looked_up(ids: pl.Series, texts: Mapping[int, str], otherwise: str) -> pl.Series:
    """The text of each id; ``otherwise`` where the file does not hold it."""
    if not texts:
        return pl.repeat(otherwise, len(ids), dtype=pl.Categorical, eager=True)
    keys = pl.Series([*texts], dtype=pl.Int64)
    names = pl.Series([*texts.values()], dtype=pl.Categorical)
    at = ids.replace_strict(
        keys, pl.Series(range(len(keys)), dtype=pl.UInt32), default=None, return_dtype=pl.UInt32
    )
    return names.gather(at).fill_null(otherwise)
