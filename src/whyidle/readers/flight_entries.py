"""One entry of a flight-recorder dump as one row of ``collectives``."""

from __future__ import annotations

import math
from typing import Any

from whyidle.readers.restricted_pickle import told

STATES = {"scheduled": "scheduled", "started": "started", "completed": "completed"}
MOST_FRAMES = 64
MOST_TEXT = 400
MOST_DIMENSIONS = 64
MOST_STACK_TEXT = 1 << 28
"""Characters of all stacks of a dump together; what comes after is left out."""

ELEMENT_BYTES = {
    "Byte": 1, "Char": 1, "Bool": 1, "Short": 2, "Half": 2, "BFloat16": 2, "Int": 4, "Float": 4,
    "Long": 8, "Double": 8, "ComplexFloat": 8, "ComplexDouble": 16, "ComplexHalf": 4,
    "Float8_e4m3fn": 1, "Float8_e5m2": 1, "Float8_e4m3fnuz": 1, "Float8_e5m2fnuz": 1,
    "Float8_e8m0fnu": 1, "UInt16": 2, "UInt32": 4, "UInt64": 8,
}  # fmt: skip


class Shared:
    """What was made of the lists of a dump, which many entries may share: each is made once.

    Lists are known by where they lie in memory, so the dump must outlive this.
    """

    def __init__(self) -> None:
        """Begin without any."""
        self._stacks: dict[int, str | None] = {}
        self._bytes: dict[tuple[int, int], int | None] = {}
        self._room = MOST_STACK_TEXT

    def stack(self, frames: Any) -> str | None:
        """The text of a call stack; None when none was kept, or there is no room for more."""
        if id(frames) not in self._stacks:
            text = stack_text(frames) if self._room > 0 else None
            self._room -= len(text or "")
            self._stacks[id(frames)] = text
        return self._stacks[id(frames)]

    def bytes(self, shapes: Any, types: Any) -> int | None:
        """The bytes of tensors; see ``_bytes``."""
        key = id(shapes), id(types)
        if key not in self._bytes:
            self._bytes[key] = _bytes(shapes, types)
        return self._bytes[key]


def entry_row(entry: Any, event: int, rank: int | None, shared: Shared) -> dict[str, Any] | None:
    """The row of an entry; None when it is no operation. Absent values stay absent."""
    if not isinstance(entry, dict) or not isinstance(entry.get("profiling_name"), str):
        return None
    name = entry["profiling_name"][:MOST_TEXT]
    p2p = entry.get("is_p2p")
    if not isinstance(p2p, bool):
        p2p = ":send " in name or ":recv " in name
    shapes_in, types_in = entry.get("input_sizes"), entry.get("input_dtypes")
    shapes_out, types_out = entry.get("output_sizes"), entry.get("output_dtypes")
    return {
        "source": 0,
        "event": event,
        "rank": rank,
        "group": _group(entry),
        "sequence": _sequence(entry, p2p),
        "p2p": p2p,
        "operation": _whole(entry.get("op_id")),
        "name": name,
        "bytes_in": shared.bytes(shapes_in, types_in),
        "bytes_out": shared.bytes(shapes_out, types_out),
        "shapes": _text(shapes_in, shapes_out),
        "types": _text(types_in, types_out),
        "state": _state(entry),
        "created_ns": _instant(entry.get("time_created_ns")),
        "started_ns": _instant(entry.get("time_discovered_started_ns")),
        "completed_ns": _instant(entry.get("time_discovered_completed_ns")),
        "duration_ns": _milliseconds(entry.get("duration_ms")),
        "timeout_ns": _milliseconds(entry.get("timeout_ms")),
        "caller": _thread(entry),
        "stack": shared.stack(entry.get("frames")),
    }


def stack_text(frames: Any) -> str | None:
    """Call stack, innermost first, one "file(line): function" per line; None when none was kept."""
    if not isinstance(frames, list) or not frames:
        return None
    lines = []
    for found in frames[:MOST_FRAMES]:
        if isinstance(found, dict):
            file = told(found.get("filename", ""), MOST_TEXT).replace("\n", " ")
            name = told(found.get("name", ""), MOST_TEXT).replace("\n", " ")
            line = found.get("line")
            lines.append(f"{file}({line if type(line) is int else 0}): {name}")
    return "\n".join(lines) or None


def _group(entry: dict[str, Any]) -> str | None:
    """The group's name; dumps before 2.x only had a number."""
    group = entry.get("process_group")
    if isinstance(group, list | tuple) and group:
        return told(group[0], MOST_TEXT)
    number = entry.get("pg_id")
    return None if number is None else told(number, MOST_TEXT)


def _sequence(entry: dict[str, Any], p2p: bool) -> int | None:
    found = _whole(entry.get("p2p_seq_id" if p2p else "collective_seq_id"))
    return _whole(entry.get("seq_id")) if found is None else found


def _state(entry: dict[str, Any]) -> str | None:
    """The state that was last discovered; None when the dump says none that is known."""
    state = entry.get("state")
    if _instant(entry.get("time_discovered_completed_ns")) is not None:
        return "completed"
    return STATES.get(state) if isinstance(state, str) else None


def _whole(value: Any) -> int | None:
    if type(value) is not int or not -(1 << 62) < value < 1 << 62:
        return None
    return value


def _instant(value: Any) -> int | None:
    """Nanoseconds since 1970; JSON dumps write 0 for what has not happened."""
    found = _whole(value)
    return found if found is not None and found > 0 else None


def _milliseconds(value: Any) -> int | None:
    """Milliseconds as nanoseconds; None when absent or not finite."""
    if type(value) not in (int, float) or not math.isfinite(value) or abs(value) > 1e12:
        return None
    return int(round(value * 1e6))


def _thread(entry: dict[str, Any]) -> str | None:
    found = entry.get("thread_id")
    return None if found is None else told(found, MOST_TEXT)


def _bytes(shapes: Any, types: Any) -> int | None:
    """Bytes of the tensors; None when a type is unknown or the lists do not fit each other."""
    if not isinstance(shapes, list) or not isinstance(types, list) or len(shapes) != len(types):
        return None
    total = 0
    for shape, kind in zip(shapes, types, strict=True):
        size = ELEMENT_BYTES.get(kind) if isinstance(kind, str) else None
        if size is None or not isinstance(shape, list | tuple) or len(shape) > MOST_DIMENSIONS:
            return None
        if not all(type(n) is int and 0 <= n < 1 << 62 for n in shape):
            return None
        total += size * math.prod(shape)
        if total >= 1 << 62:
            return None
    return total


def _text(inputs: Any, outputs: Any) -> str | None:
    if inputs is None and outputs is None:
        return None
    sides = dict.fromkeys([_short(inputs), _short(outputs)])
    return " -> ".join(sides)


def _short(values: Any) -> str:
    """A list of tensors as text; a list of one is that one."""
    if isinstance(values, list) and len(values) == 1:
        values = values[0]
    return told(values, MOST_TEXT)
