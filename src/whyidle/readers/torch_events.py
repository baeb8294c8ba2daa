"""The events of a PyTorch trace as typed records: only the fields we keep are built.

``ph`` is the tag of a union, so a flow event costs next to nothing. Times are microseconds in
the file: whole numbers, or fractions of a nanosecond's resolution. Three decoders stand in order
of speed, and a file moves down for good when it needs to: whole numbers, floats (exact below
2**43 us), and text (exact always). A chunk that none of them takes is read leniently, event by
event, and what makes no sense there is left out and counted.
"""

from __future__ import annotations

from collections import Counter
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

import msgspec

from whyidle.readers.torch_names import as_integer

ABSENT = -(1 << 63)
"""Stands for an integer that an event does not have."""

FLOAT_EXACT_US = float(1 << 43)
"""Below this a float of microseconds is within half a nanosecond of what was written."""


class Arguments(msgspec.Struct, gc=False):
    """The arguments of a complete event that we keep."""

    external: int = msgspec.field(default=ABSENT, name="External id")
    sequence: int = msgspec.field(default=ABSENT, name="Sequence number")
    device: Any = None
    stream: Any = None
    correlation: int = ABSENT
    bytes: Any = None
    size: Any = None
    grid: Any = None
    block: Any = None
    occupancy: Any = msgspec.field(default=None, name="est. achieved occupancy %")
    shapes: msgspec.Raw = msgspec.field(default=None, name="Input Dims")  # type: ignore[assignment]
    types: msgspec.Raw = msgspec.field(default=None, name="Input type")  # type: ignore[assignment]
    stack: Any = msgspec.field(default=None, name="Call stack")
    old_external: int = msgspec.field(default=ABSENT, name="external id")
    collective: Any = msgspec.field(default=None, name="Collective name")
    group: Any = msgspec.field(default=None, name="Process Group Name")
    ranks: Any = msgspec.field(default=None, name="Process Group Ranks")
    group_size: Any = msgspec.field(default=None, name="Group size")
    running: Any = msgspec.field(default=None, name="Seq")
    sent: Any = msgspec.field(default=None, name="In msg nelems")
    received: Any = msgspec.field(default=None, name="Out msg nelems")
    dtype: Any = None
    sender: Any = msgspec.field(default=None, name="Src Rank")
    receiver: Any = msgspec.field(default=None, name="Dst Rank")


class Complete(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """An interval, times in whole microseconds."""

    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: int = ABSENT
    dur: int = -1
    args: Arguments | None = None


class CompleteFloat(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """An interval, times in float microseconds."""

    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: float = float("nan")
    dur: float = -1.0
    args: Arguments | None = None


class CompleteText(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """An interval, times as written: an int, or the text of a fraction."""

    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = -1
    args: Arguments | None = None


class MemoryArguments(msgspec.Struct, gc=False):
    """What a ``[memory]`` event says of the allocator; totals are bytes."""

    allocated: int = msgspec.field(default=ABSENT, name="Total Allocated")
    reserved: int = msgspec.field(default=ABSENT, name="Total Reserved")
    device: int = msgspec.field(default=ABSENT, name="Device Id")
    device_type: int = msgspec.field(default=ABSENT, name="Device Type")


class Instant(msgspec.Struct, gc=False, tag_field="ph", tag="i"):
    """A point in time, such as an allocation; ``ts`` as in the complete events beside it."""

    name: Any = None
    ts: Any = None
    args: MemoryArguments | None = None


class MetaArguments(msgspec.Struct, gc=False):
    """What a metadata event names."""

    name: Any = None


class Meta(msgspec.Struct, gc=False, tag_field="ph", tag="M"):
    """The name of a process or a thread."""

    name: Any = None
    pid: Any = None
    tid: Any = None
    args: MetaArguments | None = None


class FlowStart(msgspec.Struct, gc=False, tag_field="ph", tag="s"):
    """Where an arrow starts; read in full only when launches must be found by arrows."""

    cat: Any = None


class FlowEnd(msgspec.Struct, gc=False, tag_field="ph", tag="f"):
    """Where an arrow ends."""


OTHERS = tuple(
    msgspec.defstruct(f"Phase_{tag}", [], tag_field="ph", tag=tag, gc=False)
    for tag in ("B", "E", "I", "C", "b", "e", "n", "t", "N", "O", "D", "P", "R", "S", "T", "p", "F")
)
"""Phases of the Chrome format that the profiler does not write, or that we have no use for."""

_BESIDE = (Instant, Meta, FlowStart, FlowEnd, *OTHERS)
CLASS_OF_UNIT = {"int": Complete, "float": CompleteFloat, "text": CompleteText, "ns": CompleteText}
"""Which class a complete event has in a batch of each unit."""


def _decoder(complete: type, hook: Any = None) -> msgspec.json.Decoder[Any]:
    union: Any = complete
    for other in _BESIDE:
        union = union | other
    return msgspec.json.Decoder(list[union], float_hook=hook)


_LEVELS = [
    ("int", _decoder(Complete)),
    ("float", _decoder(CompleteFloat)),
    ("text", _decoder(CompleteText, str)),
]


class Batch(NamedTuple):
    """A chunk of events. ``unit`` says how times are written: int, float, text, or ns."""

    events: list[Any]
    unit: str


class EventDecoder:
    """Decodes chunks; remembers how the file writes time, and counts what it left out."""

    def __init__(self) -> None:
        """Start with the fastest decoder."""
        self._levels = _LEVELS
        self._level = 0
        self._lenient = msgspec.json.Decoder(list[Any], float_hook=str)
        self.dropped: Counter[str] = Counter()

    def decode(self, array: memoryview) -> Batch:
        """The events of a JSON array. Raises msgspec.DecodeError when it is malformed."""
        for level in range(self._level, len(self._levels)):
            unit, decoder = self._levels[level]
            try:
                events = decoder.decode(array)
            except msgspec.ValidationError:
                continue
            self._level = max(self._level, level)
            return Batch(events, unit)
        return self.decode_leniently(array)

    def distrust_floats(self) -> None:
        """Read times as text from now on: floats have lost digits."""
        self._level = len(self._levels) - 1

    def decode_leniently(self, array: memoryview) -> Batch:
        """The events that make sense, times in integer nanoseconds; the others are counted."""
        return Batch([self._sense(found) for found in self._lenient.decode(array)], "ns")

    def _sense(self, found: Any) -> Any:
        """One typed event from any JSON value; None when it is not an event."""
        if not isinstance(found, dict):
            self.dropped["are not events"] += 1
            return None
        phase = found.get("ph")
        if phase == "X":
            return _complete_from(found)
        if phase == "i":
            return Instant(_scalar(found.get("name")), exact_ns(found.get("ts")), _memory(found))
        if phase == "M":
            named = found.get("args")
            name = named.get("name") if isinstance(named, dict) else None
            return Meta(
                _scalar(found.get("name")),
                _scalar(found.get("pid")),
                _scalar(found.get("tid")),
                MetaArguments(_scalar(name)),
            )
        if phase == "s":
            return FlowStart(_scalar(found.get("cat")))
        if not isinstance(phase, str):
            self.dropped["have no phase"] += 1
        return None


def _complete_from(found: dict[str, Any]) -> CompleteText:
    args = found.get("args")
    start, length = exact_ns(found.get("ts")), exact_ns(found.get("dur", -1))
    return CompleteText(
        _scalar(found.get("cat")),
        _scalar(found.get("name")),
        _scalar(found.get("pid")),
        _scalar(found.get("tid")),
        ABSENT if start is None else start,
        -1 if length is None else length,
        _arguments(args) if isinstance(args, dict) else None,
    )


def _arguments(args: dict[str, Any]) -> Arguments:
    def integer(key: str) -> int:
        found = as_integer(args.get(key))
        return ABSENT if found is None else found

    def raw(key: str) -> Any:
        return msgspec.Raw(msgspec.json.encode(args[key])) if key in args else None

    return Arguments(
        external=integer("External id"),
        sequence=integer("Sequence number"),
        device=_scalar(args.get("device")),
        stream=_scalar(args.get("stream")),
        correlation=integer("correlation"),
        bytes=args.get("bytes"),
        size=args.get("size"),
        grid=args.get("grid"),
        block=args.get("block"),
        occupancy=args.get("est. achieved occupancy %"),
        shapes=raw("Input Dims"),
        types=raw("Input type"),
        stack=_scalar(args.get("Call stack")),
        old_external=integer("external id"),
        collective=_scalar(args.get("Collective name")),
        group=args.get("Process Group Name"),
        ranks=args.get("Process Group Ranks"),
        group_size=args.get("Group size"),
        running=args.get("Seq"),
        sent=args.get("In msg nelems"),
        received=args.get("Out msg nelems"),
        dtype=_scalar(args.get("dtype")),
        sender=args.get("Src Rank"),
        receiver=args.get("Dst Rank"),
    )


def _memory(found: dict[str, Any]) -> MemoryArguments | None:
    args = found.get("args")
    if not isinstance(args, dict):
        return None
    values = [
        as_integer(args.get(key))
        for key in ("Total Allocated", "Total Reserved", "Device Id", "Device Type")
    ]
    return MemoryArguments(*(ABSENT if value is None else value for value in values))


def _scalar(value: Any) -> Any:
    """A value that can be a dictionary key: containers become their text."""
    return str(value) if isinstance(value, dict | list) else value


def exact_ns(value: Any) -> int | None:
    """Nanoseconds from microseconds written as an int or as text, rounded half to even.

    None when it is not a finite number or lies beyond what 64 bits of nanoseconds hold.
    """
    if value.__class__ is int:
        return value * 1000 if -(1 << 53) < value < (1 << 53) else None
    if value.__class__ is not str:
        return None
    whole, _, fraction = value.partition(".")
    if len(fraction) <= 3 and fraction.isdecimal() and whole.isdecimal() and len(whole) < 16:
        return int(whole) * 1000 + int(fraction.ljust(3, "0"))
    try:
        number = Decimal(value)
    except InvalidOperation:
        return None
    if not number.is_finite() or number.adjusted() > 15:
        return None
    ns = int((number * 1000).to_integral_value())
    return ns if -(1 << 63) < ns < (1 << 63) else None
