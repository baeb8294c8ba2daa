"""Joins device work to the call that launched it, where the trace leaves it to us.

Correlation ids are the rule. Where none fits, the arrows of the trace ("ac2g" and its older
names) are followed, and what only the launching call knows is carried to its device work.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from whyidle.readers.torch_events import ABSENT, OTHERS, exact_ns
from whyidle.readers.torch_names import LAUNCH_FLOWS, THREADS_NOT_BLOCKS, Lanes
from whyidle.readers.torch_times import Ints

Mask = npt.NDArray[np.bool_]

NESTED_CALLS = 8
"""How many spans before an arrow's time are looked at for one that holds it."""


class Start(msgspec.Struct, gc=False, tag_field="ph", tag="s"):
    """The tail of an arrow."""

    id: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    cat: Any = None


class End(msgspec.Struct, gc=False, tag_field="ph", tag="f"):
    """The head of an arrow."""

    id: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    cat: Any = None


_SKIPPED = tuple(
    msgspec.defstruct(f"Skipped_{tag}", [], tag_field="ph", tag=tag, gc=False) for tag in "XiM"
)


class Arrows:
    """The launch arrows of a trace, gathered in a second pass over the file."""

    def __init__(self, lanes: Lanes) -> None:
        """Lanes are numbered as in the first pass."""
        union: Any = Start
        for other in (End, *_SKIPPED, *OTHERS):
            union = union | other
        self._decoder = msgspec.json.Decoder(list[union], float_hook=str)
        self._lenient = msgspec.json.Decoder(list[Any], float_hook=str)
        self._lanes = lanes
        self.starts: list[tuple[Any, int, int]] = []  # id, lane, time
        self.ends: list[tuple[Any, int, int]] = []

    def decode(self, array: memoryview) -> int:
        """Gather the arrows of a chunk; the number found."""
        try:
            events = self._decoder.decode(array)
        except msgspec.ValidationError:
            events = list(_leniently(self._lenient.decode(array)))
        count = 0
        for event in events:
            kind = event.__class__
            if (kind is Start or kind is End) and str(event.cat) in LAUNCH_FLOWS:
                when = exact_ns(event.ts)
                if when is not None:
                    lane = self._lanes[str(event.pid), str(event.tid)]
                    into = self.starts if kind is Start else self.ends
                    into.append((str(event.id), lane, when))
                    count += 1
        return count


def _leniently(values: Iterable[Any]) -> Iterable[Start | End]:
    for value in values:
        if isinstance(value, dict) and value.get("ph") in ("s", "f"):
            kind = Start if value["ph"] == "s" else End
            arrow = kind()
            for key in ("id", "pid", "tid", "ts", "cat"):
                setattr(arrow, key, value.get(key))
            if isinstance(arrow.cat, str):
                yield arrow


def arrows_could_help(correlation: Ints, calls: Mask, work: Mask, flow_starts: int) -> bool:
    """Whether a pass over the arrows can join device work that ids leave alone.

    Not when ids join some work and the rest has ids too: then its launch was not recorded.
    """
    given = correlation[work]
    if not flow_starts or not given.size:
        return False
    launched = correlation[calls & (correlation != ABSENT)]
    joined = _among(given, launched)
    if joined.all() or (joined.any() and (given != ABSENT).all()):
        return False
    return flow_starts > np.unique(given[joined]).size


def _among(ids: Ints, known: Ints) -> Mask:
    """Which ids are known; quick on ids that were handed out in order."""
    if not known.size:
        return np.zeros(ids.size, dtype=bool)
    known = np.sort(known, kind="stable")
    at = np.minimum(np.searchsorted(known, ids), known.size - 1)
    return np.asarray(known[at] == ids)


def follow_arrows(
    arrows: Arrows, correlation: Ints, calls: Mask, work: Mask, lane: Ints, start: Ints, end: Ints
) -> int:
    """Give launch and work of each arrow one correlation id, in place; how many were joined.

    A launch without an id gets a negative one.
    """
    launched = correlation[calls & (correlation != ABSENT)]
    loose = work & ~_among(correlation, launched)
    call_at = _finder(np.flatnonzero(calls), lane, start, end)
    work_at = _finder(np.flatnonzero(loose), lane, start, end)
    launch = {id_: call_at(lane_, when) for id_, lane_, when in arrows.starts}
    joined = 0
    for id_, lane_, when in arrows.ends:
        call, target = launch.get(id_), work_at(lane_, when)
        if call is None or target is None:
            continue
        joined += 1
        if correlation[call] == ABSENT:
            correlation[call] = -joined
        correlation[target] = correlation[call]
    return joined


def _finder(rows: Ints, lane: Ints, start: Ints, end: Ints) -> Any:
    """A function (lane, time) -> the innermost of ``rows`` there that holds the time, or None."""
    rows = rows[np.lexsort((-end[rows], start[rows], lane[rows]))]
    bounds: dict[int, tuple[list[int], list[int]]] = {}
    for number in np.unique(lane[rows]).tolist():
        mine = rows[lane[rows] == number]
        bounds[number] = (start[mine].tolist(), mine.tolist())

    def find(number: int, when: int) -> int | None:
        starts, mine = bounds.get(number, ([], []))
        last = bisect_right(starts, when)
        for row in reversed(mine[max(0, last - NESTED_CALLS) : last]):
            if when <= end[row]:
                return row
        return None

    return find


def carried(correlation: Ints, sources: Ints, values: Ints, targets: Ints) -> Ints:
    """Values of ``sources`` (positions) for ``targets``, joined by correlation id; else ABSENT."""
    ids = correlation[sources]
    order = np.argsort(ids, kind="stable")
    ids, values = ids[order], values[order]
    wanted = correlation[targets]
    at = np.minimum(np.searchsorted(ids, wanted), max(ids.size - 1, 0))
    if not ids.size:
        return np.full(targets.size, ABSENT, dtype=np.int64)
    found = (ids[at] == wanted) & (wanted != ABSENT)
    return np.where(found, values[at], ABSENT)


def launch_sizes(names: list[str], grid: Ints, block: Ints) -> tuple[Ints, Ints]:
    """Blocks and threads per block of HIP launches; ``grid`` and ``block`` have a row per side.

    ``hipExtModuleLaunchKernel`` is given threads, every other call blocks (HIP's hip_ext.h;
    kineto writes down what the call was given).
    """
    in_threads = np.array([name.startswith(THREADS_NOT_BLOCKS) for name in names], dtype=bool)
    in_blocks = np.where(in_threads, -(-grid // block), grid)
    return np.prod(in_blocks, axis=0), np.prod(block, axis=0)
