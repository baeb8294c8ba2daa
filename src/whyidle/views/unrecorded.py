"""Empty time in which the device very likely did work that the recorder dropped."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import polars as pl

from whyidle.intervals import Index, Intervals, intersect, overlap_ns, subtract, union
from whyidle.views import names
from whyidle.views.activities import CODE
from whyidle.views.blame import Segments, joined
from whyidle.views.scene import Scene

_BLOCKS = re.compile(r"Synchronize|[mM]emcpy")
"""Calls in which the host may sit until the device has done what was queued."""
_WAITS = re.compile(
    f"{names.SYNCHRONISATIONS.pattern}|{names.BLOCKING_COPIES.pattern}", re.IGNORECASE
)
_KERNELS = re.compile(rf"^(?!.*GraphLaunch).*({names.KERNEL_LAUNCHES.pattern})")


def unrecorded(found: Segments, scene: Scene) -> Segments:
    """Empty time in which the device very likely did work that the recorder dropped."""
    pieces_, work = scene.pieces, scene.states.work
    ender = pieces_.ender[found.piece]
    graph = work["graph"].fill_null(value=False).to_numpy()
    node = (ender >= 0) & (graph[np.maximum(ender, 0)] if graph.size else ender > 0)
    found = found.with_activity(node & (found.activity == CODE["device_delay"]), "unrecorded")
    dropped = _dropped_launches(scene)
    blocked = times_in(scene, _BLOCKS)
    found = relabel_inside(found, found.activity == CODE["unknown"], blocked, "unrecorded")
    late = ~np.isin(found.activity, [CODE["device_delay"], CODE["loader"]])
    found = relabel_inside(found, late, dropped, "unrecorded")
    silent = _silent_graphs(scene, times_in(scene, _WAITS))
    return relabel_inside(found, found.activity != CODE["loader"], silent, "unrecorded")


def times_in(scene: Scene, rule: re.Pattern[str], kind: str = "runtime") -> Intervals:
    """When any thread of the rank is in a runtime call (or span of a kind) of this name."""
    calls = scene.spans_named(kind, rule)
    return union(*scene.host_positions(*scene.in_windows(calls)))


def _without_work(scene: Scene, rule: re.Pattern[str]) -> Index:
    """Launch calls of this name of which no device work is known."""
    launches = scene.spans_named("runtime", rule)
    known = scene.activity["launch"].drop_nulls().unique().to_numpy()
    rows = scene.host.nest.spans["row"].to_numpy()
    lost = launches[~np.isin(rows[launches], known)]
    return np.asarray(lost[~_merely_unlinked(scene, lost)])


def _merely_unlinked(scene: Scene, lost: Index) -> npt.NDArray[np.bool_]:
    """Launches of sources that hold at least as much device work without a launch.

    There the records exist and only the link between them is missing.
    """
    source = scene.host.nest.spans["source"].to_numpy()[lost]
    loose = scene.activity.filter(pl.col("launch").is_null() & (pl.col("kind") == "kernel"))
    counts = dict(loose["source"].value_counts().iter_rows())
    launches = dict(zip(*np.unique(source, return_counts=True), strict=True))
    few = [s for s, count in launches.items() if counts.get(int(s), 0) >= count]
    return np.isin(source, few)


def _silent_graphs(scene: Scene, waits: Intervals) -> Intervals:
    """From the launch of a graph without recorded nodes until the device is known to be done.

    That is the start of device work launched later, or the end of a wait for the device.
    """
    states = scene.states
    lost = _without_work(scene, names.GRAPH_LAUNCHES)
    start = np.sort(scene.host_positions(*scene.in_windows(lost))[0])
    rooms = states.axis.put(np.arange(states.windows.height), states.windows["end_ns"].to_numpy())
    linked = states.work["launch_ns"].is_not_null().to_numpy()
    issued = states.axis.put(states.group, states.work["launch_ns"].fill_null(0).to_numpy())[linked]
    order = np.argsort(issued, kind="stable")
    begins = np.minimum.accumulate(states.start[linked][order][::-1])[::-1]
    later = np.searchsorted(issued[order], start, side="right")
    done = np.searchsorted(waits[1], start, side="right")
    never = np.iinfo(np.int64).max
    ends = np.minimum(np.append(begins, never)[later], np.append(waits[1], never)[done])
    return union(start, np.minimum(ends, rooms[states.axis.group_of(start)]))


def _dropped_launches(scene: Scene) -> Intervals:
    """Per piece, from the first to the last kernel launch of which no device work is known."""
    lost = _without_work(scene, _KERNELS)
    start, end = scene.host_positions(*scene.in_windows(lost))
    pieces_ = scene.pieces
    if start.size == 0 or pieces_.start.size == 0:
        return start[:0], end[:0]
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    piece = np.searchsorted(pieces_.start, start, side="right") - 1
    inside = (piece >= 0) & (start < pieces_.end[np.maximum(piece, 0)])
    start, end, piece = start[inside], end[inside], piece[inside]
    first = np.flatnonzero(np.diff(piece, prepend=-1))
    last = np.concatenate([first[1:], [piece.size]])[: first.size] - 1
    return union(start[first], np.minimum(end[last], pieces_.end[piece[last]]))


def relabel_inside(
    found: Segments, where: npt.NDArray[np.bool_], area: Intervals, activity: str
) -> Segments:
    """Give the part of the chosen segments that lies in ``area`` to another activity."""
    touched = where & (overlap_ns(found.start, found.end, area) > 0)
    chosen = found.take(np.flatnonzero(touched))
    if chosen.start.size == 0:
        return found
    inside = intersect((chosen.start, chosen.end), area)
    outside = subtract((chosen.start, chosen.end), area)
    return joined(
        [
            found.take(np.flatnonzero(~touched)),
            _pieces_of(chosen, inside).with_activity(np.ones(inside[0].size, dtype=bool), activity),
            _pieces_of(chosen, outside),
        ]
    )


def _pieces_of(whole: Segments, part: Intervals) -> Segments:
    at = np.searchsorted(whole.start, part[0], side="right") - 1
    return replace(whole.take(at), start=part[0], end=part[1])
