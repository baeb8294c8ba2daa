"""Puts samples on the clock of the traces that are given with them.

A trace of PyTorch counts from 1970 (``baseTimeNanoseconds`` + ``ts``; before that field came,
``ts`` itself). So do DCGM, Prometheus and training logs. ``nvidia-smi`` prints the machine's local
time without its zone: the one zone in which its readings overlap the traces is taken, if there is
exactly one, whole hours before others. The error of a joined clock is the time between readings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from whyidle.model import Evidence, SourceInfo

SINCE_1970_FROM_NS = 10**18
"""An instant below this (September 2001) does not count from 1970."""

HOUR_NS = 3600 * 10**9
WHOLE_HOURS = [hours * HOUR_NS for hours in range(-12, 15)]
OTHERS = [
    round(hours * HOUR_NS)
    for hours in (
        -9.5, -3.5, -2.5, 3.5, 4.5, 5.5, 5.75, 6.5, 8.75, 9.5, 10.5, 12.75, 13.75,
    )
]  # fmt: skip
"""Offsets of time zones that are in use, from the IANA time zone database."""

Range = tuple[int, int]

APART = (
    "the traces do not count their time from 1970, so these readings cannot be placed in them; "
    "sampled and traced time are not compared"
)


def joined(parts: Sequence[Evidence]) -> list[Evidence]:
    """The parts, those that hold only samples on the clock of those that hold spans."""
    traced = _range([part for part in parts if part.has("spans")], "spans", "start_ns", "end_ns")
    if traced is None:
        return list(parts)
    return [_placed(part, traced) if _only_samples(part) else part for part in parts]


def _only_samples(part: Evidence) -> bool:
    return part.has("samples") and not part.has("spans") and len(part.sources) == 1


def _range(parts: Sequence[Evidence], table: str, first: str, last: str) -> Range | None:
    """First and last instant of a table in all parts; None without any."""
    found = [
        (part.table(table)[first].drop_nulls(), part.table(table)[last].drop_nulls())
        for part in parts
    ]
    bounds = [
        (int(low.to_numpy().min()), int(high.to_numpy().max())) for low, high in found if len(low)
    ]
    return (min(low for low, _ in bounds), max(high for _, high in bounds)) if bounds else None


def _placed(part: Evidence, traced: Range) -> Evidence:
    sampled = _range([part], "samples", "t_ns", "t_ns")
    (source,) = part.sources
    if sampled is None:
        return part
    if traced[0] < SINCE_1970_FROM_NS or sampled[0] < SINCE_1970_FROM_NS:
        return _told(part, replace(source, clock_error_ns=None), APART)
    if source.clock_error_ns is not None:
        source = replace(source, clock_error_ns=max(source.clock_error_ns, _period(part)))
        if not _overlaps(sampled, 0, traced):
            return _told(part, source, "no reading was taken while the traces were recorded")
        return replace(part, sources=(source,))
    offsets = [off for off in WHOLE_HOURS if _overlaps(sampled, off, traced)]
    if not offsets:
        offsets = [off for off in OTHERS if _overlaps(sampled, off, traced)]
    if len(offsets) != 1:
        return _told(part, source, _unplaced(offsets))
    return _moved(part, source, offsets[0])


def _overlaps(sampled: Range, offset: int, traced: Range) -> bool:
    return sampled[0] - offset <= traced[1] and traced[0] <= sampled[1] - offset


def _unplaced(offsets: list[int]) -> str:
    why = (
        f"they overlap the traces in {len(offsets)} time zones ({_zone(offsets[0])} to "
        f"{_zone(offsets[-1])})"
        if offsets
        else "they overlap the traces in no time zone"
    )
    return (
        f"the readings' local time cannot be placed on the traces' clock: {why}; sampled and "
        "traced time are not compared. Sample with TZ=UTC and --query-gpu=timestamp for one run "
        "at a time, or give a record that says its zone."
    )


def _moved(part: Evidence, source: SourceInfo, offset: int) -> Evidence:
    samples = part.table("samples").with_columns(pl.col("t_ns") - offset)
    period = _period(part)
    note = (
        f"local time is taken to be {_zone(offset)}, the only time zone in which these readings "
        f"overlap the traces; error up to {period / 1e9:g} s"
    )
    source = replace(source, clock_offset_ns=-offset, clock_error_ns=period)
    return _told(replace(part, tables={**part.tables, "samples": samples}), source, note)


def _told(part: Evidence, source: SourceInfo, note: str) -> Evidence:
    return replace(part, sources=(replace(source, notes=(*source.notes, note)),))


def _period(part: Evidence) -> int:
    """The usual time between the instants of its readings; a second when there is one instant."""
    times = part.table("samples")["t_ns"].drop_nulls().unique().sort()
    steps = times.diff().drop_nulls().to_numpy()
    return int(sorted(steps)[len(steps) // 2]) if len(steps) else 10**9


def _zone(offset_ns: int) -> str:
    minutes = abs(offset_ns) // (60 * 10**9)
    sign = "-" if offset_ns < 0 else "+"
    return f"UTC{sign}{minutes // 60}:{minutes % 60:02d}" if minutes else "UTC"
