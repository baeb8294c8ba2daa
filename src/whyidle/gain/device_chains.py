"""Device work of one device in stream order, and when each piece of it could have begun.

Nothing here is copied from the trace but durations and order. A kernel begins when the latest of
these lets it: the work before it on its stream is done (plus a gap), its launch call was made
(plus a latency), work of another stream that it waits for is done. Gaps, latencies, and which
stream waits for which are learned on the steps of the *other* parity than the step they are used
on: what is learned on even steps is tested on odd ones, and the other way round.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt
import polars as pl

from whyidle.intervals import Index, Ints
from whyidle.views.host import SMALL_COPY_BYTES

Reals = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

LONGEST_LATENCY_NS = 50_000
"""A start delay longer than this is a dependency or unrecorded work, as in views.unrecorded."""
CLEAR_NS = 5_000
TOUCH_NS = 15_000
SLACK_NS = 2_000
LATENCY_NS, GAP_NS = 8_000.0, 1_000.0  # where no step teaches better
MOST_LANES = 8
SURE = 0.98
_LARGE = SMALL_COPY_BYTES + 1


@dataclass(frozen=True)
class Work:
    """Device work in order of (lane, start); instants from the start of the replayed stretch.

    before: index of the work before on the same lane, -1 for the first. called, returned: the
    launch call, meaningless where ``linked`` is false. step: 0.. of the launch (of the start,
    without one), -1 before the first. name, kind: codes. large: a copy that is not
    staged at once (of unknown size: taken to be large).
    """

    row: npt.NDArray[np.uint32]
    lane: Index
    start: Ints
    length: Ints
    before: Index
    linked: Flags
    called: Ints
    returned: Ints
    launch: npt.NDArray[np.uint32]
    step: Index
    name: Index
    kind: Index
    state: npt.NDArray[np.int8]
    text: pl.Series
    large: Flags

    @property
    def end(self) -> Ints:
        """When each piece was done, as recorded."""
        return self.start + self.length

    @property
    def handed(self) -> Ints:
        """When each piece was handed over, never earlier than the one before on its lane."""
        instant = np.where(self.linked, self.called, self.start)
        return grouped_maximum(instant, self.lane)

    def last_before(self, lane: int, instant: Ints) -> Index:
        """The last work of a lane handed over before each instant; -1 for none."""
        mine = np.flatnonzero(self.lane == lane)
        at = np.searchsorted(self.handed[mine], instant, side="left") - 1
        return np.where(at >= 0, mine[np.maximum(at, 0)], -1) if mine.size else at * 0 - 1


def grouped_maximum(values: Ints, group: Index) -> Ints:
    """Running maximum within each run of equal ``group``."""
    found = values.copy()
    edges = np.flatnonzero(np.diff(group, prepend=-1, append=-1))
    for low, high in zip(edges[:-1], edges[1:], strict=True):  # a handful of lanes
        found[low:high] = np.maximum.accumulate(values[low:high])
    return found


def work_of(activity: pl.DataFrame, low_ns: int, high_ns: int, steps: Ints) -> Work:
    """The work launched in the stretch, or launched before and still running at its start."""
    seen = pl.coalesce("launch_ns", "start_ns")
    mine = activity.filter((seen < high_ns) & (pl.col("end_ns") > low_ns)).sort(
        "lane", "start_ns", "end_ns", "row"
    )
    lane = np.unique(mine["lane"].fill_null(-1).to_numpy(), return_inverse=True)[1]
    start = mine["start_ns"].to_numpy() - low_ns
    linked = mine["launch"].is_not_null().to_numpy()
    called = mine["launch_ns"].fill_null(0).to_numpy() - low_ns
    index = np.arange(mine.height)
    seen_at = np.where(linked, called, start)
    return Work(
        row=mine["row"].to_numpy(),
        lane=lane,
        start=start,
        length=mine["end_ns"].to_numpy() - mine["start_ns"].to_numpy(),
        before=np.where(np.diff(lane, prepend=-1) == 0, index - 1, -1),
        linked=linked,
        called=called,
        returned=mine["called_ns"].fill_null(0).to_numpy() - low_ns,
        launch=mine["launch"].fill_null(2**32 - 1).to_numpy(),
        step=np.searchsorted(steps[:, 0], seen_at, side="right") - 1,
        name=mine["name"].to_physical().fill_null(0).to_numpy().astype(np.int64),
        kind=mine["kind"].to_physical().to_numpy().astype(np.int64),
        state=mine["state"].to_numpy(),
        text=mine["name"],
        large=(mine["bytes"].fill_null(_LARGE) >= _LARGE).to_numpy(),
    )


@dataclass(frozen=True)
class Starts:
    """Per work: what its start is derived from.

    gap: after the work before; latency: after the launch call began; waits_for: work of another
    lane, -1 for none, and ``wait_lag`` after its end; delay: on top of the latest of these, for
    reasons that the graph does not know (a constant, counted as unexplained).
    """

    gap: Reals
    latency: Reals
    waits_for: Index
    wait_lag: Reals
    delay: Reals


def starts_of(work: Work, steps: int) -> Starts:
    """Learn on one parity of steps, use on the other; with one step, learn and use on it."""
    count = work.start.size
    found = Starts(
        np.full(count, GAP_NS), np.full(count, LATENCY_NS), np.full(count, -1, dtype=np.intp),
        np.zeros(count), np.zeros(count),
    )  # fmt: skip
    parity = np.maximum(work.step, 0) % 2
    classes = _classes(work) if count else (parity, parity)
    for use in (0, 1) if count else ():
        learn = (parity != use) if steps > 1 else np.ones(count, dtype=bool)
        _learned(work, classes, learn, parity == use, found)
    return found


def _learned(
    work: Work, classes: tuple[Index, Index], learn: Flags, use: Flags, found: Starts
) -> None:
    ended = np.where(work.before >= 0, work.end[work.before], work.start - LONGEST_LATENCY_NS)
    after_call = (work.start - work.called).astype(np.float64)
    idle = work.linked & (ended < work.called - CLEAR_NS) & (after_call < LONGEST_LATENCY_NS)
    late = after_call - (work.returned - work.called)
    latency = _latency(work, learn & idle, after_call, late)
    after_work = (work.start - ended).astype(np.float64)
    queued = work.linked & (work.before >= 0) & (work.returned + 2 * CLEAR_NS < ended)
    short = queued & (after_work < LONGEST_LATENCY_NS)
    gap = typical(code(work.lane, work.name), after_work, learn & short)
    plain = typical(work.lane, after_work, learn & short)
    gap = np.where(np.isnan(gap), np.where(np.isnan(plain), GAP_NS, plain), gap)
    could = np.where(work.before >= 0, ended + gap, -np.inf)
    could = np.maximum(could, np.where(work.linked, work.called + latency, -np.inf))
    waits_for, lag = _dependencies(work, classes, learn, could)
    known = waits_for >= 0
    could = np.maximum(could, np.where(known, work.end[waits_for] + lag, -np.inf))
    delay = _delays(work, classes, learn, could)
    for target, value in (
        (found.gap, gap), (found.latency, latency), (found.waits_for, waits_for),
        (found.wait_lag, lag), (found.delay, delay),
    ):  # fmt: skip
        target[use] = value[use]


def _latency(work: Work, learn: Flags, after_call: Reals, late: Reals) -> Reals:
    """From the start of the call to the start of the work on an idle stream.

    Per kind and size of work, counted from the call's start or its return, whichever varies less.
    """
    key = code(work.kind, work.large)  # a large copy of pageable memory is staged first
    began = typical(key, after_call, learn)
    returned = typical(key, late, learn)
    spread_began = typical(key, np.abs(after_call - began), learn)
    spread_returned = typical(key, np.abs(late - returned), learn)
    by_return = (spread_returned < spread_began) & ~np.isnan(returned)
    took = (work.returned - work.called).astype(np.float64)
    found = np.where(by_return, returned + took, began)
    return np.where(np.isnan(found), LATENCY_NS, found)


def _dependencies(
    work: Work, classes: tuple[Index, Index], learn: Flags, could: Reals
) -> tuple[Index, Reals]:
    """Work of another lane that a class of work waits for, and the lag after its end.

    A class is (lane, name, name before on the lane). It waits for the last work handed to
    another lane before its own launch if it never began earlier than that was done, and began
    right after it wherever it began later than its own launch and lane allow.
    """
    count = work.start.size
    best, lag = np.full(count, -1, dtype=np.intp), np.zeros(count)
    lanes, size = np.unique(work.lane, return_counts=True)
    if lanes.size < 2:
        return best, lag
    score = np.zeros(count)
    delayed = work.start - could > CLEAR_NS
    handed = work.handed
    most = lanes[np.argsort(-size, kind="stable")][:MOST_LANES].tolist()
    for key, lane in product(classes, most):
        other = work.last_before(lane, handed)
        some = (other >= 0) & (work.lane != lane)
        distance = (work.start - work.end[np.maximum(other, 0)]).astype(np.float64)
        holds = share(key, distance >= -SLACK_NS, learn & some)
        tight = share(key, (distance >= -SLACK_NS) & (distance <= TOUCH_NS), learn & delayed & some)
        often = total(key, learn & delayed & some)
        good = some & (holds >= SURE) & (tight >= 0.5) & (often >= 1)
        near = delayed & some & (distance >= -SLACK_NS) & (distance <= TOUCH_NS)
        usual = typical(key, distance, learn & near)
        better = good & (tight > score) & ~np.isnan(usual)  # the finer class is asked first
        best = np.where(better, other, best)
        lag = np.where(better, usual, lag)
        score = np.where(better, tight, score)
    return best, lag


def _delays(work: Work, classes: tuple[Index, Index], learn: Flags, could: Reals) -> Reals:
    """What a class of work begins later than the graph allows, typically; 0 up to CLEAR_NS."""
    late = np.where(np.isfinite(could), work.start - could, 0.0)
    fine, coarse = (typical(key, late, learn) for key in classes)
    usual = np.where(np.isnan(fine), coarse, fine)
    return np.where(np.isnan(usual) | (usual < CLEAR_NS), 0.0, usual)


def _classes(work: Work) -> tuple[Index, Index]:
    """Work that should behave alike: lane, name, name before; the finer one per place in a step."""
    before = np.where(work.before >= 0, work.name[work.before], -1)
    coarse = code(work.lane, work.name, before, work.linked)
    index = np.arange(coarse.size)
    order = np.lexsort((index, work.step, coarse))
    new = (np.diff(coarse[order], prepend=-1) != 0) | (np.diff(work.step[order], prepend=-2) != 0)
    first = np.maximum.accumulate(np.where(new, index, 0))
    nth = np.empty_like(index)
    nth[order] = index - first
    return code(coarse, nth), coarse


def code(*columns: npt.NDArray[np.generic]) -> Index:
    """One number per distinct combination, from 0 without holes."""
    found = np.zeros(columns[0].size, dtype=np.int64)
    for column in columns:
        whole = np.asarray(column, dtype=np.int64)
        low, high = int(whole.min(initial=0)), int(whole.max(initial=0))
        found = np.unique(found * (high - low + 1) + (whole - low), return_inverse=True)[1]
        found = found.reshape(-1)
    return found


def typical(key: Index, value: Reals, use: Flags) -> Reals:
    """Per item the median of ``value`` over the chosen items of its key; NaN without any."""
    at = np.flatnonzero(use & np.isfinite(value))
    found = np.full(int(key.max(initial=-1)) + 1, np.nan)
    order = at[np.lexsort((value[at], key[at]))]
    first = np.flatnonzero(np.diff(key[order], prepend=-1) != 0)
    count = np.diff(first, append=order.size)
    middle = value[order]
    median = (middle[first + (count - 1) // 2] + middle[first + count // 2]) / 2
    found[key[order][first]] = median
    return found[key]


def share(key: Index, flag: Flags, use: Flags) -> Reals:
    """Per item the share of the chosen items of its key with ``flag``; NaN without any."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(
            (np.bincount(key, weights=use & flag) / np.bincount(key, weights=use))[key]
        )


def total(key: Index, use: Flags) -> Reals:
    """Per item how many of the chosen items share its key."""
    return np.asarray(np.bincount(key, weights=use)[key])
