"""Why a rank came late: blame walks back to what it did since it was last level with the waiter.

For each wait, take the last earlier collective of both ranks in which both devices had nothing
else to do: there they were level. From then until each of them entered the collective in question,
compare what the late device did with what the waiting one did, part by part: computing, losses by
cause, moving bytes, waiting, and time without a cause. The lateness is exactly the sum of the
differences; the parts in which the late device spent more share the wait. Where it spent more
waiting (in a collective of other ranks), that wait's own parts take their place.

Reasons, for causes to stand for (``WAITS``):

========== =============================================================================
more_work  its kernels took longer in all, and its GPU is not slower
slower     the same kernels take longer on its GPU than on the others'
upstream   as more_work, of a send and receive: another stage of a pipeline computes
held_up    its host recorded nothing for longer, time and again
pauses     its host recorded nothing for a long stretch, now and then, or its garbage collector ran
unknown    nothing recorded says why
========== =============================================================================

Any other part is a loss of a cause on the late device, and the wait goes to that cause.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from whyidle.intervals import Index, Ints
from whyidle.views.waits import Waits

Floats = npt.NDArray[np.float64]
COMPUTE, MOVING, WAITING, UNKNOWN = range(4)
FIXED = 4
HOLES = ("nothing", "collector")
FURTHEST = 64
"""How many collectives back two ranks may last have been level."""

SLOWER, MOST_OF = 1.05, 0.6
"""A GPU is slower when kernels with this share of the time that it has in common with the others
take so many times longer on it."""


@dataclass(frozen=True)
class Ground:
    """What every device did between its collectives, as prefix sums over cells.

    parts[i, j]: nanoseconds of part j before cell i, counted over all windows in a row. ``names``:
    (cause, activity) of the parts from FIXED on; activity only where it is one of HOLES.
    enters, leaves: per entry, the cells that begin at its start and its end. first: the first cell
    of each window. level: per entry, whether its device had nothing else to do at its end.
    """

    parts: Ints
    names: list[tuple[str, str | None]]
    window: Index
    enters: Index
    leaves: Index
    first: Index
    level: npt.NDArray[np.bool_]
    speed: Floats  # per window: how many times longer its kernels take than usual


@dataclass(frozen=True)
class Shares:
    """Per wait (``entry``: who waited) and part: the share 0..1 of it; rows of a table.

    part: column of Ground.parts, or SLOWER_PART for compute on a slower GPU; late: the entry whose
    device did it. chain: how many ranks further back than the one waited for it lies.
    """

    entry: Index
    part: Index
    late: Index
    share: Floats


SLOWER_PART = -1
OUTSET = -2


def shares(waits: Waits, ground: Ground) -> Shares:
    """Why each wait was waited."""
    item = np.flatnonzero(waits.last >= 0)
    late = waits.last[item]
    base = level_before(waits, ground, item, late)
    more, outset = _differences(waits, ground, item, late, base)
    gains = np.maximum(more, 0).astype(np.float64)
    slow = _slow_part(gains[:, COMPUTE], ground, item, late, base[1])
    gains[:, COMPUTE] -= slow
    every = np.column_stack([gains, slow, np.maximum(outset, 0)])
    total = every.sum(axis=1)
    every[total == 0, UNKNOWN] = 1.0
    every /= every.sum(axis=1, keepdims=True)
    codes = np.concatenate([np.arange(gains.shape[1]), [SLOWER_PART, OUTSET]])
    row, column = np.nonzero(every > 1e-6)
    found = Shares(item[row], codes[column], late[row], every[row, column])
    since = np.full(waits.last.size, np.iinfo(np.int64).min)
    since[item] = np.where(base[1] >= 0, waits.end[np.maximum(base[1], 0)], since[item])
    return _without_waiting(found, waits, ground, since)


def level_before(waits: Waits, ground: Ground, one: Index, other: Index) -> tuple[Index, Index]:
    """Per pair of entries of one meeting, the last earlier meeting in which both were level.

    As the two entries there; -1 where there is none.
    """
    count = int(waits.meeting.max(initial=-1)) + 2
    key = ground.window.astype(np.int64) * count + waits.meeting
    order = np.argsort(key, kind="stable")
    keys = key[order]
    back = previous(waits, ground)
    here, there = back[other], np.full(other.size, -1, dtype=np.int64)
    open_ = here >= 0
    for _ in range(FURTHEST):
        at = np.flatnonzero(open_)
        if not at.size:
            break
        wanted = ground.window[one[at]].astype(np.int64) * count + waits.meeting[here[at]]
        place = np.minimum(np.searchsorted(keys, wanted), keys.size - 1)
        met = order[place]
        good = (keys[place] == wanted) & ground.level[met]
        good &= ground.leaves[met] <= ground.enters[one[at]]
        there[at[good]] = met[good]
        here[at[~good]] = back[here[at[~good]]]
        open_[at] = ~good & (here[at] >= 0)
    return there, np.where(there >= 0, here, -1)


def previous(waits: Waits, ground: Ground) -> Index:
    """Per entry, the last that met somebody, left its device level and was over by then."""
    good = np.flatnonzero(ground.level & (waits.meeting >= 0))
    if not good.size:
        return np.full(waits.meeting.size, -1, dtype=np.int64)
    # cells of all windows count in a row, so that later windows have higher ones
    good = good[np.lexsort((ground.window[good], ground.leaves[good]))]
    place = np.searchsorted(ground.leaves[good], ground.enters, side="right") - 1
    found = good[np.maximum(place, 0)]
    same = (place >= 0) & (ground.window[found] == ground.window)
    same &= waits.arrival[found] < waits.arrival
    return np.where(same, found, -1).astype(np.int64)


def all_level(waits: Waits, ground: Ground) -> Index:
    """Per entry, that of its window in the last meeting of its group that left all members level.

    -1 where there was none. Unlike ``previous``, all members of a meeting then count from the same
    one.
    """
    back = np.full(waits.meeting.size, -1, dtype=np.int64)
    met = np.flatnonzero(waits.meeting >= 0)
    if not met.size:
        return back
    whole = np.ones(int(waits.meeting.max()) + 1, dtype=bool)
    np.logical_and.at(whole, waits.meeting[met], ground.level[met])
    order = met[np.lexsort((waits.end[met], waits.group[met], ground.window[met]))]
    place = np.where(whole[waits.meeting[order]], np.arange(order.size), -1)
    before = np.maximum.accumulate(np.concatenate([[-1], place[:-1]]))
    found = order[np.maximum(before, 0)]
    same = (before >= 0) & (ground.window[found] == ground.window[order])
    same &= waits.group[found] == waits.group[order]
    back[order] = np.where(same, found, -1)
    return back


def _differences(
    waits: Waits, ground: Ground, item: Index, late: Index, base: tuple[Index, Index]
) -> tuple[Ints, Ints]:
    """(waits, parts): by how much the late device spent more; and by how much it began later."""
    mine, its = base
    ours = _spent(ground, mine, item)
    theirs = _spent(ground, its, late)
    window = ground.window
    began = waits.arrival - (
        _position(ground, ground.enters) - _position(ground, ground.first[window])
    )
    outset = np.where(mine >= 0, 0, began[late] - began[item])
    return theirs - ours, outset


def _position(ground: Ground, cell: Index) -> Ints:
    """Nanoseconds of all parts before a cell."""
    return np.asarray(ground.parts[cell].sum(axis=1))


def _spent(ground: Ground, base: Index, entry: Index) -> Ints:
    """What an entry's device did from a level point (-1: its window's start) to the entry."""
    low = np.where(
        base >= 0, ground.leaves[np.maximum(base, 0)], ground.first[ground.window[entry]]
    )
    high = np.maximum(ground.enters[entry], low)
    return np.asarray(ground.parts[high] - ground.parts[low])


def _slow_part(more: Floats, ground: Ground, item: Index, late: Index, base: Index) -> Floats:
    """How much of the longer computing a slower GPU explains."""
    its, mine = ground.speed[ground.window[late]], ground.speed[ground.window[item]]
    computed = _spent(ground, base, late)[:, COMPUTE]
    return np.where(its > mine, np.minimum(more, computed * (1 - mine / its)), 0.0)


Parts = list[tuple[int, int, float]]


def _without_waiting(found: Shares, waits: Waits, ground: Ground, since: Ints) -> Shares:
    """Shares in which what a late rank waited itself is replaced by why it waited.

    ``since``: per waiting entry, when it and the late rank were last level.
    """
    chained = np.flatnonzero(found.part == WAITING)
    if not chained.size:
        return found
    rows: dict[int, Parts] = {}
    columns = (found.entry, found.part, found.late, found.share)
    for entry, *part in zip(*(column.tolist() for column in columns), strict=True):
        rows.setdefault(entry, []).append((part[0], part[1], part[2]))
    own = _waits_by_window(waits, ground)
    order = np.unique(found.entry[chained])
    for entry in order[np.argsort(waits.until[order], kind="stable")].tolist():
        rows[entry] = _resolved(rows[entry], int(since[entry]), rows, own, waits, ground)
    flat = [(entry, *part) for entry, parts in rows.items() for part in parts]
    entry_, part_, late_, share_ = (np.array(c) for c in zip(*flat, strict=True))
    return Shares(entry_, part_, late_, share_.astype(np.float64))


def _waits_by_window(waits: Waits, ground: Ground) -> dict[int, tuple[Index, Ints]]:
    """Per window, the entries in which it waited and until when, in order of that."""
    item = np.flatnonzero(waits.last >= 0)
    item = item[np.lexsort((waits.until[item], ground.window[item]))]
    if not item.size:
        return {}
    parts = np.split(item, np.flatnonzero(np.diff(ground.window[item])) + 1)
    return {int(ground.window[part[0]]): (part, waits.until[part]) for part in parts}


def _resolved(
    mine: Parts, since: int, rows: dict[int, Parts], own: dict[int, tuple[Index, Ints]],
    waits: Waits, ground: Ground,
) -> Parts:  # fmt: skip
    """The parts of one wait, with waiting spread over why the late device waited before."""
    kept: dict[tuple[int, int], float] = {}
    for part, late, share in mine:
        if part != WAITING:
            kept[part, late] = kept.get((part, late), 0.0) + share
            continue
        entries, until = own.get(int(ground.window[late]), (np.zeros(0, np.int64),) * 2)
        low = np.searchsorted(until, since, side="right")
        before = entries[low : np.searchsorted(until, waits.arrival[late], side="right")]
        took = (waits.until[before] - waits.arrival[before]).astype(np.float64)
        whole = float(took.sum())
        if not whole:
            kept[UNKNOWN, late] = kept.get((UNKNOWN, late), 0.0) + share
        for earlier, ns in zip(before.tolist(), took.tolist(), strict=True):
            for its_part, its_late, its_share in rows[earlier]:
                key = (UNKNOWN if its_part == WAITING else its_part, its_late)
                kept[key] = kept.get(key, 0.0) + share * its_share * ns / whole
    return [(part, late, share) for (part, late), share in kept.items() if share > 1e-4]


def speeds(table: pl.DataFrame, windows: int) -> Floats:
    """How many times longer each window's kernels take than the same ones elsewhere; 1: as long.

    ``table``: leavings.SPEEDS. Only kernels of the same name and grid are compared, and only where
    most of the time that a device has in common with others goes the same way: a rank that has
    more to do in some kernels is not a slow GPU.
    """
    told = table.filter(pl.col("median") > 0).with_columns(
        pl.col("median").quantile(0.5, "lower").over("kernel", "blocks").alias("usual"),
        pl.len().over("kernel", "blocks").alias("seen"),
    )
    told = told.filter(pl.col("seen") > 1).with_columns(
        (pl.col("median") / pl.col("usual")).alias("ratio")
    ).sort("window", "ratio")  # fmt: skip
    slower = pl.col("total").filter(pl.col("ratio") > SLOWER).sum() / pl.col("total").sum()
    half = pl.col("total").cum_sum() >= pl.col("total").sum() / 2
    sums = told.group_by("window", maintain_order=True).agg(
        slower.alias("slower"), pl.col("ratio").filter(half).first()
    )
    found = np.ones(windows)
    sums = sums.filter((pl.col("slower") >= MOST_OF) & (pl.col("ratio") > SLOWER))
    found[sums["window"].to_numpy()] = sums["ratio"].to_numpy()
    return found
