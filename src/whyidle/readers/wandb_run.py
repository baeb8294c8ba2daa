"""Reads W&B runs without W&B: ``run-*.wandb`` files and exported system metrics (JSONL, CSV).

A ``.wandb`` file is a log of LevelDB's kind: blocks of 32 KiB, records with a checksum, each a
protobuf Record. Readings come from its statistics (``gpu.0.gpu``, each 10 to 15 s) and from what
the user logged (``user/`` + key, at W&B's ``_timestamp``). Exports are the files
``wandb-events.jsonl`` and CSV with columns such as ``system.gpu.0.gpu``.

W&B averages its samples over its interval; what a run wrote in sums over GPUs is not taken apart.
"""

from __future__ import annotations

import io
import math
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from whyidle.errors import NothingRecorded, UnknownEvidence, UnreadableEvidence
from whyidle.model import HOST_METRICS, METRICS, Evidence
from whyidle.readers.printed_text import decoded, printed
from whyidle.readers.protobuf_wire import BrokenMessage, blobs, fields
from whyidle.readers.readings import Readings
from whyidle.readers.series import LATEST_NS, times, values
from whyidle.readers.source_bytes import SourceBytes
from whyidle.readers.wandb_names import translated

NAME = "wandb"

MAGIC = b":W&B\xe1\xbe"
BLOCK = 32768
RECORD_LIMIT = 1 << 28
FILE_LIMIT = 1 << 30
UNITS = METRICS | HOST_METRICS
HISTORY, STATISTICS = 2, 7
_SYSTEM = re.compile(r"(?:system\.)?gpu\.(?:process\.)?\d+\.\w+")

Row = tuple[str, float | None, Any]
"""Key as W&B has it, seconds since 1970, value."""


def sniff(path: Path, head: bytes) -> bool:
    """Whether the first bytes are a W&B run, or an export that holds GPU metrics."""
    if head.startswith(MAGIC):
        return True
    if b"gpu." not in head:
        return False
    first = next((line for line in decoded(head).splitlines() if line.strip()), "")
    if first.lstrip().startswith("{"):
        return '"_timestamp"' in first or '"_runtime"' in first
    return _SYSTEM.search(first) is not None and ("," in first or "\t" in first)


def read(path: Path, progress: Callable[[int, int], None] | None = None) -> Evidence:
    """The readings in one file."""
    readings = Readings()
    with SourceBytes(path) as source:
        head = bytearray(len(MAGIC))
        count = source.read_into(memoryview(head))
    if bytes(head[:count]).startswith(MAGIC):
        data, digest = _whole(path)
        rows = list(_log_rows(path, data, readings))
    else:
        found = printed(path, progress)
        readings.notes += found.notes
        digest = found.digest
        is_json = found.text.lstrip().startswith("{")
        rows = list(_json_rows(path, found.text) if is_json else _csv_rows(path, found.text))
    _add(rows, readings)
    if not len(readings):
        raise NothingRecorded(
            str(path), "a W&B run without a system metric or a logged number",
            "Sync or finish the run, and name its .wandb file.",
        )  # fmt: skip
    readings.clock_error_ns = 1_000_000_000
    return readings.evidence(path, NAME, digest)


def _whole(path: Path) -> tuple[bytes, str]:
    with SourceBytes(path) as source:
        if source.size > FILE_LIMIT:
            raise UnknownEvidence(
                str(path), "a W&B run of more than 1 GiB", "Export its system metrics as CSV."
            )
        parts: list[bytes] = []
        buffer = bytearray(1 << 20)
        while count := source.read_into(memoryview(buffer)):
            parts.append(bytes(buffer[:count]))
        return b"".join(parts), source.digest()


def _log_records(data: bytes, readings: Readings) -> Iterator[bytes]:
    """Whole records of the log; one with a wrong checksum is left out and counted."""
    at, bad = 7, 0
    parts: list[bytes] = []
    while at + 7 <= len(data):
        left = BLOCK - at % BLOCK
        if left < 7:
            at += left
            continue
        crc = int.from_bytes(data[at : at + 4], "little")
        size = int.from_bytes(data[at + 4 : at + 6], "little")
        kind = data[at + 6]
        body = data[at + 7 : at + 7 + size]
        if kind == 0 and size == 0:
            at += left
            continue
        if len(body) < size or kind > 4:
            readings.note("the run's last record is cut short, as when a job is killed")
            break
        at += 7 + size
        if zlib.crc32(body, zlib.crc32(bytes([kind]))) != crc:
            bad += 1
            parts.clear()
            continue
        if kind in (1, 2):
            parts.clear()
        parts.append(body)
        if kind in (1, 4) and sum(map(len, parts)) <= RECORD_LIMIT:
            yield b"".join(parts)
            parts.clear()
    if bad:
        readings.note(f"{bad} records with a wrong checksum were left out")


def _log_rows(path: Path, data: bytes, readings: Readings) -> Iterator[Row]:
    seen = 0
    for record in _log_records(data, readings):
        seen += 1
        try:
            for number, _, value in fields(record):
                if number == HISTORY and isinstance(value, bytes):
                    yield from _history(value)
                elif number == STATISTICS and isinstance(value, bytes):
                    yield from _statistics(value)
        except BrokenMessage:
            readings.note("a record that is no message was left out")
    if not seen:
        raise UnreadableEvidence(
            str(path),
            "a W&B run without a whole record",
            "Copy the file again after the run ended.",
        )


def _items(message: bytes, number: int) -> Iterator[tuple[str, str]]:
    """(key, JSON) of each item of a message; nested keys are joined by dots."""
    for item in blobs(message, number):
        key, nested, told = "", [], ""
        for field, _, value in fields(item):
            if isinstance(value, bytes):
                text = value.decode("utf-8", errors="replace")
                if field == 1:
                    key = text
                elif field == 2:
                    nested.append(text)
                elif field == 16:
                    told = text
        yield key or ".".join(nested), told


def _history(message: bytes) -> Iterator[Row]:
    items = dict(_items(message, 1))
    when = _number(items.get("_timestamp"))
    for key, told in items.items():
        if not key.startswith("_"):
            value = _number(told)
            if value is not None or told.strip('"') in ("NaN", "Infinity", "-Infinity"):
                yield f"user/{key}", when, value


def _statistics(message: bytes) -> Iterator[Row]:
    when: float | None = None
    for number, _, value in fields(message):
        if number == 2 and isinstance(value, bytes):
            time = {i: found for i, _, found in fields(value) if isinstance(found, int)}
            when = time.get(1, 0) + time.get(2, 0) / 1e9
    for key, told in _items(message, 3):
        yield key, when, _number(told)


def _number(told: str | None) -> float | None:
    try:
        value = msgspec.json.decode(told or "null")
    except msgspec.DecodeError:
        return None
    return _plain(value, math.inf)


def _plain(value: Any, below: float) -> float | None:
    """A number whose size is below a limit; None for any other value."""
    try:
        return float(value) if type(value) in (int, float) and abs(value) < below else None
    except OverflowError:
        return None


def _json_rows(path: Path, text: str) -> Iterator[Row]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError) as error:
            raise UnreadableEvidence(
                str(path), f"line {number} is not valid JSON ({error})", "Download the file again."
            ) from error
        if isinstance(entry, dict):
            when = _plain(entry.get("_timestamp"), math.inf)
            for key, value in entry.items():
                if not key.startswith("_"):
                    yield key, when, value


def _csv_rows(path: Path, text: str) -> Iterator[Row]:
    separator = "\t" if text.split("\n", 1)[0].count("\t") else ","
    try:
        table = pl.read_csv(
            io.StringIO(text), separator=separator, infer_schema=False, truncate_ragged_lines=True
        )
    except pl.exceptions.PolarsError as error:
        raise UnreadableEvidence(
            str(path),
            f"a CSV that cannot be read ({str(error).splitlines()[0][:100]})",
            "Export it again.",
        ) from error
    time = next(
        (name for name in table.columns if name.lower() in ("_timestamp", "timestamp")), None
    )
    when: list[float | None] = [None] * table.height
    if time is not None:
        seconds = table[time].cast(pl.Float64, strict=False)
        largest = seconds.max()
        big = isinstance(largest, float) and largest > 1e11
        when = (seconds / 1000 if big else seconds).to_list()
    for name in table.columns:
        key = name.rpartition(" - ")[2]
        if translated(key):
            found, _ = values(table[name], "")
            yield from zip([key] * table.height, when, found.to_list(), strict=True)


def _add(rows: list[Row], readings: Readings) -> None:
    """Rows of samples; keys are looked at once each."""
    left_out = set()
    by_key: dict[str, list[Row]] = {}
    for row in rows:
        by_key.setdefault(row[0], []).append(row)
    for key, found in by_key.items():
        known = translated(key)
        if known is None and not key.startswith("user/"):
            left_out.add(key)
            continue
        metric, factor, index, of_process, node = known or (key, 1.0, None, False, None)
        if of_process:
            left_out.add(key)  # the same GPU again, without a process id
            continue
        numbers = pl.Series([_plain(row[2], math.inf) for row in found], dtype=pl.Float64)
        usable = (numbers.is_not_null() & numbers.is_finite()).fill_null(False)
        when = pl.Series([_plain(row[1], LATEST_NS / 1e9) for row in found], dtype=pl.Float64)
        readings.bulk(
            pl.DataFrame({"t_ns": (when * 1e6).round().cast(pl.Int64, strict=False) * 1000,
                          "value": times(numbers, factor).set(~usable, None)}).with_columns(
                pl.lit(metric).alias("metric"), pl.lit(UNITS.get(metric, "")).alias("unit"),
                pl.lit(None if index is None else str(index)).alias("gpu"),
                pl.lit(index, dtype=pl.Int32).alias("device"), pl.lit(node).alias("host"),
                pl.when(~usable).then(pl.lit("not a number")).alias("reason"),
            )
        )  # fmt: skip
    if left_out:
        readings.note(f"{len(left_out)} system metrics with no name here were left out")
