"""Gathers the events of one trace as NumPy columns, chunk by chunk, and drops the objects.

Times are nanoseconds relative to the file's base. A missing integer is ``ABSENT``. What only some
kinds of event have is kept sparse: the position of the span and the value.
"""

from __future__ import annotations

from collections import Counter
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from whyidle.readers.torch_events import (
    ABSENT,
    CLASS_OF_UNIT,
    Arguments,
    Batch,
    FlowStart,
    Instant,
    Meta,
)
from whyidle.readers.torch_messages import Messages
from whyidle.readers.torch_names import (
    FIRST_DEVICE_CODE,
    KIND_CODES,
    LAUNCH_FLOWS,
    OUTSIDE,
    Labels,
    Lanes,
)
from whyidle.readers.torch_sizes import percents, sides, size_of, volumes, whole
from whyidle.readers.torch_times import (
    LENGTH_LIMIT_NS,
    START_LIMIT_NS,
    Ints,
    instant_times,
    times,
)

_EMPTY = Arguments()
_OP, _ANNOTATION, _RUNTIME = (KIND_CODES[k] for k in ("op", "annotation", "runtime"))
_KERNEL, _COPY, _SET = (KIND_CODES[k] for k in ("kernel", "copy", "set"))


Ready = tuple["Pieces", tuple[Any, ...]]
"""Columns of a chunk that are ready to be taken in."""


class Pieces:
    """Arrays of the same columns, one tuple per chunk, joined at the end."""

    def __init__(self, *dtypes: Any) -> None:
        """Remember the dtypes, which hold even when nothing is added."""
        self._dtypes = dtypes
        self._parts: list[list[npt.NDArray[Any]]] = [[] for _ in dtypes]
        self.height = 0

    def add(self, *columns: Any) -> None:
        """Append one chunk; lists and arrays of equal length."""
        for part, dtype, column in zip(self._parts, self._dtypes, columns, strict=True):
            part.append(np.asarray(column, dtype=dtype))
        self.height += len(columns[0])

    def take(self, column: int) -> npt.NDArray[Any]:
        """One column whole; its pieces are given up."""
        parts, self._parts[column] = self._parts[column], []
        return np.concatenate(parts) if parts else np.empty(0, self._dtypes[column])


class Texts(dict[Any, int]):
    """Numbers distinct texts (bytes or str); None is -1."""

    def __init__(self) -> None:
        """Start with only None."""
        super().__init__({None: -1})
        self.texts: list[str] = []

    def __missing__(self, text: Any) -> int:
        """Number a text seen for the first time."""
        code = self[text] = len(self.texts)
        if isinstance(text, bytes):
            self.texts.append(text.decode("utf-8", "replace"))
        else:
            self.texts.append(str(text))
        return code


class Columns:
    """Everything kept of the events of one file."""

    def __init__(self) -> None:
        """Start empty."""
        self.labels, self.lanes = Labels(), Lanes()
        self.shapes, self.types, self.stacks = Texts(), Texts(), Texts()
        self.thread_names: dict[int, list[str]] = {}
        self.process_names: dict[str, str] = {}
        self.seen = 0  # events of any kind
        self.count = 0  # spans
        self.flow_starts = 0
        self.notes: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        # event, label, lane, start, length, correlation, external
        self.spans = Pieces(np.uint32, np.int32, np.int32, *[np.int64] * 4)
        self.sequence = Pieces(np.int64, np.int64)
        self.described = Pieces(np.int64, np.int32, np.int32, np.int32)
        self.work = Pieces(*[np.int64] * 3)  # position, device, stream
        self.moved = Pieces(*[np.int64] * 2)  # position, bytes
        self.kernels = Pieces(*[np.int64] * 3, np.float32)  # position, blocks, threads, occupancy
        self.launches = Pieces(*[np.int64] * 7)  # position, grid x y z, block x y z
        self.sent = Pieces(np.int64, np.int64)  # position of a call, bytes it moves
        self.messages = Messages()
        self.memory = Pieces(*[np.int64] * 5)  # time, device, type, allocated, reserved
        self._kind_by_label = np.empty(0, dtype=np.uint8)

    def add(self, batch: Batch) -> None:
        """Take in a chunk, or nothing of it when it raises.

        Raises InexactTimes for floats that lost digits, and TypeError, ValueError or
        OverflowError for values that only the lenient decoder can make sense of.
        """
        events = batch.events
        wanted = CLASS_OF_UNIT[batch.unit]
        complete = [event.__class__ is wanted for event in events]
        spans = list(compress(events, complete))
        flows, ready = 0, []
        if len(spans) < len(events):
            others = [event for event in events if event.__class__ is not wanted]
            starts = [event.cat for event in others if event.__class__ is FlowStart]
            flows = sum(map(LAUNCH_FLOWS.__contains__, starts))
            for event in others:
                if event.__class__ is Meta:
                    self._name(event)
            instants = [event for event in others if event.__class__ is Instant]
            ready += self._memory(instants, batch.unit) if instants else []
        if spans:
            where = np.flatnonzero(np.array(complete, dtype=bool))
            ready += self._spans(spans, where, batch.unit)
        for pieces, columns in ready:
            pieces.add(*columns)
        self.count = self.spans.height
        self.flow_starts += flows
        self.seen += len(events)

    def _spans(self, spans: list[Any], where: Ints, unit: str) -> list[Ready]:
        count, labels, lanes = len(spans), self.labels, self.lanes
        start, length = times([e.ts for e in spans], [e.dur for e in spans], unit)
        label = np.fromiter([labels[e.cat, e.name] for e in spans], np.int32, count)
        lane = np.fromiter([lanes[e.pid, e.tid] for e in spans], np.int32, count)
        kinds = self._kinds()[label]
        measurable = (start > -START_LIMIT_NS) & (start < START_LIMIT_NS)
        good = measurable & (length < LENGTH_LIMIT_NS) & (kinds != OUTSIDE)
        everything = label, kinds, start, length
        if not good.all():
            spans = list(compress(spans, good.tolist()))
            where, label, lane, kinds = where[good], label[good], lane[good], kinds[good]
            start, length, count = start[good], length[good], len(spans)
        args = [e.args or _EMPTY for e in spans]
        external = np.fromiter([a.external for a in args], np.int64, count)
        if labels.old:
            old = np.fromiter([a.old_external for a in args], np.int64, count)
            external = np.where(external == ABSENT, old, external)
        correlation = np.fromiter([a.correlation for a in args], np.int64, count)
        ready = [
            *self._work(np.flatnonzero(kinds >= FIRST_DEVICE_CODE), kinds, args),
            *self._launches(np.flatnonzero(kinds == _RUNTIME), args),
            *self._described(np.flatnonzero((kinds == _OP) | (kinds == _ANNOTATION)), args),
        ]
        if not good.all():
            self._count_out(*everything)
        if (negative := length < 0).any():
            self.notes["have no duration or a negative one, read as 0"] += int(negative.sum())
            length = np.maximum(length, 0)
        event = where + self.seen
        self.messages.rows += Messages.found(args, event)
        columns = (event, label, lane, start, length, correlation, external)
        return [(self.spans, columns), *ready]

    def _kinds(self) -> npt.NDArray[np.uint8]:
        """Kind codes by label, kept as an array that grows with the labels."""
        new = self.labels.kinds[len(self._kind_by_label) :]
        if new:
            self._kind_by_label = np.append(self._kind_by_label, np.array(new, dtype=np.uint8))
        return self._kind_by_label

    def _count_out(self, label: Any, kinds: Any, start: Ints, length: Ints) -> None:
        outside = kinds == OUTSIDE
        for code, count in zip(*np.unique(label[outside], return_counts=True), strict=True):
            if (category := self.labels.left_out.get(int(code))) is not None:
                self.left_out[category] += int(count)
        timeless = ~outside & (start == ABSENT)
        self.notes["have no usable start and are left out"] += int(timeless.sum())
        far = (start <= -START_LIMIT_NS) | (start >= START_LIMIT_NS) | (length >= LENGTH_LIMIT_NS)
        beyond = ~outside & ~timeless & far
        self.notes["lie beyond any measurable time and are left out"] += int(beyond.sum())

    def _work(self, at: Ints, kinds: Any, args: list[Arguments]) -> list[Ready]:
        mine = [args[i] for i in at.tolist()]
        lanes = (whole([a.device for a in mine]), whole([a.stream for a in mine]))
        ready: list[Ready] = [(self.work, (at + self.count, *lanes))]
        kind = kinds[at]
        if (moving := np.flatnonzero((kind == _COPY) | (kind == _SET))).size:
            sizes = whole([size_of(mine[i]) for i in moving.tolist()])
            ready.append((self.moved, (at[moving] + self.count, sizes)))
        if (running := np.flatnonzero(kind == _KERNEL)).size:
            kernels = [mine[i] for i in running.tolist()]
            blocks, threads = (volumes([getattr(a, k) for a in kernels]) for k in ("grid", "block"))
            occupancy = percents([a.occupancy for a in kernels])
            ready.append((self.kernels, (at[running] + self.count, blocks, threads, occupancy)))
        return ready

    def _launches(self, at: Ints, args: list[Arguments]) -> list[Ready]:
        """What only the launching call says on AMD: grids of kernels and bytes of copies."""
        ready: list[Ready] = []
        calls = [(i, args[i]) for i in at.tolist()]
        sized = [(i, a.grid, a.block) for i, a in calls if a.grid is not None]
        grids = [(i, *g, *b) for i, gs, bs in sized if (g := sides(gs)) and (b := sides(bs))]
        if grids:
            columns = np.array(grids, dtype=np.int64).T
            ready.append((self.launches, (columns[0] + self.count, *columns[1:])))
        moved = [(i, size_of(a)) for i, a in calls if a.bytes is not None or a.size is not None]
        known = [(i, size) for i, size in moved if size is not None]
        if known:
            columns = np.array(known, dtype=np.int64).T
            ready.append((self.sent, (columns[0] + self.count, columns[1])))
        return ready

    def _described(self, at: Ints, args: list[Arguments]) -> list[Ready]:
        mine = [args[i] for i in at.tolist()]
        ready: list[Ready] = []
        sequence = np.fromiter([a.sequence for a in mine], np.int64, len(mine))
        numbered = sequence != ABSENT
        if numbered.any():
            ready.append((self.sequence, (at[numbered] + self.count, sequence[numbered])))
        shapes, types = [a.shapes for a in mine], [a.types for a in mine]
        stacks = [a.stack for a in mine]
        if shapes.count(None) + types.count(None) + stacks.count(None) < 3 * len(mine):
            columns = (
                at + self.count,
                [self.shapes[None if r is None else bytes(r)] for r in shapes],
                [self.types[None if r is None else bytes(r)] for r in types],
                [self.stacks[s] for s in stacks],
            )
            ready.append((self.described, columns))
        return ready

    def _memory(self, instants: list[Instant], unit: str) -> list[Ready]:
        found = [
            (e.ts, e.args.device, e.args.device_type, e.args.allocated, e.args.reserved)
            for e in instants
            if e.name == "[memory]" and e.args is not None and e.args.allocated != ABSENT
        ]
        if not found:
            return []
        when, *rest = zip(*found, strict=True)
        columns = [np.array(column, dtype=np.int64) for column in rest]
        return [(self.memory, (instant_times(when, unit), *columns))]

    def _name(self, event: Meta) -> None:
        name = event.args.name if event.args is not None else None
        if not isinstance(name, str) or not name:
            return
        if event.name == "thread_name":
            names = self.thread_names.setdefault(self.lanes[event.pid, event.tid], [])
            if name not in names:
                names.append(name)
        elif event.name == "process_name":
            self.process_names.setdefault(str(event.pid), name)
