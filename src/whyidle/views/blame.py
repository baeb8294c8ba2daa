"""Every instant that a device was empty or only copying, given to exactly one activity.

The frame has one row per interval, disjoint per device:

========= ======== ======================================================================
rank      Int32
device    Int32
start_ns  Int64
end_ns    Int64
window    UInt32   row of the windows view
state     Enum     "empty" or "copy"
activity  Enum     one of ACTIVITIES
span      Int32    index into the nest of the host span that shows it; -1 for none
thread    UInt32   host thread blamed; null when none
ender     UInt32   row of the device work that ended the empty interval; null when none
launch    UInt32   row of the call that launched it; null when none
piece     Int32    number of the empty interval; -1 while copying
========= ======== ======================================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from whyidle.intervals import Axis, Index, Ints, pairs
from whyidle.model import STATES
from whyidle.views import names
from whyidle.views.activities import ACTIVITIES, ACTIVITY, CODE
from whyidle.views.activity import COPY, EMPTY, STATE_NAMES
from whyidle.views.gaps import CALL, DELAY, LATE, Pieces, cut, parts, pieces
from whyidle.views.host import Codes, Host
from whyidle.views.states import States

NOTHING = CODE["nothing"]
MOST_FEEDERS = 4


@dataclass(frozen=True)
class Segments:
    """Blamed intervals as parallel arrays, on the device axis; the columns of the frame."""

    start: Ints
    end: Ints
    activity: Codes
    span: Index
    thread: Index
    piece: Index

    def take(self, index: npt.NDArray[np.generic]) -> Segments:
        """These rows only."""
        return Segments(*(getattr(self, name)[index] for name in self.__dataclass_fields__))

    def with_activity(self, where: npt.NDArray[np.bool_], activity: str) -> Segments:
        """The same, with another activity where told."""
        return replace(
            self, activity=np.where(where, CODE[activity], self.activity).astype(np.int8)
        )


def gathered(many: list[Segments]) -> Segments:
    """All segments, one list after the other."""
    if len(many) == 1:
        return many[0]
    names = list(Segments.__dataclass_fields__)
    return Segments(*(np.concatenate([getattr(s, n) for s in many]) for n in names))


def joined(many: list[Segments]) -> Segments:
    """All segments in order of position."""
    whole = gathered(many)
    return whole.take(np.argsort(whole.start, kind="stable"))


@dataclass(frozen=True)
class Feeders:
    """Which threads may have kept another waiting, per rank, most likely first."""

    stepping: dict[int, int]  # window -> thread that marks the steps or launches most
    others: dict[int, list[int]]  # window -> threads that launch, most launches first


def blame_empty(states: States, host: Host, feeders: Feeders) -> tuple[Segments, Pieces]:
    """Give every empty instant to one activity, before the rules that look at more than one."""
    found = pieces(states)
    split = parts(found)
    thread = found.thread[split.piece]
    stepping = np.array(
        [feeders.stepping.get(g, -1) for g in range(states.windows.height)], dtype=np.intp
    )
    tail = (thread < 0) & (found.ender[split.piece] < 0)
    thread = np.where(tail, stepping[found.group[split.piece]], thread)
    known = thread >= 0
    late = known & (split.part == LATE)
    call = known & (split.part == CALL)
    rest = Segments(
        split.start,
        split.end,
        np.where(split.part == DELAY, CODE["device_delay"], CODE["unknown"]).astype(np.int8),
        np.full(split.start.size, -1, dtype=np.intp),
        thread,
        split.piece,
    ).take(np.flatnonzero(~late & ~call))
    asked = np.flatnonzero(late | call)
    by_host = _on_threads(
        states.axis, host, found.group, split.start[asked], split.end[asked], thread[asked],
        split.piece[asked],
    )  # fmt: skip
    by_host = _fed(states.axis, host, found.group, by_host, feeders)
    return joined([rest, by_host]), found


def _on_threads(
    axis: Axis, host: Host, group: Index, start: Ints, end: Ints, thread: Index,
    piece: Index,
) -> Segments:  # fmt: skip
    """What ``thread`` was doing in each interval: the innermost span at each instant."""
    whole = host.partition
    where = group[piece]
    to_ns = axis.take(start, where), axis.take(end, where)
    on_thread = host.nest.axis.put(thread, to_ns[0]), host.nest.axis.put(thread, to_ns[1])
    left, right = pairs(on_thread, (whole.start, whole.end))
    shift = start[left] - on_thread[0][left]
    low = np.maximum(on_thread[0][left], whole.start[right]) + shift
    high = np.minimum(on_thread[1][left], whole.end[right]) + shift
    span = whole.span[right]
    return Segments(low, high, activity_of(host, span), span, thread[left], piece[left])


def activity_of(host: Host, span: Index) -> Codes:
    """Activity of spans; "nothing" for -1."""
    if host.activity.size == 0:
        return np.full(span.shape, NOTHING, dtype=np.int8)
    return np.where(span >= 0, host.activity[span], NOTHING).astype(np.int8)


def _fed(axis: Axis, host: Host, group: Index, found: Segments, feeders: Feeders) -> Segments:
    """Where the launching thread recorded nothing, what the thread that feeds it was doing."""
    done = [found.take(np.flatnonzero(found.activity != NOTHING))]
    open_ = found.take(np.flatnonzero(found.activity == NOTHING))
    for choice in range(MOST_FEEDERS):
        windows = range(max(feeders.others, default=-1) + 1)
        other = np.array([_nth(feeders.others.get(g, []), choice) for g in windows], dtype=np.intp)
        if open_.start.size == 0 or not np.any(other >= 0):
            break
        thread = other[group[open_.piece]]
        ask = (thread >= 0) & (thread != open_.thread)
        asked = open_.take(np.flatnonzero(ask))
        told = _on_threads(axis, host, group, asked.start, asked.end, thread[ask], asked.piece)
        busy = told.activity != NOTHING
        done.append(told.take(np.flatnonzero(busy)))
        silent = told.take(np.flatnonzero(~busy))
        # what nobody explains keeps the launching thread and its own (outer) span
        own = _restored(silent, asked)
        open_ = joined([open_.take(np.flatnonzero(~ask)), own])
    return gathered([*done, open_])


def _restored(silent: Segments, asked: Segments) -> Segments:
    at = np.searchsorted(asked.start, silent.start, side="right") - 1
    if silent.start.size == 0:
        return silent
    return replace(silent, span=asked.span[at], thread=asked.thread[at])


def _nth(values: list[int], index: int) -> int:
    return values[index] if index < len(values) else -1


def blame_copies(states: States, host: Host) -> Segments:
    """Give every instant of copy alone to what launched the copy."""
    at = np.flatnonzero(states.work["state"].to_numpy() == COPY)
    start, end = cut(states.sets[COPY], states.start[at])
    owner = (
        at[np.maximum(np.searchsorted(states.start[at], start, side="right") - 1, 0)]
        if at.size
        else at
    )
    work = states.work
    launch = host.nest.index_of(work["launch"].fill_null(2**32 - 1).to_numpy()[owner])
    launch = np.where(work["launch"].is_null().to_numpy()[owner], -1, launch)
    activity = activity_of(host, launch)
    text = work["name"].cast(pl.String).to_numpy()[owner] if owner.size else np.zeros(0, dtype=str)
    inbound = np.array([bool(re.search(names.INBOUND, t)) for t in text], dtype=bool)
    weak = np.isin(activity, [NOTHING, CODE["op"], CODE["launch"], CODE["python"], CODE["sync"]])
    activity = np.where(inbound, CODE["pageable_copy"], np.where(weak, CODE["unknown"], activity))
    thread = work["caller"].cast(pl.Int64).fill_null(-1).to_numpy()[owner].astype(np.intp)
    piece = np.full(start.size, -1, dtype=np.intp)
    return Segments(start, end, activity.astype(np.int8), launch.astype(np.intp), thread, piece)


def blame_frame(states: States, empty: Segments, found: Pieces, copying: Segments) -> pl.DataFrame:
    """The frame that the module describes."""
    whole = joined([empty, copying])
    group = states.axis.group_of(whole.start)
    inside = whole.piece >= 0
    ender = np.where(inside, found.ender[whole.piece], -1) if found.ender.size else whole.piece
    state_names = pl.Series("state", STATE_NAMES, dtype=STATES)
    kinds = pl.Series("activity", ACTIVITIES, dtype=ACTIVITY)
    return pl.DataFrame(
        [
            states.windows["rank"].gather(group),
            states.windows["device"].gather(group),
            pl.Series("start_ns", states.axis.take(whole.start, group)),
            pl.Series("end_ns", states.axis.take(whole.end, group)),
            pl.Series("window", group.astype(np.uint32)),
            state_names.gather(np.where(inside, EMPTY, COPY).astype(np.uint32)),
            kinds.gather(whole.activity.astype(np.uint32)),
            pl.Series("span", whole.span.astype(np.int32)),
            _known(
                pl.Series("thread", np.maximum(whole.thread, 0).astype(np.uint32)), whole.thread
            ),
            _known(_rows_at(states.work["row"], ender).alias("ender"), ender),
            _known(_rows_at(states.work["launch"], ender), ender),
            pl.Series("piece", whole.piece.astype(np.int32)),
        ]
    )


def _rows_at(rows: pl.Series, index: Index) -> pl.Series:
    if not len(rows):
        return pl.Series(rows.name, np.zeros(index.size, dtype=np.uint32))
    return rows.gather(np.maximum(index, 0))


def _known(values: pl.Series, index: Index) -> pl.Series:
    """The values, null where the index is negative."""
    return values.set(pl.Series(index < 0), None)
