"""From the parts of an Nsight Systems export to the tables of an Evidence.

A report may hold several processes, whose correlation ids, device numbers and ranks are their
own: each process that used a GPU becomes a source of its own, with its own rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import polars as pl

from whyidle.model import DEVICE_KINDS, SPANS, THREADS, frame
from whyidle.readers.nsys_device import PART

FARTHEST_NS = 1 << 61
"""Instants beyond this many nanoseconds are damage, not time."""


class Processes(NamedTuple):
    """The processes judged, in order of their devices; and how many others are left out."""

    keys: tuple[int, ...]  # global ids; the place is the source's number
    ranks: tuple[int | None, ...]
    others: int

    def numbers(self) -> dict[int, int]:
        """Source number by global id."""
        return {key: number for number, key in enumerate(self.keys)}


def gathered(parts: Iterable[pl.DataFrame], notes: list[str]) -> pl.DataFrame:
    """All parts below each other, with what cannot be an interval left out and noted."""
    far = pl.lit(FARTHEST_NS)
    sound = (
        (pl.col("end_ns") >= pl.col("start_ns"))
        & pl.col("start_ns").is_between(-far, far)
        & pl.col("end_ns").is_between(-far, far)
    ).fill_null(value=False)
    kept: list[pl.DataFrame] = []
    lost = 0
    for one in parts:
        kept.append(one.filter(sound))
        lost += one.height - kept[-1].height
    if lost:
        notes.append(f"{lost} records without a sound start and end are left out")
    return _at_home(pl.concat(kept or [pl.DataFrame(schema=PART)]), notes)


def _at_home(whole: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    """Give records without a process or device the only one there is."""
    work = pl.col("kind").is_in([*DEVICE_KINDS, "device_sync"])
    known = whole["process"].drop_nulls().unique().sort()
    only = int(known[0]) if len(known) else 0
    homeless = whole.filter(pl.col("process").is_null()).height
    if homeless and len(known) > 1:
        notes.append(f"{homeless} records do not name their process and are taken as of {only}")
    nowhere = whole.filter(work & pl.col("device").is_null()).height
    if nowhere:
        notes.append(f"{nowhere} records on a device do not name it and are taken as device 0")
    return whole.with_columns(
        pl.col("process").fill_null(only),
        pl.when(work).then(pl.col("device").fill_null(0)).alias("device"),
    )


def processes(whole: pl.DataFrame, stated_rank: int | None) -> Processes:
    """Which processes count: those with device work, or, when none has any, those that called.

    A launcher's rank is believed for a single process. Several are numbered in order of device,
    then of process id: so does torchrun number the ranks of a node.
    """
    working = whole.filter(pl.col("kind").is_in(DEVICE_KINDS))
    if not working.height:
        working = whole.filter(pl.col("kind").is_in(["runtime", "op", "annotation"]))
    firsts = working.group_by("process").agg(pl.col("device").min()).sort("device", "process")
    keys = tuple(firsts["process"].to_list())
    ranks = (stated_rank,) if len(keys) == 1 else tuple(range(len(keys)))
    return Processes(keys, ranks, whole["process"].n_unique() - len(keys))


def spans_of(whole: pl.DataFrame, found: Processes, base_ns: int) -> pl.DataFrame:
    """The ``spans`` table: by start, longer spans first; ``thread`` numbers (source, thread id).

    System calls are kept on threads that did something else as well.
    """
    numbers = found.numbers()
    ranks = dict(enumerate(found.ranks))
    kept = whole.filter(pl.col("process").is_in(list(found.keys))) if found.others else whole
    kept = kept.with_columns(
        pl.col("process").replace_strict(numbers, return_dtype=pl.UInt16).alias("source")
    )
    told = kept.filter(pl.col("tid").is_not_null() & (pl.col("kind") != "system"))
    threads = told.select("source", "tid").unique().sort("source", "tid")
    threads = threads.with_row_index("thread").cast({"thread": pl.UInt32})
    kept = kept.join(threads, on=["source", "tid"], how="left", maintain_order="left")
    kept = kept.filter((pl.col("kind") != "system") | pl.col("thread").is_not_null())
    kept = kept.sort("start_ns", "end_ns", descending=[False, True], maintain_order=True)
    number = pl.int_range(pl.len(), dtype=pl.UInt32)
    rank = pl.col("source").replace_strict(ranks, return_dtype=pl.Int32)
    return frame(
        {**SPANS, "tid": pl.Int64},
        kept.with_columns(
            number.alias("row"),
            number.alias("event"),
            rank.alias("rank"),
            pl.col("start_ns") + base_ns,
            pl.col("end_ns") + base_ns,
        ),
    )


def threads_of(
    spans: pl.DataFrame, found: Processes, names: Mapping[tuple[int, int], str], low_bits: int
) -> pl.DataFrame:
    """The ``threads`` table; ``names`` are recorded names by (process, thread id)."""
    listed = spans.filter(pl.col("thread").is_not_null())
    listed = listed.select("thread", "source", "tid").unique("thread").sort("thread")
    sources, tids = listed["source"].to_list(), listed["tid"].to_list()
    keys = [found.keys[source] for source in sources]
    return frame(
        THREADS,
        {
            "thread": listed["thread"],
            "rank": [found.ranks[source] for source in sources],
            "process": [str(key >> low_bits & ((1 << low_bits) - 1)) for key in keys],
            "name": [names.get(pair) or str(pair[1]) for pair in zip(keys, tids, strict=True)],
        },
    )
