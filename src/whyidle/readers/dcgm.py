"""Reads ``dcgmi dmon -e ...``: rows of readings of GPUs and of instances of partitioned ones.

A row is "GPU 0  0.912 ..."; instances are "GPU-I 1" and "GPU-CI 3". No time is written; where
the user put one before each row (seconds since 1970, or an ISO time), it is taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import polars as pl

from whyidle.errors import NothingRecorded
from whyidle.model import Evidence
from whyidle.readers.dcgm_fields import FIELDS, SHORT
from whyidle.readers.printed_text import Series, decoded
from whyidle.readers.readings import LOCAL_TIME, Readings
from whyidle.readers.series import Column, Long, clock

NAME = "dcgm"

_HEADER = re.compile(r"^[^\n]*#\s*Entity\s+([^\n]+)$", re.M)
_ROW = r"^\s*(.*?)\s*(GPU(?:-C?I)?)[ :]+(\d+)\s+(.*?)\s*$"


def sniff(path: Path, head: bytes) -> bool:
    """Whether the first bytes hold a header of ``dcgmi dmon``."""
    return b"Entity" in head and _names(decoded(head)) is not None


def _names(text: str) -> list[str] | None:
    found = _HEADER.search(text)
    names = found[1].split() if found else []
    return names if any(name in SHORT for name in names) else None


def read(path: Path, progress: Callable[[int, int], None] | None = None) -> Evidence:
    """The readings in one file."""
    readings = Readings()
    names: list[str] = []
    tables: dict[tuple[str, ...], Long] = {}
    series = Series(path, progress)
    for block, share in series.parts():
        text = block.decode(errors="replace")
        headers = list(_HEADER.finditer(text))
        cuts = [0, *(found.start() for found in headers), len(text)]
        for number, (start, end) in enumerate(zip(cuts, cuts[1:], strict=False)):
            if number:
                names = headers[number - 1][1].split()
            known = [(i, name) for i, name in enumerate(names) if name in SHORT]
            if not known:
                continue
            columns = [_column(i, name) for i, name in known]
            long = tables.setdefault(tuple(names), Long(columns))
            _take(text[start:end], len(names), long, share, readings)
    for long in tables.values():
        long.into(readings)
    if not len(readings):
        raise NothingRecorded(
            str(path), "output of dcgmi dmon without a row", "Let dcgmi dmon run for some samples."
        )
    return readings.evidence(path, NAME, series.digest)


def _column(index: int, name: str) -> Column:
    metric, factor = FIELDS[SHORT[name]]
    unit = {0.01: "%", 1048576.0: "MiB", 1e6: "MHz", 1e-3: "mJ"}.get(factor, "")
    return Column(str(index), metric, unit)


def _take(text: str, width: int, long: Long, share: float, readings: Readings) -> None:
    lines = pl.Series("line", text.split("\n"), dtype=pl.String)
    parts = lines.str.extract_groups(_ROW).struct.unnest()
    parts.columns = ["when", "kind", "number", "cells"]
    parts = parts.filter(pl.col("kind").is_not_null())
    if not parts.height:
        return
    cells = parts["cells"].str.replace_all(r"\s+", " ").str.splitn(" ", width)
    texts = cells.struct.rename_fields([str(i) for i in range(width)]).struct.unnest()
    whole = parts["kind"] == "GPU"
    name = pl.when(whole).then(parts["number"]).otherwise(parts["kind"] + " " + parts["number"])
    when, certain = clock(parts["when"])
    if when.null_count() < len(when):
        readings.note("the time before each row is taken as its time" if certain else LOCAL_TIME)
        readings.clock_error_ns = 1_000_000_000 if certain else None
    places = parts.select(
        name.alias("gpu"),
        pl.when(whole).then(pl.col("number").cast(pl.Int32, strict=False)).alias("device"),
        pl.lit(None, dtype=pl.String).alias("host"),
        pl.lit(None, dtype=pl.Int64).alias("process"),
        when.alias("t_ns"),
    )
    long.add(texts, places, share)
