"""Settles communication across ranks: who waited for whom, why, and what it cost the job.

The ledger's law holds throughout: a wait keeps its device, its state and its parts, and only
changes hands, from the cause that claimed communication to the cause that kept the last rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from whyidle.harvest import summed
from whyidle.intervals import Axis, Ints, pairs
from whyidle.late import Charged, charged
from whyidle.leavings import Partial, shifted
from whyidle.ledger import PARTS_PER_NS, PARTS_PER_S
from whyidle.slow_moves import slowed
from whyidle.views.delays import saved_ns
from whyidle.views.step_replay import graph, uneven_s
from whyidle.views.waits import Waits, waits
from whyidle.views.walk import (
    COMPUTE,
    FIXED,
    HOLES,
    MOVING,
    UNKNOWN,
    WAITING,
    Ground,
    shares,
    speeds,
)

SURE_SHIFT = 3
"""A clock is moved when it is off by more than so many times the error of the estimate."""


@dataclass(frozen=True)
class Settled:
    """A job whose losses hold those of communication; ``met``: some collective was on two ranks."""

    job: Partial
    alone: pl.DataFrame
    job_cost_s: Mapping[str, float]
    met: bool


def settled_across_ranks(job: Partial, reasons: Mapping[str, str]) -> Settled:
    """Waits charged to what kept the late rank; ``reasons``: of views.walk, to causes."""
    ranks = sorted({r for r in job.windows["rank"].to_list() if r is not None})
    known = job.windows["rank"].null_count() == 0 and len(ranks) > 1
    if not known or not job.entries.height:
        return _finished(job, job.alone, {}, met=False)
    codes = np.searchsorted(ranks, job.windows["rank"].to_numpy())
    of_entry = codes[job.entries["window"].to_numpy()]
    found = waits(job.entries, of_entry, len(ranks), job.facts.world_size)
    if not (found.meeting >= 0).any():
        return _finished(_told(job, found, ranks), job.alone, {}, met=False)
    pieces = _split(job.alone, job.entries, found)
    ground = _ground(job, pieces, found)
    why = charged(shares(found, ground), found, ground, job, reasons)
    alone = _recharged(job.alone, pieces, why)
    if "slow_link" in reasons:
        alone = slowed(alone, job, found, reasons["slow_link"])
    ends = found.clocks.put(codes, job.windows["end_ns"].to_numpy())
    before, names = why.before
    told = alone.filter(pl.col("peer").is_null())["cause"].cast(pl.String).unique().to_list()
    extra = sorted(set(told) - set(names))
    names = [*names, *extra]
    before = np.pad(before, ((0, 0), (0, len(extra))))
    moving = _moving(alone, names, job.entries.height)
    saved = saved_ns(
        found, ground, before, moving, ends, np.append(ground.first[1:], job.cells.height)
    )
    cost = _capped({name: float(saved[i]) / 1e9 for i, name in enumerate(names)}, why.losses, alone)
    cost |= _replayed(job, ground, alone, reasons)
    job = replace(job, losses=why.losses)
    return _finished(_told(job, found, ranks), alone, cost, met=True, moved=found, ranks=ranks)


def _finished(
    job: Partial,
    alone: pl.DataFrame,
    cost: Mapping[str, float],
    *,
    met: bool,
    moved: Waits | None = None,
    ranks: list[int] | None = None,
) -> Settled:
    """Losses and shown rows of communication added; clocks moved where they must be."""
    told = job.entries.select("window", "row", "event", "source", "name", "kind")
    keys = ["cause", "row", "source", "event", "name", "kind"]
    shown = alone.join(told, on=["window", "row"], how="inner")
    sums = shown.group_by(keys, maintain_order=True).agg(pl.col("lost").sum())
    rows = sums.select(job.shown.columns)
    job = replace(
        job,
        losses=pl.concat([job.losses, summed(alone)]),
        shown=pl.concat([job.shown, rows]),
        alone=alone,
    )
    if moved is not None and ranks is not None:
        job = shifted(job, _needed(moved, ranks))
    return Settled(job, job.alone, cost, met)


def _replayed(
    job: Partial, ground: Ground, alone: pl.DataFrame, reasons: Mapping[str, str]
) -> dict[str, float]:
    """Delays of the job by uneven work, where records of operations allow an exact replay."""
    found = graph(job.operations)
    if found is None:
        return {}
    ranks = np.array(job.windows["rank"].to_list())[ground.speed > 1]
    costs = uneven_s(found, frozenset(ranks.tolist()))
    held = set(alone["cause"].cast(pl.String).unique().to_list())
    told = {reasons[name]: seconds for name, seconds in costs.items() if name in reasons}
    return {cause: seconds for cause, seconds in told.items() if cause in held}


def _capped(cost: dict[str, float], losses: pl.DataFrame, alone: pl.DataFrame) -> dict[str, float]:
    """The job is delayed by no more than all that its devices lost."""
    both = pl.concat([losses.select("cause", "lost"), alone.select("cause", "lost")])
    sums = both.with_columns(pl.col("cause").cast(pl.String)).group_by("cause").agg(
        pl.col("lost").sum()
    )  # fmt: skip
    lost = dict(sums.iter_rows())
    return {name: min(s, lost.get(name, 0) / PARTS_PER_S) for name, s in cost.items()}


def _moving(
    alone: pl.DataFrame, names: list[str], entries: int
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Per entry and cause, nanoseconds alone on the device that wait for nobody."""
    mine = alone.filter(pl.col("peer").is_null() & (pl.col("entry") >= 0))
    rows = mine.with_columns(pl.col("cause").cast(pl.String)).filter(pl.col("cause").is_in(names))
    column = rows["cause"].replace_strict(names, range(len(names)), return_dtype=pl.Int64)
    total = np.zeros((entries, len(names)))
    np.add.at(
        total, (rows["entry"].to_numpy(), column.to_numpy()), rows["lost"].to_numpy() / PARTS_PER_NS
    )
    return total


def _needed(found: Waits, ranks: list[int]) -> dict[int | None, int]:
    """Nanoseconds to move each rank's clock by; ranks whose clocks agree are left alone."""
    offset, error = found.clocks.offset_ns, found.clocks.error_ns
    return {
        rank: int(offset[i])
        for i, rank in enumerate(ranks)
        if abs(int(offset[i])) > SURE_SHIFT * int(error[i])
    }


def _told(job: Partial, found: Waits, ranks: list[int]) -> Partial:
    """What the reader must know: moved clocks, ranks that are missing."""
    moved = _needed(found, ranks)
    sources = []
    for source in job.sources:
        if source.rank not in ranks:
            sources.append(source)
            continue
        at = ranks.index(source.rank)
        error = int(found.clocks.error_ns[at]) if found.clocks.known[at] else None
        by, notes = moved.get(source.rank, 0), source.notes
        if by:
            notes = (*notes, f"clock moved by {by / 1e9:+.6f} s to agree with the other ranks, "
                     f"to within {(error or 0) / 1e3:.0f} us")  # fmt: skip
        sources.append(replace(source, notes=notes, clock_offset_ns=by, clock_error_ns=error))
    return replace(job, sources=tuple(sources), notes=(*job.notes, *_absent(job, ranks)))


def _absent(job: Partial, ranks: list[int]) -> list[str]:
    world = job.facts.world_size
    if world is None or len(ranks) >= world:
        return []
    gone = [str(r) for r in range(world) if r not in set(ranks)]
    some = ", ".join(gone[:8]) + (f" and {len(gone) - 8} more" if len(gone) > 8 else "")
    return [
        f"{len(gone)} of {world} ranks are missing (rank {some}): time in which the others waited "
        "for one of these stays with communication. Give the traces of all ranks to split it."
    ]


def _split(alone: pl.DataFrame, entries: pl.DataFrame, found: Waits) -> pl.DataFrame:
    """The waiting part of each interval of ``alone`` that waits: row, entry, start_ns, end_ns."""
    entry = alone["entry"].to_numpy()
    at = np.maximum(entry, 0)
    until = entries["start_ns"].to_numpy()[at] + (found.until - found.arrival)[at]
    start, end = alone["start_ns"].to_numpy(), alone["end_ns"].to_numpy()
    whole = alone["lost"].to_numpy() == (end - start) * PARTS_PER_NS
    waits_ = (entry >= 0) & (found.last[at] >= 0) & (until > start) & whole
    row = np.flatnonzero(waits_)
    return pl.DataFrame(
        {
            "row": row,
            "entry": entry[row],
            "window": alone["window"].to_numpy()[row].astype(np.int64),
            "start_ns": start[row],
            "end_ns": np.minimum(until, end)[row],
        }
    )


def _ground(job: Partial, pieces: pl.DataFrame, found: Waits) -> Ground:
    """What each device did between its collectives."""
    cells, losses = job.cells, job.cell_losses
    windows = job.windows.height
    first = np.searchsorted(cells["window"].to_numpy(), np.arange(windows))
    idle = losses.filter(pl.col("state").is_in(["empty", "copy"])).with_columns(
        pl.when(pl.col("activity").cast(pl.String).is_in(HOLES)).then("activity").alias("hole")
    )
    keyed = idle.group_by("cell", "cause", "hole", maintain_order=True).agg(pl.col("ns").sum())
    keyed = keyed.with_columns(pl.col("cause", "hole").cast(pl.String))
    kinds = keyed.select("cause", "hole").unique(maintain_order=True)
    names = kinds.rows()
    kinds = kinds.with_row_index("part", offset=FIXED)
    rows = keyed.join(kinds, on=["cause", "hole"], how="left", nulls_equal=True)
    parts = np.zeros((cells.height, FIXED + len(names)), dtype=np.int64)
    np.add.at(parts, (rows["cell"].to_numpy(), rows["part"].to_numpy()), rows["ns"].to_numpy())
    parts[:, COMPUTE] = cells["compute"].to_numpy()
    parts[:, WAITING] = _waiting(job, pieces)
    parts[:, MOVING] = cells["communication"].to_numpy() - parts[:, WAITING]
    rest = cells["empty"].to_numpy() + cells["copy"].to_numpy()
    parts[:, UNKNOWN] = np.maximum(rest - parts[:, FIXED:].sum(axis=1), 0)
    zero = np.zeros((1, parts.shape[1]), dtype=np.int64)
    return Ground(
        np.concatenate([zero, np.cumsum(parts, axis=0)]),
        names,
        job.entries["window"].to_numpy().astype(np.int64),
        job.entries["enters"].to_numpy(),
        job.entries["leaves"].to_numpy(),
        first,
        _level(job),
        speeds(job.speeds, windows),
    )


def _level(job: Partial) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Per entry, whether its device only communicated when it ended."""
    last = np.full(job.entries.height, np.iinfo(np.int64).min)
    mine = job.alone.filter(pl.col("entry") >= 0)
    np.maximum.at(last, mine["entry"].to_numpy(), mine["end_ns"].to_numpy())
    closes = job.windows["end_ns"].to_numpy()[job.entries["window"].to_numpy()]
    return np.asarray(last >= np.minimum(job.entries["end_ns"].to_numpy(), closes))


def _waiting(job: Partial, pieces: pl.DataFrame) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Nanoseconds of waiting in each cell."""
    axis = Axis(job.windows["start_ns"].to_numpy(), job.windows["end_ns"].to_numpy())

    def placed(table: pl.DataFrame) -> tuple[Ints, Ints]:
        owner = table["window"].to_numpy().astype(np.intp)
        start, end = table["start_ns"].to_numpy(), table["end_ns"].to_numpy()
        return axis.put(owner, start), axis.put(owner, end)

    waits_, rooms = placed(pieces), placed(job.cells)
    left, right = pairs(waits_, rooms)
    took = np.minimum(waits_[1][left], rooms[1][right])
    took -= np.maximum(waits_[0][left], rooms[0][right])
    total = np.zeros(job.cells.height, dtype=np.int64)
    np.add.at(total, right, took)
    return total


def _recharged(alone: pl.DataFrame, pieces: pl.DataFrame, why: Charged) -> pl.DataFrame:
    """``alone`` with each wait cut among what it was waited for; lengths stay whole nanoseconds."""
    if not pieces.height:
        return alone
    roots = why.roots.sort("entry", "share", descending=[False, True], maintain_order=True)
    joined = pieces.join(roots, on="entry", how="inner", maintain_order="left")
    upto = (pl.col("share").cum_sum().over("row")).clip(upper_bound=1.0)
    took = pl.col("end_ns") - pl.col("start_ns")
    cut = joined.with_columns((upto * took).round().cast(pl.Int64).alias("to"))
    final = pl.col("row") != pl.col("row").shift(-1).fill_null(-1)
    cut = cut.with_columns(pl.when(final).then(took).otherwise("to").alias("to"))
    cut = cut.with_columns(pl.col("to").shift(1).over("row").fill_null(0).alias("from"))
    cut = cut.filter(pl.col("to") > pl.col("from"))
    origin = alone.with_row_index("number")[cut["row"].to_numpy()]
    charged_ = cut.with_columns(
        (pl.col("start_ns") + pl.col("to")).alias("end_ns"),
        (pl.col("start_ns") + pl.col("from")).alias("start_ns"),
        ((pl.col("to") - pl.col("from")) * PARTS_PER_NS).alias("lost"),
        pl.coalesce(pl.col("cause"), origin["cause"].cast(pl.String)).alias("cause"),
        pl.coalesce(pl.col("op"), origin["op"].cast(pl.String)).alias("op"),
        pl.Series("span", origin["row"]),
        pl.Series("claimed", origin["level"]),
    )
    charged_ = charged_.with_columns(
        pl.lit("communication").alias("state"),
        pl.col("span").alias("row"),
        pl.coalesce("level", pl.col("claimed").cast(pl.String)).alias("level"),
        pl.lit(None).alias("activity"),
    )
    ends = np.full(alone.height, np.iinfo(np.int64).min)
    ends[pieces["row"].to_numpy()] = pieces["end_ns"].to_numpy()
    rest = alone.with_columns(
        pl.max_horizontal("start_ns", pl.Series(ends)).alias("start_ns")
    ).with_columns(
        pl.when(pl.Series(ends > np.iinfo(np.int64).min))
        .then((pl.col("end_ns") - pl.col("start_ns")) * PARTS_PER_NS)
        .otherwise("lost")
        .alias("lost")
    )
    rest = rest.filter(pl.col("end_ns") > pl.col("start_ns"))
    told = charged_.select(pl.col(n).cast(t) for n, t in alone.schema.items())
    return pl.concat([rest, told]).sort("window", "start_ns", maintain_order=True)
