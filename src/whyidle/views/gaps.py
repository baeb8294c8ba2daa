"""Empty intervals of a device, and why each could not end sooner.

A *piece* is an empty interval up to the device work that ends it (work recorded as lasting 0 ns
also ends one). With a launch record it splits into three parts, any of which may be missing:
``late`` until the launch call begins (the host was late), ``call`` while the call lasts, and
``delay`` until the work starts (the device's own).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from whyidle.intervals import Index, Intervals, Ints, covered
from whyidle.views.activity import EMPTY
from whyidle.views.states import States

LATE, CALL, DELAY = 0, 1, 2


@dataclass(frozen=True)
class Pieces:
    """Empty intervals as positions on the device axis, one per device work that ends one.

    ender: index into ``states.work``, -1 when the window ends first; before: the latest work
    that ended, -1 for none; group: window; launch_ns, called_ns: the launch call of the ender on
    the same axis (meaningless where ``linked`` is false); thread: of that call, -1 when unknown.
    """

    start: Ints
    end: Ints
    group: Index
    ender: Index
    before: Index
    linked: npt.NDArray[np.bool_]
    launch: Ints
    called: Ints
    thread: Index


@dataclass(frozen=True)
class Parts:
    """Parts of pieces: positions, the piece each belongs to, and which part it is."""

    start: Ints
    end: Ints
    piece: Index
    part: npt.NDArray[np.int8]


def pieces(states: States) -> Pieces:
    """Cut the empty time at every start of device work, and look up who launched it."""
    start, end = cut(states.sets[EMPTY], states.start[states.end == states.start])
    group = states.axis.group_of(start)
    found = np.searchsorted(states.start, end, side="left")
    if not states.start.size:  # a run without a device: nothing ends what is empty
        nothing = np.full(start.size, -1, dtype=np.intp)
        return Pieces(start, end, group, nothing, nothing, nothing >= 0, start, end, nothing)
    at = np.minimum(found, states.start.size - 1)
    ends_here = (found < states.start.size) & (states.start[at] == end)
    ender = np.where(ends_here, at, -1)
    work = states.work
    linked = (ender >= 0) & work["launch"].is_not_null().to_numpy()[at]
    launch = states.axis.put(group, work["launch_ns"].fill_null(0).to_numpy()[at])
    called = states.axis.put(group, work["called_ns"].fill_null(0).to_numpy()[at])
    thread = np.where(linked, work["caller"].fill_null(0).to_numpy()[at].astype(np.intp), -1)
    return Pieces(
        start, end, group, ender, _before(states, start, group), linked, launch, called, thread
    )


def cut(a: Intervals, points: Ints) -> Intervals:
    """The set ``a`` with its intervals cut in two at every point inside one."""
    points = np.unique(points)
    inside = points[covered(points, a) & ~np.isin(points, a[0])]
    start = np.sort(np.concatenate([a[0], inside]))
    end = np.sort(np.concatenate([a[1], inside]))
    return start, end


def _before(states: States, start: Ints, group: Index) -> Index:
    """The work whose end is the latest at or before each piece's start, in the same window."""
    order = np.argsort(states.end, kind="stable")
    at = np.searchsorted(states.end[order], start, side="right") - 1
    found = np.where(at >= 0, order[np.maximum(at, 0)] if order.size else -1, -1)
    same = (
        (found >= 0) & (states.group[np.maximum(found, 0)] == group) if order.size else found >= 0
    )
    return np.where(same, found, -1).astype(np.intp)


def parts(found: Pieces) -> Parts:
    """Split every piece with a known launch; pieces without one stay whole, as ``late``."""
    low, high = found.start, found.end
    begins = np.where(found.linked, np.clip(found.launch, low, high), high)
    returns = np.where(found.linked, np.clip(found.called, begins, high), high)
    edges = (low, begins, returns, high)
    start = np.concatenate(edges[:3])
    end = np.concatenate(edges[1:])
    count = low.size
    piece = np.tile(np.arange(count), 3)
    part = np.repeat(np.array([LATE, CALL, DELAY], dtype=np.int8), count)
    keep = np.flatnonzero(end > start)
    order = keep[np.argsort(start[keep], kind="stable")]
    return Parts(start[order], end[order], piece[order].astype(np.intp), part[order])
