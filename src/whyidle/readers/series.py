"""Tables of text with one row per GPU and instant, as rows of ``samples``; made for long series.

A week of one-second rows of eight GPUs is 4.8 million rows. They are read block by block, and
what would be more than ``LIMIT`` readings is averaged over equal runs of rows of each GPU; a note
says over how many, and ``period_ns`` says what each reading stands for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import polars as pl

from whyidle.model import METRICS
from whyidle.readers.readings import Readings
from whyidle.readers.unknowns import (
    LOST_DIGITS_FROM,
    SENTINELS,
    UNITS,
    number,
)

LIMIT = 8_000_000
"""Readings kept of one file."""

PLACE = ("gpu", "device", "host", "process", "t_ns")
_KEY = ("gpu", "device", "host", "process")
_TYPES = {"gpu": pl.Categorical, "device": pl.Int32, "host": pl.Categorical,
          "process": pl.Int64, "t_ns": pl.Int64}  # fmt: skip
_WHY = "why "
_WITH_UNIT = re.compile(r"[-+]?[\d.]+\s*([A-Za-z%°/]+)")
_SIZES = ((1e11, 10**9), (1e14, 10**6), (1e17, 1000))
"""Numbers of times below this are s, ms, us; the factor to ns."""

LATEST_NS = 1 << 62
"""The year 2116; later instants are damage, not time."""


class Column(NamedTuple):
    """A column of text, the metric it holds, and the unit where the text does not say."""

    name: str
    metric: str
    unit: str = ""


def values(texts: pl.Series, unit: str) -> tuple[pl.Series, pl.Series]:
    """The numbers in texts, in our unit, and why where there is none (null where there is)."""
    bare = texts.str.strip_chars()
    digits = bare.cast(pl.Float64, strict=False)
    if digits.null_count():
        digits = digits.fill_null(_without_unit(bare, digits, unit))
    unsure = (
        digits.is_null()
        | ~digits.is_finite()
        | digits.is_in(_SENTINELS)
        | (digits >= LOST_DIGITS_FROM)
    ).fill_null(True)
    numbers = times(digits, UNITS[unit.lower()])
    if not unsure.any():
        return numbers, pl.Series([None], dtype=pl.String).new_from_index(0, len(bare))
    numbers = numbers.set(unsure, None)
    others = bare.filter(unsure)
    read = {text: number(text or "", unit) for text in others.unique()}
    found = pl.DataFrame(
        {
            "text": list(read),
            "value": [reading.value for reading in read.values()],
            "why": [reading.reason for reading in read.values()],
        },
        schema={"text": pl.String, "value": pl.Float64, "why": pl.String},
    )
    rows = pl.DataFrame({"text": others}).join(
        found, on="text", how="left", nulls_equal=True, maintain_order="left"
    )
    at = unsure.arg_true()
    why = pl.Series([None], dtype=pl.String).new_from_index(0, len(bare))
    return numbers.scatter(at, rows["value"]), why.scatter(at, rows["why"])


def times(numbers: pl.Series, factor: float) -> pl.Series:
    """Numbers times a factor; really divided where it is a part, which keeps 35 % at 0.35."""
    if factor >= 1:
        return numbers * factor
    parts = pl.repeat(round(1 / factor), len(numbers), dtype=pl.Float64, eager=True)
    return numbers / parts


_SENTINELS = [float(value) for value in SENTINELS]


def _without_unit(bare: pl.Series, digits: pl.Series, unit: str) -> pl.Series:
    """Numbers of texts such as "38 %": the unit that the first of them has is cut off."""
    rest = bare.filter(digits.is_null() & bare.is_not_null())
    for text in rest.unique().head(50):
        found = _WITH_UNIT.fullmatch(text or "")
        if found and UNITS.get(found[1].lower()) == UNITS[unit.lower()]:
            ending = (text or "")[found.start(1) :]
            return (
                bare.str.strip_suffix(ending).str.strip_chars_end().cast(pl.Float64, strict=False)
            )
    return digits


class Long:
    """The readings of one file, block by block, into a ``Readings`` at the end."""

    def __init__(self, columns: Sequence[Column]) -> None:
        """Expect these columns of text in every block; of two with one metric the first counts."""
        named = {column.metric: column for column in reversed(columns)}
        self.columns = [column for column in columns if named[column.metric] is column]
        self.every: int | None = None
        self._blocks: list[pl.DataFrame] = []
        self._rest: pl.DataFrame | None = None
        self._rows = 0

    def add(self, texts: pl.DataFrame, places: pl.DataFrame, share_read: float = 1.0) -> None:
        """Add rows: their columns of text, their places, and how much of the file is read now."""
        data = [places.with_columns(pl.col(name).cast(kind) for name, kind in _TYPES.items())]
        for column in self.columns:
            found, why = values(texts[column.name], column.unit)
            data.append(
                pl.DataFrame(
                    [
                        found.alias(column.metric),
                        why.cast(pl.Categorical).alias(_WHY + column.metric),
                    ]
                )
            )
        block = pl.concat(data, how="horizontal")
        if self.every is None:
            whole = block.height * len(self.columns) / max(min(share_read, 1.0), 1e-6)
            self.every = max(1, -(-int(whole) // LIMIT))
        self._rows += block.height
        self._blocks.append(block if self.every == 1 else self._thinned(block))

    def _thinned(self, block: pl.DataFrame, last: bool = False) -> pl.DataFrame:
        """Means over every so many rows of each GPU; what is left over waits for the next block."""
        every = self.every or 1
        if self._rest is not None:
            block = pl.concat([self._rest, block])
        block = block.with_columns(
            (pl.int_range(pl.len()).over(_KEY) // every).alias("run"),
            pl.len().over(_KEY).alias("all"),
        )
        waits = pl.col("run") >= pl.col("all") // every
        self._rest = None if last else block.filter(waits).drop("run", "all")
        whole = block if last else block.filter(~waits)
        metrics = [column.metric for column in self.columns]
        return (
            whole.group_by(*_KEY, "run", maintain_order=True)
            .agg(
                pl.col("t_ns").last(),
                pl.col(metrics).mean(),
                pl.col([_WHY + metric for metric in metrics]).drop_nulls().first(),
            )
            .select(block.drop("run", "all").columns)
        )

    def into(self, readings: Readings) -> None:
        """Hand everything over as rows of ``samples``, one metric after the other."""
        if self._rest is not None and self._rest.height:
            rest, self._rest = self._rest, None
            self._blocks.append(self._thinned(rest, last=True))
        if not self._blocks:
            return
        wide = pl.concat(self._blocks)
        self._blocks.clear()
        period = pl.lit(None, dtype=pl.Int64)
        if self.every is not None and self.every > 1:
            period = pl.col("t_ns").diff().over(_KEY)
            readings.note(
                f"{self._rows} rows were averaged over runs of {self.every} rows of each GPU, "
                "so that they fit into memory"
            )
        wide = wide.with_columns(period.alias("period_ns"))
        for column in self.columns:
            value, why = pl.col(column.metric), pl.col(_WHY + column.metric)
            readings.bulk(
                wide.select(
                    *PLACE,
                    "period_ns",
                    pl.lit(column.metric).alias("metric"),
                    pl.lit(METRICS.get(column.metric, "")).alias("unit"),
                    value.alias("value"),
                    pl.when(value.is_null()).then(why).alias("reason"),
                )
            )


def whole_rows(rows: bytes, separator: bytes, width: int, readings: Readings) -> bytes:
    """Rows of cells for a parser that learns the width from the first one.

    A last row with fewer cells was cut when its writer was killed, perhaps inside a number: it is
    left out. An empty row of full width comes first, so that no short row decides the width.
    """
    before, line, last = rows.rstrip(b"\n").rpartition(b"\n")
    if last.count(separator) < width - 1 and last.strip() and not last.startswith(b"#"):
        rows = before + line
        readings.note("a last row that was cut short, as when a job is killed, is left out")
    return separator * (width - 1) + b"\n" + rows


def clock(texts: pl.Series) -> tuple[pl.Series, bool]:
    """Nanoseconds of a column of times, and whether they count from 1970 UTC for certain.

    Known are seconds, milliseconds, microseconds and nanoseconds since 1970, ISO times with a
    zone, and the local times of nvidia-smi, which have none.
    """
    bare = texts.str.strip_chars()
    plain = bare.cast(pl.Float64, strict=False)
    if plain.null_count() < plain.len() / 2:
        return epoch_ns(bare, plain), True
    zoned = bare.str.contains(r"(?:Z|[+-]\d\d:?\d\d)$")
    text = bare.str.replace("T", " ").str.replace_all("/", "-").str.replace(r"\s*Z$", "+00:00")
    if zoned.sum() * 2 > bare.len():
        known = text.str.to_datetime("%Y-%m-%d %H:%M:%S%.f%:z", time_unit="ns", strict=False)
        return known.dt.epoch("ns"), True
    local = text.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="ns", strict=False)
    return local.dt.epoch("ns"), False


def epoch_ns(bare: pl.Series, plain: pl.Series) -> pl.Series:
    """Nanoseconds of numbers since 1970 in s, ms, us or ns, told apart by their usual size.

    A number that is no instant of a machine, such as 1e999, is null.
    """
    plain = plain.set(~plain.is_finite().fill_null(value=True), None)
    usual = plain.abs().median()
    size = float(usual) if isinstance(usual, int | float) else 0.0
    factor = next((f for limit, f in _SIZES if size < limit), 1)
    odd = (plain.abs() >= LATEST_NS / factor).fill_null(value=True)
    whole = bare.cast(pl.Int64, strict=False)
    if whole.null_count() == plain.null_count():
        return (whole * factor).set(odd, None)
    seconds = plain.set(odd, None).floor()
    return (seconds.cast(pl.Int64, strict=False) * factor
            + ((plain - seconds) * factor).round().cast(pl.Int64, strict=False))  # fmt: skip
