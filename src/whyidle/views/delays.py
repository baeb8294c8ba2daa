"""What the job as a whole loses by each cause: its meetings replayed with the cause gone.

Devices run on their own between the points where they are level with others, and a meeting begins
when its last member has arrived. With a cause gone, each member arrives earlier by what the cause
took from it since its last level point, and by what the meetings before saved; the meeting is then
earlier by what its last member is. Each cause is taken out alone, so the delays need not add up.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from whyidle.intervals import Index, Ints
from whyidle.views.waits import Waits
from whyidle.views.walk import Ground

Floats = npt.NDArray[np.float64]


def saved_ns(
    waits: Waits, ground: Ground, before: Floats, moving: Floats, ends_ns: Ints, last_cells: Index
) -> Floats:
    """Nanoseconds that the job ends earlier, per cause (column of ``before``).

    before[i, c]: nanoseconds that cause c took before cell i, as Ground.parts counts. moving[e, c]:
    nanoseconds of entry e that are cause c's while bytes moved and the device did nothing else.
    ends_ns: end of each window on the common clock; last_cells: the cell after its last one.
    """
    count = before.shape[1]
    first_ns = min(int(waits.arrival.min()), int(ends_ns.min()))  # floats keep small numbers whole
    came_ns, ends_ns = waits.arrival - first_ns, ends_ns - first_ns
    base_cell = ground.first.copy()
    base_saved = np.zeros((ground.first.size, count))
    for members in _in_order(waits):
        window = ground.window[members]
        since = np.maximum(ground.enters[members], base_cell[window])
        arrives = base_saved[window] + before[since] - before[base_cell[window]]
        if waits.meeting[members[0]] >= 0:
            came = came_ns[members][:, None].astype(np.float64)
            new = (came - arrives).max(axis=0)
            earlier = np.repeat((came.max() - new)[None, :], members.size, axis=0)
            earlier += moving[members].min(axis=0)  # as much as all of them moved alone
        else:
            earlier = arrives + moving[members]
        level = ground.level[members]
        base_cell[window[level]] = ground.leaves[members[level]]
        base_saved[window[level]] = earlier[level]
    last = base_saved + before[last_cells] - before[base_cell]
    return np.asarray(np.maximum(ends_ns.max() - (ends_ns[:, None] - last).max(axis=0), 0.0))


def _in_order(waits: Waits) -> list[Index]:
    """The entries of each meeting, and each entry without one, in order of their last arrival."""
    own = np.where(
        waits.meeting >= 0,
        waits.meeting,
        waits.meeting.max(initial=-1) + 1 + np.arange(waits.meeting.size),
    )
    order = np.argsort(own, kind="stable")
    if not order.size:
        return []
    parts = np.split(order, np.flatnonzero(np.diff(own[order])) + 1)
    latest = [int(waits.arrival[part].max()) for part in parts]
    return [parts[i] for i in np.argsort(latest, kind="stable").tolist()]
