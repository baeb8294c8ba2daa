"""Readings in a bundle's ``samples`` folder: JSON lines in our own metrics and units.

A line is one reading {t_ns, period_ns, metric, value, unit, reason, pid, device, gpu} or one fact
in words {setting, value, device, gpu}; keys that do not apply are absent. What is taken once more
by tools, such as the CSV of nvidia-smi, has readers of its own.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Annotated, Any

import msgspec
import polars as pl

from whyidle.errors import UnreadableEvidence
from whyidle.model import HOST_METRICS, METRICS, SAMPLES, SETTINGS, frame
from whyidle.readers.source_bytes import open_regular

MOST_BYTES = 2 << 30
"""A larger file of readings is not read: a day of a hundred readings a second takes 1 GiB."""

LINE: dict[str, Any] = {
    "t_ns": pl.Int64, "period_ns": pl.Int64, "metric": pl.String, "setting": pl.String,
    "value": pl.String, "unit": pl.String, "reason": pl.String, "pid": pl.Int64,
    "device": pl.Int32, "gpu": pl.String,
}  # fmt: skip


def sampled_tables(path: Path, host: str | None, job: str) -> tuple[dict[str, pl.DataFrame], int]:
    """The tables ``samples`` and ``settings`` of one file, and how many lines made no sense.

    ``job`` is what readings about the job's own processes are filed under.
    """
    lines, broken = _lines(path)
    about = [
        pl.lit(host, pl.String).alias("host"),
        pl.lit(0, pl.UInt16).alias("source"),
        pl.col("pid").alias("process"),
    ]
    read = lines.filter(pl.col("metric").is_not_null() & pl.col("setting").is_null())
    value = pl.col("value").cast(pl.Float64, strict=False)
    sound = pl.when(value.is_finite()).then(value)
    units = {**METRICS, **HOST_METRICS}
    samples = read.with_columns(
        *about,
        sound.alias("value"),
        pl.when(sound.is_null())
        .then(pl.coalesce("reason", pl.lit("not available")))
        .alias("reason"),
        pl.coalesce("unit", pl.col("metric").replace_strict(units, default=None)).alias("unit"),
        pl.when(pl.col("metric").str.starts_with("job/")).then(pl.lit(job)).alias("job"),
    )
    words = lines.filter(pl.col("setting").is_not_null())
    settings = words.with_columns(*about, pl.col("setting").alias("key"))
    return {"samples": frame(SAMPLES, samples), "settings": frame(SETTINGS, settings)}, broken


def _lines(path: Path) -> tuple[pl.DataFrame, int]:
    """The lines as columns of LINE; what was cut when its writer was killed is left out."""
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise UnreadableEvidence(
            str(path),
            f"{size / 2**30:.1f} GiB of readings, more than the {MOST_BYTES >> 30} GiB read",
            "Observe a shorter run.",
        )
    with open_regular(path) as file:
        data = file.read()
    whole = data[: data.rfind(b"\n") + 1]
    cut = int(bool(data[len(whole) :].strip()))
    if not whole.strip():
        return pl.DataFrame(schema=LINE), cut
    try:
        return pl.read_ndjson(io.BytesIO(whole), schema=LINE, ignore_errors=True), cut
    except pl.exceptions.PolarsError:
        rows, broken = _one_by_one(whole)
        return pl.DataFrame(rows, schema=LINE, orient="row"), broken + cut


def _one_by_one(data: bytes) -> tuple[list[tuple[Any, ...]], int]:
    """The sound lines of a file that holds others too, and how many those are."""
    decoder = msgspec.json.Decoder(_Line)
    rows: list[tuple[Any, ...]] = []
    broken = 0
    for line in data.splitlines():
        try:
            found = decoder.decode(line)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            broken += bool(line.strip())
            continue
        value = None if found.value is None else str(found.value)
        rows.append(
            (
                found.t_ns, found.period_ns, found.metric, found.setting, value, found.unit,
                found.reason, found.pid, found.device, found.gpu,
            )
        )  # fmt: skip
    return rows, broken


_Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_Int32 = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]


class _Line(msgspec.Struct):
    t_ns: _Int64 | None = None
    period_ns: _Int64 | None = None
    metric: str | None = None
    setting: str | None = None
    value: float | str | None = None
    unit: str | None = None
    reason: str | None = None
    pid: _Int64 | None = None
    device: _Int32 | None = None
    gpu: str | None = None
