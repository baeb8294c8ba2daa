"""Empty time in which the device very likely did work that the recorder dropped."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from whyidle.intervals import Index, Intervals, intersect, overlap_ns, subtract, union
from whyidle.views import names
from whyidle.views.activities import CODE
from whyidle.views.blame import Segments, joined
from whyidle.views.scene import Scene

_BLOCKS = re.compile(r"Synchronize|[mM]emcpy")
"""Calls in which the host may sit until the device has done what was queued."""


def unrecorded(found: Segments, scene: Scene) -> Segments:
    """Empty time in which the device very likely did work that the recorder dropped."""
    pieces_, work = scene.pieces, scene.states.work
    ender = pieces_.ender[found.piece]
    graph = work["graph"].fill_null(value=False).to_numpy()
    node = (ender >= 0) & (graph[np.maximum(ender, 0)] if graph.size else ender > 0)
    found = found.with_activity(node & (found.activity == CODE["device_delay"]), "unrecorded")
    dropped = _dropped_launches(scene)
    waits = scene.spans_named("runtime", _BLOCKS)
    blocked = [
        scene.host_positions(scene.of_rank(waits, g), g) for g in range(scene.states.windows.height)
    ]
    inside = union(*(np.concatenate(side) for side in zip(*blocked, strict=True)))
    found = _relabel_inside(found, found.activity == CODE["unknown"], inside, "unrecorded")
    late = ~np.isin(found.activity, [CODE["device_delay"], CODE["loader"]])
    return _relabel_inside(found, late, dropped, "unrecorded")


def _dropped_launches(scene: Scene) -> Intervals:
    """Per piece, from the first to the last kernel launch of which no device work is known."""
    launches = scene.spans_named("runtime", names.KERNEL_LAUNCHES)
    known = scene.activity["launch"].drop_nulls().unique().to_numpy()
    rows = scene.host.nest.spans["row"].to_numpy()
    lost = launches[~np.isin(rows[launches], known)]
    spread = [_spread(scene, scene.of_rank(lost, g), g) for g in range(scene.states.windows.height)]
    return union(*(np.concatenate(side) for side in zip(*spread, strict=True)))


def _spread(scene: Scene, lost: Index, window: int) -> Intervals:
    start, end = scene.host_positions(lost, window)
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
    return start[first], np.minimum(end[last], pieces_.end[piece[last]]) if piece.size else end


def _relabel_inside(
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
