"""What judging a batch of ranks leaves behind: small, immutable, picklable tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import polars as pl
from msgspec import structs

from whyidle.diagnosis import Crashed, NotJudged, Observation, Timeline
from whyidle.errors import EvidenceConflict, UsageError
from whyidle.gain import Replayable
from whyidle.job import JobJudged, jobs_together, moved_job
from whyidle.model import LEVELS, STATES, DeviceInfo, Facts, SourceInfo
from whyidle.views.meetings import ENTRIES

K = TypeVar("K")
V = TypeVar("V")

WINDOWS: dict[str, Any] = {
    "rank": pl.Int32, "device": pl.Int32, "source": pl.UInt16, "start_ns": pl.Int64,
    "end_ns": pl.Int64, "compute": pl.Int64, "communication": pl.Int64, "copy": pl.Int64,
    "empty": pl.Int64, "unrecorded": pl.Int64,
}  # fmt: skip
"""One row per judged window, its number being its row: nanoseconds by state."""

STEPS: dict[str, Any] = {
    "rank": pl.Int32, "source": pl.UInt16, "number": pl.Int64, "start_ns": pl.Int64,
    "end_ns": pl.Int64,
}  # fmt: skip
"""One row per recorded step."""

_CLAIM: dict[str, Any] = {
    "window": pl.UInt32, "cause": pl.Categorical, "state": STATES, "level": LEVELS,
    "file": pl.Categorical, "line": pl.Int32, "op": pl.Categorical, "activity": pl.Categorical,
    "thread": pl.Categorical, "peer": pl.Int32,
}  # fmt: skip
LOSSES: dict[str, Any] = {**_CLAIM, "start_ns": pl.Int64, "lost": pl.Int64}
"""Settled claims, summed: ``activity`` is what the blame view says of the instant, null where it
says nothing; start_ns is the first instant; ``lost`` counts parts of ledger.PARTS_PER_S."""

ALONE: dict[str, Any] = {
    **_CLAIM, "entry": pl.Int64, "row": pl.UInt32, "start_ns": pl.Int64, "end_ns": pl.Int64,
    "lost": pl.Int64,
}  # fmt: skip
"""Settled claims while a device only communicated, interval by interval; ``entry`` is the row of
the collective in ``entries`` that ran then, -1 where it is not known."""

CELLS: dict[str, Any] = {
    "window": pl.UInt32, "start_ns": pl.Int64, "end_ns": pl.Int64, "compute": pl.Int64,
    "communication": pl.Int64, "copy": pl.Int64, "empty": pl.Int64,
}  # fmt: skip
"""The windows cut where their device enters or leaves a collective; nanoseconds by state."""

CELL_LOSSES: dict[str, Any] = {
    "cell": pl.UInt32, "cause": pl.Categorical, "activity": pl.Categorical, "state": STATES,
    "ns": pl.Int64, "longest": pl.Int64,
}  # fmt: skip
"""What settled claims cost in each cell (row of ``cells``), outside communication; ``longest`` is
the longest single interval."""

SPEEDS: dict[str, Any] = {
    "window": pl.UInt32, "kernel": pl.Categorical, "blocks": pl.Int64, "count": pl.UInt32,
    "total": pl.Int64, "median": pl.Float64,
}  # fmt: skip
"""Compute kernels of a device by name and grid; nanoseconds."""

SHOWN: dict[str, Any] = {
    "cause": pl.Categorical, "row": pl.UInt32, "source": pl.UInt16, "event": pl.UInt32,
    "name": pl.String, "kind": pl.String, "lost": pl.Int64,
}  # fmt: skip
"""Spans that show the largest losses of each cause."""

ENTRY_PLACES: dict[str, Any] = {**ENTRIES, "enters": pl.Int64, "leaves": pl.Int64}
"""Entries of views.meetings; enters and leaves: the cells that begin at its start and end."""


@dataclass(frozen=True)
class Partial:
    """What one batch of ranks leaves behind; every instant is on the clock of its own source.

    The frames have the schemas of this module and of per_step; ``entries`` those of ENTRY_PLACES,
    ``operations`` those of model.OPERATIONS. ``wanted_s`` is per cause what all its claims asked
    for; ``judged`` are the causes that were fed in this batch. ``timeline`` is of the device of
    this batch that lost most (``worst_lost`` parts), relative to ``origin_ns``; ``replayable`` is
    that device ready for gain.predict, on a clock of its own.
    """

    origin_ns: int
    end_ns: int
    windows: pl.DataFrame
    steps: pl.DataFrame
    losses: pl.DataFrame
    alone: pl.DataFrame
    entries: pl.DataFrame
    cells: pl.DataFrame
    cell_losses: pl.DataFrame
    speeds: pl.DataFrame
    operations: pl.DataFrame
    shown: pl.DataFrame
    step_states: pl.DataFrame
    step_losses: pl.DataFrame
    kernel_steps: pl.DataFrame
    wanted_s: dict[str, float]
    judged: tuple[str, ...]
    not_judged: tuple[NotJudged, ...]
    crashed: tuple[Crashed, ...]
    observations: tuple[Observation, ...]
    notes: tuple[str, ...]
    sources: tuple[SourceInfo, ...]
    facts: Facts
    timeline: Timeline | None
    worst_lost: int
    job: JobJudged | None = None
    replayable: Replayable | None = None


def together(partials: Sequence[Partial]) -> Partial:
    """Several batches as one; windows, entries, cells and sources are renumbered.

    Raises EvidenceConflict when two batches hold the same device at the same time.
    """
    if not partials:
        raise UsageError("No evidence was named. Name a trace, or a folder of traces of one job.")
    if len(partials) == 1:
        return partials[0]
    _refuse_other_jobs(partials)
    _refuse_overlaps(partials)
    partials = sorted(partials, key=_first_rank)
    frames = _stacked(partials)
    worst = max(partials, key=lambda p: p.worst_lost)
    placed = [p for p in partials if p.windows.height] or list(partials)
    origin = min(p.origin_ns for p in placed)
    judged = {name for p in partials for name in p.judged}
    unfed = _once((n.cause, n) for p in partials for n in p.not_judged if n.cause not in judged)
    return Partial(
        origin_ns=origin,
        end_ns=max(p.end_ns for p in placed),
        **frames,
        wanted_s=_summed([p.wanted_s for p in partials]),
        judged=tuple(sorted(judged)),
        not_judged=tuple(sorted(unfed, key=lambda n: n.cause)),
        crashed=tuple(_once((c, c) for p in partials for c in p.crashed)),
        observations=tuple(_once((o, o) for p in partials for o in p.observations)),
        notes=tuple(_once((n, n) for p in partials for n in p.notes)),
        sources=tuple(s for p in partials for s in p.sources),
        facts=_facts([p.facts for p in partials]),
        timeline=_moved(worst.timeline, worst.origin_ns - origin),
        worst_lost=worst.worst_lost,
        job=jobs_together([moved_job(p.job, p.origin_ns - origin) for p in partials]),
        replayable=worst.replayable,
    )


def _stacked(partials: Sequence[Partial]) -> dict[str, pl.DataFrame]:
    """The frames one below the other, with keys renumbered."""
    sizes = {
        "window": [p.windows.height for p in partials],
        "entry": [p.entries.height for p in partials],
        "cell": [p.cells.height for p in partials],
        "source": [len(p.sources) for p in partials],
        "row": [1 + max(_last_row(p.entries), _last_row(p.shown)) for p in partials],
    }
    first = {name: np.cumsum([0, *counts[:-1]]) for name, counts in sizes.items()}
    keys = {"enters": "cell", "leaves": "cell"} | {name: name for name in sizes}
    found: dict[str, pl.DataFrame] = {}
    for name in FRAMES:
        tables: list[pl.DataFrame] = [getattr(p, name) for p in partials]
        whole = pl.concat(tables)
        heights = [table.height for table in tables]
        moved = []
        for column in (c for c in whole.columns if c in keys):
            by = pl.Series(np.repeat(first[keys[column]], heights), dtype=pl.Int64)
            shifted_ = pl.col(column).cast(pl.Int64) + pl.when(pl.col(column) >= 0).then(
                by
            ).otherwise(0)
            moved.append(shifted_.cast(whole.schema[column]).alias(column))
        found[name] = whole.with_columns(moved)
    return found


def _last_row(table: pl.DataFrame) -> int:
    rows = table["row"].drop_nulls()
    return int(rows.to_numpy().max()) if len(rows) else -1


FRAMES = (
    "windows", "steps", "losses", "alone", "entries", "cells", "cell_losses", "speeds",
    "operations", "shown",
    "step_states", "step_losses", "kernel_steps",
)  # fmt: skip


def _first_rank(part: Partial) -> int:
    ranks = part.windows["rank"].drop_nulls()
    return int(ranks.to_numpy().min()) if len(ranks) else -1


def _refuse_other_jobs(partials: Sequence[Partial]) -> None:
    sizes = {p.facts.world_size: p.sources[0].path for p in partials if p.sources}
    sizes.pop(None, None)
    if len(sizes) > 1:
        (one, first), (two, second), *_ = sizes.items()
        raise EvidenceConflict(
            f"These traces are not of one job: {first} says {one} ranks, {second} says {two}.\n"
            "Give the traces of one job only."
        )


def _refuse_overlaps(partials: Sequence[Partial]) -> None:
    windows = pl.concat(
        p.windows.with_columns(pl.lit(i).alias("batch")) for i, p in enumerate(partials)
    ).sort("rank", "device", "start_ns")
    same = pl.all_horizontal(
        pl.col(c).eq_missing(pl.col(c).shift(1)) for c in ("rank", "device")
    ) & (pl.col("start_ns") < pl.col("end_ns").shift(1))
    clash = windows.filter(same & (pl.col("batch") != pl.col("batch").shift(1)))
    if clash.height:
        rank = clash["rank"][0]
        raise EvidenceConflict(
            f"Rank {rank} was recorded twice at the same time.\nGive only one file of each rank; "
            "two runs are compared with whyidle compare."
        )


def _once(pairs: Iterable[tuple[K, V]]) -> list[V]:
    """The first value of each key, in order."""
    found: list[V] = []
    seen: list[K] = []
    for key, value in pairs:
        if key not in seen:
            seen.append(key)
            found.append(value)
    return found


def _summed(many: list[dict[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for one in many:
        for name, value in one.items():
            found[name] = found.get(name, 0.0) + value
    return found


def _facts(many: list[Facts]) -> Facts:
    devices: dict[tuple[int | None, int], DeviceInfo] = {}
    flags: dict[str, Any] = {}
    versions: dict[str, str] = {}
    for facts in many:
        devices |= facts.devices
        for name, value in facts.flags.items():
            flags[name] = bool(flags.get(name, True)) and value
        versions = {**facts.versions, **versions}
    sizes = [f.world_size for f in many if f.world_size is not None]
    backends = [f.backend for f in many if f.backend is not None]
    return Facts(
        devices=devices,
        world_size=max(sizes) if sizes else None,
        backend=backends[0] if backends else None,
        flags=flags,
        versions=versions,
    )


def _moved(timeline: Timeline | None, by_ns: int) -> Timeline | None:
    """The timeline with instants that count from an origin ``by_ns`` earlier."""
    if timeline is None or by_ns == 0:
        return timeline
    return structs.replace(
        timeline,
        start_ns=timeline.start_ns + by_ns,
        end_ns=timeline.end_ns + by_ns,
        spans=[
            structs.replace(s, start_ns=s.start_ns + by_ns, end_ns=s.end_ns + by_ns)
            for s in timeline.spans
        ],
        claims=[
            structs.replace(c, start_ns=c.start_ns + by_ns, end_ns=c.end_ns + by_ns)
            for c in timeline.claims
        ],
    )


def shifted(part: Partial, by_ns: dict[int | None, int]) -> Partial:
    """The same with the clocks of ranks moved forward by so many nanoseconds."""
    moves = {rank: by for rank, by in by_ns.items() if by}
    if not moves:
        return part
    ranks = part.windows["rank"].to_list()
    by_window = pl.Series([moves.get(rank, 0) for rank in ranks], dtype=pl.Int64)

    def moved(table: pl.DataFrame, by: pl.Series) -> pl.DataFrame:
        columns = [c for c in ("start_ns", "end_ns", "order_ns") if c in table.columns]
        return table.with_columns(pl.col(c) + by for c in columns)

    def by_number(table: pl.DataFrame) -> pl.DataFrame:
        return moved(table, by_window.gather(table["window"])) if table.height else table

    steps = pl.Series([moves.get(r, 0) for r in part.steps["rank"].to_list()], dtype=pl.Int64)
    windows = moved(part.windows, by_window)
    origin = int(windows["start_ns"].to_numpy().min())
    drawn = part.timeline
    by = moves.get(drawn.rank, 0) + part.origin_ns - origin if drawn is not None else 0
    return replace(
        part,
        origin_ns=origin,
        end_ns=int(windows["end_ns"].to_numpy().max()),
        windows=windows,
        steps=moved(part.steps, steps),
        losses=by_number(part.losses),
        alone=by_number(part.alone),
        entries=by_number(part.entries),
        cells=by_number(part.cells),
        timeline=_moved(drawn, by),
        job=moved_job(part.job, part.origin_ns - origin),
    )
