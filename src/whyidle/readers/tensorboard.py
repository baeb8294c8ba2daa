"""Reads scalars of TensorBoard event files (``events.out.tfevents.*``), of any writer.

A file is a chain of records, each with its length and two checksums (TFRecord), each record an
Event of protobuf. Every scalar becomes a reading of the metric ``user/`` + its tag at its wall
time; images, histograms and graphs are passed over. The step that a scalar was logged for is not
kept: its order is that of the times.

A job that was killed leaves a last record cut short: what comes before counts, and a note says so.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import polars as pl

from whyidle.errors import NothingRecorded, UnreadableEvidence
from whyidle.model import Evidence
from whyidle.readers.collector import collector_paused
from whyidle.readers.protobuf_wire import BrokenMessage, blobs, fields, signed
from whyidle.readers.readings import Readings
from whyidle.readers.source_bytes import SourceBytes

NAME = "tensorboard"

CHECKED_UP_TO = 1 << 12
"""Records longer than this hold images or histograms; of those only the length is checked."""

EVENT_LIMIT = 20_000_000
_BLOCK = 1 << 22
_FLOATS, _DOUBLES, _INTEGERS = 5, 6, (7, 10)
_FORMS = {1: "<f", 2: "<d", 3: "<i", 9: "<q"}


def _table() -> np.ndarray:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0x82F63B78), table >> 1)
    return table.astype(np.uint32)


def masked_crc(rows: np.ndarray) -> np.ndarray:
    """TFRecord's checksum (CRC-32C, rotated and shifted) of each row of bytes."""
    table = _table()
    crc = np.full(rows.shape[0], 0xFFFFFFFF, dtype=np.uint32)
    for column in rows.T:
        crc = table[(crc ^ column) & 0xFF] ^ (crc >> np.uint32(8))
    crc ^= np.uint32(0xFFFFFFFF)
    turned = (crc >> np.uint32(15)) | (crc << np.uint32(17))
    return (turned.astype(np.uint64) + 0xA282EAD8).astype(np.uint32)


def sniff(path: Path, head: bytes) -> bool:
    """Whether the file begins with a record that is a first event."""
    if len(head) < 21:
        return False
    size = int.from_bytes(head[:8], "little")
    if not 9 <= size <= 1 << 20 or b"brain.Event:" not in head[12 : 12 + size]:
        return False
    length = np.frombuffer(head[:8], dtype=np.uint8).reshape(1, 8)
    return int(masked_crc(length)[0]) == int.from_bytes(head[8:12], "little")


def read(path: Path, progress: Callable[[int, int], None] | None = None) -> Evidence:
    """The scalars in one file."""
    readings = Readings()
    rows: list[tuple[str, float, float | None]] = []
    with SourceBytes(path) as source, collector_paused():
        for batch in _batches(path, source, readings):
            _check(path, [record for _, record in batch], [crc for crc, _ in batch])
            for _, record in batch:
                rows += _scalars(path, record)
            if len(rows) > EVENT_LIMIT:
                readings.note(f"only the first {EVENT_LIMIT} scalars were read")
                break
            if progress is not None:
                progress(source.at, source.size)
        digest = source.digest()
    if not rows:
        raise NothingRecorded(
            str(path),
            "a TensorBoard file without a scalar",
            "Name the event file of the training run.",
        )
    readings.clock_error_ns = 1_000_000
    _add(rows, readings)
    return readings.evidence(path, NAME, digest)


def _batches(
    path: Path, source: SourceBytes, readings: Readings
) -> Iterator[list[tuple[int, bytes]]]:
    """Records with their checksums, some thousands at a time."""
    held = bytearray()
    buffer = bytearray(_BLOCK)
    view = memoryview(buffer)
    while True:
        count = source.read_into(view)
        held += view[:count]
        batch: list[tuple[int, bytes]] = []
        at = 0
        while len(held) - at >= 12:
            size = int.from_bytes(held[at : at + 8], "little")
            _check_length(path, held, at)
            if size > 1 << 31:
                raise _broken(path, source.given - len(held) + at)
            if len(held) - at < size + 16:
                break
            crc = int.from_bytes(held[at + 12 + size : at + 16 + size], "little")
            batch.append((crc, bytes(held[at + 12 : at + 12 + size])))
            at += size + 16
        del held[:at]
        if batch:
            yield batch
        if not count:
            break
    if held:
        readings.note(
            "the last record is cut short, as when a job is killed; what comes before counts"
        )


def _check_length(path: Path, held: bytearray, at: int) -> None:
    key = bytes(held[at : at + 8])
    known = _LENGTHS.get(key)
    if known is None:
        known = int(masked_crc(np.frombuffer(key, dtype=np.uint8).reshape(1, 8))[0])
        if len(_LENGTHS) < 4096:
            _LENGTHS[key] = known
    if known != int.from_bytes(held[at + 8 : at + 12], "little"):
        raise _broken(path, at)


_LENGTHS: dict[bytes, int] = {}


def _check(path: Path, records: list[bytes], crcs: list[int]) -> None:
    """Raise when a checksum is wrong; records of one length are checked together."""
    by_size: dict[int, list[int]] = {}
    for i, record in enumerate(records):
        if len(record) <= CHECKED_UP_TO:
            by_size.setdefault(len(record), []).append(i)
    for size, rows in by_size.items():
        data = np.frombuffer(b"".join(records[i] for i in rows), dtype=np.uint8).reshape(-1, size)
        told = np.array([crcs[i] for i in rows], dtype=np.uint32)
        wrong = np.flatnonzero(masked_crc(data) != told)
        if len(wrong):
            raise _broken(path, None)


def _broken(path: Path, at: int | None) -> UnreadableEvidence:
    where = f" near byte {at}" if at is not None else ""
    return UnreadableEvidence(
        str(path),
        f"a TensorBoard file with a wrong checksum{where}",
        "Copy the file again; if it is broken where it was written, leave it out.",
    )


def _scalars(path: Path, record: bytes) -> Iterator[tuple[str, float, float | None]]:
    """(tag, wall time in seconds, value) of each scalar in an event."""
    wall = 0.0
    summaries: list[bytes] = []
    try:
        for number, _, value in fields(record):
            if number == 1 and isinstance(value, bytes) and len(value) == 8:
                wall = struct.unpack("<d", value)[0]
            elif number == 5 and isinstance(value, bytes):
                summaries.append(value)
        for summary in summaries:
            for entry in blobs(summary, 1):
                found = _scalar(entry)
                if found is not None:
                    yield found[0], wall, found[1]
    except (BrokenMessage, struct.error) as error:
        raise UnreadableEvidence(
            str(path), f"a TensorBoard event that is no message ({error})", "Leave this file out."
        ) from error


def _scalar(entry: bytes) -> tuple[str, float] | None:
    tag, value = "", None
    for number, kind, found in fields(entry):
        if number == 1 and isinstance(found, bytes):
            tag = found.decode("utf-8", errors="replace")
        elif number == 2 and kind == 5 and isinstance(found, bytes):
            value = float(struct.unpack("<f", found)[0])
        elif number == 8 and isinstance(found, bytes):
            value = _tensor(found)
    return (tag, value) if tag and value is not None else None


def _tensor(data: bytes) -> float | None:
    """The number in a tensor of one element; None for any other tensor."""
    form, content, value, count = "", b"", None, 1
    for number, kind, found in fields(data):
        if number == 1 and isinstance(found, int):
            form = _FORMS.get(found, "")
        elif number == 2 and isinstance(found, bytes):
            for shape in blobs(found, 2):
                count *= next(
                    (int(size) for i, _, size in fields(shape) if i == 1 and isinstance(size, int)),
                    0,
                )
        elif number == 4 and isinstance(found, bytes):
            content = found
        elif number in (_FLOATS, _DOUBLES) and isinstance(found, bytes):
            code = "<f" if number == _FLOATS else "<d"
            value = struct.unpack(code, found)[0] if len(found) == struct.calcsize(code) else None
        elif number in _INTEGERS and isinstance(found, int) and kind == 0:
            value = signed(found)
    if form and len(content) == struct.calcsize(form):
        value = struct.unpack(form, content)[0]
    return float(value) if value is not None and count == 1 and form else None


def _add(rows: list[tuple[str, float, float | None]], readings: Readings) -> None:
    tags, walls, values = (list(column) for column in zip(*rows, strict=True))
    schema = {"metric": pl.String, "wall": pl.Float64, "value": pl.Float64}
    frame = pl.DataFrame({"metric": tags, "wall": walls, "value": values}, schema=schema)
    seconds = pl.col("wall").floor()
    usable = pl.col("wall").is_finite() & (pl.col("wall") > 0) & (pl.col("wall") < 4e9)
    known = pl.col("value").is_finite()
    readings.bulk(
        frame.select(
            ("user/" + pl.col("metric")).alias("metric"),
            pl.when(usable).then(
                seconds.cast(pl.Int64, strict=False) * 1_000_000_000
                + ((pl.col("wall") - seconds) * 1e6).round().cast(pl.Int64, strict=False) * 1000
            ).alias("t_ns"),
            pl.when(known).then("value").alias("value"),
            pl.when(~known).then(pl.lit("not a number")).alias("reason"),
        )
    )  # fmt: skip
