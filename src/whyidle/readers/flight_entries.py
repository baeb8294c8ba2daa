"""One entry of a flight-recorder dump as one row of ``collectives``."""

from __future__ import annotations

import math
from typing import Any

STATES = {"scheduled": "scheduled", "started": "started", "completed": "completed"}
MOST_FRAMES = 64
MOST_TEXT = 400

ELEMENT_BYTES = {
    "Byte": 1, "Char": 1, "Bool": 1, "Short": 2, "Half": 2, "BFloat16": 2, "Int": 4, "Float": 4,
    "Long": 8, "Double": 8, "ComplexFloat": 8, "ComplexDouble": 16, "ComplexHalf": 4,
    "Float8_e4m3fn": 1, "Float8_e5m2": 1, "Float8_e4m3fnuz": 1, "Float8_e5m2fnuz": 1,
    "Float8_e8m0fnu": 1, "UInt16": 2, "UInt32": 4, "UInt64": 8,
}  # fmt: skip


def entry_row(entry: Any, event: int, rank: int | None) -> dict[str, Any] | None:
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
        "bytes_in": _bytes(shapes_in, types_in),
        "bytes_out": _bytes(shapes_out, types_out),
        "shapes": _text(shapes_in, shapes_out),
        "types": _text(types_in, types_out),
        "state": _state(entry),
        "created_ns": _instant(entry.get("time_created_ns")),
        "started_ns": _instant(entry.get("time_discovered_started_ns")),
        "completed_ns": _instant(entry.get("time_discovered_completed_ns")),
        "duration_ns": _milliseconds(entry.get("duration_ms")),
        "timeout_ns": _milliseconds(entry.get("timeout_ms")),
        "caller": _thread(entry),
        "stack": stack_text(entry.get("frames")),
    }


def stack_text(frames: Any) -> str | None:
    """Call stack, innermost first, one "file(line): function" per line; None when none was kept."""
    if not isinstance(frames, list) or not frames:
        return None
    lines = []
    for found in frames[:MOST_FRAMES]:
        if isinstance(found, dict):
            file = str(found.get("filename", ""))[:MOST_TEXT].replace("\n", " ")
            name = str(found.get("name", ""))[:MOST_TEXT].replace("\n", " ")
            line = found.get("line")
            lines.append(f"{file}({line if type(line) is int else 0}): {name}")
    return "\n".join(lines) or None


def _group(entry: dict[str, Any]) -> str | None:
    """The group's name; dumps before 2.x only had a number."""
    group = entry.get("process_group")
    if isinstance(group, list | tuple) and group:
        return str(group[0])[:MOST_TEXT]
    number = entry.get("pg_id")
    return None if number is None else str(number)[:MOST_TEXT]


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
    return None if found is None else str(found)[:MOST_TEXT]


def _bytes(shapes: Any, types: Any) -> int | None:
    """Bytes of the tensors; None when a type is unknown or the lists do not fit each other."""
    if not isinstance(shapes, list) or not isinstance(types, list) or len(shapes) != len(types):
        return None
    total = 0
    for shape, kind in zip(shapes, types, strict=True):
        size = ELEMENT_BYTES.get(kind) if isinstance(kind, str) else None
        whole = isinstance(shape, list | tuple) and all(type(n) is int and n >= 0 for n in shape)
        if size is None or not whole:
            return None
        total += size * math.prod(shape)
        if total >= 1 << 62:
            return None
    return total


def _text(inputs: Any, outputs: Any) -> str | None:
    if inputs is None and outputs is None:
        return None
    sides = [_short(inputs)] if inputs == outputs else [_short(inputs), _short(outputs)]
    return " -> ".join(sides)


def _short(values: Any) -> str:
    """A list of tensors as text; a list of one is that one."""
    if isinstance(values, list) and len(values) == 1:
        values = values[0]
    return str(values)[:MOST_TEXT].replace("'", "")
