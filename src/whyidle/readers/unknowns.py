"""Words and numbers that stand for "no value", and why: none of them is ever a zero.

Tools print the absence of a reading in many ways: ``[N/A]``, ``-``, ``Insufficient Permissions``,
or, from DCGM, numbers just below 2^63. ``number`` gives a value or the reason why there is none.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

NOT_AVAILABLE = "not available"
NOT_SUPPORTED = "not supported"
NO_PERMISSION = "insufficient permissions"
NOT_FOUND = "not found"
BLANK = "blank"
NOT_A_NUMBER = "not a number"
UNKNOWN_ERROR = "unknown error"
GPU_LOST = "GPU is lost"
NEEDS_RESET = "GPU requires reset"
DEPRECATED = "deprecated by the driver"

REASONS = {
    "": BLANK,
    "-": NOT_AVAILABLE,
    "--": NOT_AVAILABLE,
    "n/a": NOT_AVAILABLE,
    "na": NOT_AVAILABLE,
    "none": NOT_AVAILABLE,
    "null": NOT_AVAILABLE,
    "no data": NOT_AVAILABLE,
    "unavailable": NOT_AVAILABLE,
    "not available": NOT_AVAILABLE,
    "not supported": NOT_SUPPORTED,
    "not supported on the given system": NOT_SUPPORTED,
    "unsupported": NOT_SUPPORTED,
    "insufficient permissions": NO_PERMISSION,
    "no permission": NO_PERMISSION,
    "not permitted": NO_PERMISSION,
    "permission denied": NO_PERMISSION,
    "not found": NOT_FOUND,
    "unknown": UNKNOWN_ERROR,
    "unknown error": UNKNOWN_ERROR,
    "err!": UNKNOWN_ERROR,
    "error": UNKNOWN_ERROR,
    "gpu is lost": GPU_LOST,
    "gpu lost": GPU_LOST,
    "gpu requires reset": NEEDS_RESET,
    "reset required": NEEDS_RESET,
    "requested functionality has been deprecated": DEPRECATED,
    "deprecated": DEPRECATED,
    "nan": NOT_A_NUMBER,
    "+nan": NOT_A_NUMBER,
    "-nan": NOT_A_NUMBER,
    "inf": NOT_A_NUMBER,
    "+inf": NOT_A_NUMBER,
    "-inf": NOT_A_NUMBER,
}
"""What is printed, in lower case and without brackets -> why there is no value."""

_DCGM = (BLANK, NOT_FOUND, NOT_SUPPORTED, NO_PERMISSION)
_STARTS = (0x7FFFFFF0, 0x7FFFFFFFFFFFFFF0, 1 << 47)
SENTINELS = {start + i: why for start in _STARTS for i, why in enumerate(_DCGM)} | {
    (1 << 64) - 1: NOT_AVAILABLE,
    (1 << 63) - 1: BLANK,
}
"""Numbers that DCGM (dcgm_structs.h) and NVML print in place of a value -> why."""

LOST_DIGITS_FROM = 9.2e18
"""From here a number is one of the sentinels of 64 bits after it went through a double."""

UNITS = {
    "": 1.0, "x": 1.0, "%": 0.01, "w": 1.0, "mw": 1e-3, "c": 1.0, "°c": 1.0, "hz": 1.0,
    "khz": 1e3, "mhz": 1e6, "ghz": 1e9, "b": 1.0, "kib": 1024.0, "mib": 1048576.0,
    "gib": 1073741824.0, "kb": 1024.0, "mb": 1048576.0, "gb": 1073741824.0, "kb/s": 1e3,
    "mb/s": 1e6, "gb/s": 1e9, "b/s": 1.0, "mib/s": 1048576.0,
    "j": 1.0, "mj": 1e-3, "us": 1e-6, "ms": 1e-3, "s": 1.0,
    "mb_decimal": 1e6, "gt/s": 1e9, "bank(s)": 1.0, "rpm": 1.0,
}  # fmt: skip
"""Unit as printed, lower case -> factor to ours. Memory in MB is what the tools count in 2^20."""

_NUMBER = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*(.*)", re.I | re.S)


class Reading(NamedTuple):
    """A value in our unit, or none and why."""

    value: float | None
    reason: str | None


def whole_number(digits: str) -> int | None:
    """A count as tools print it, at most 18 plain digits; None for any other text."""
    return int(digits) if len(digits) <= 18 and digits.isascii() and digits.isdecimal() else None


def reason_for(text: str) -> str:
    """Why a text that is no usable number is unknown."""
    bare = " ".join(text.strip().strip("[]()").lower().split()).rstrip(".")
    known = REASONS.get(bare)
    if known is None and "not supported" in bare:
        return NOT_SUPPORTED
    return known if known is not None else f"{NOT_A_NUMBER}: {text.strip()[:40]!r}"


def why_no_words(text: str) -> str | None:
    """Why a text is no fact in words; None when it is one."""
    why = reason_for(text)
    return None if why.startswith(NOT_A_NUMBER) else why


def sentinel(digits: str) -> str | None:
    """Why a number as printed is no value; None when it is one."""
    try:
        exact = int(digits) if digits.lstrip("+-").isdigit() else float(digits)
    except ValueError:
        return None
    if exact in SENTINELS:
        return SENTINELS[int(exact)]
    return BLANK if exact >= LOST_DIGITS_FROM else None


def scaled(value: float, factor: float) -> float:
    """A number times a factor; divided where the factor is a part, which keeps 35 % at 0.35."""
    return value * factor if factor >= 1 else value / round(1 / factor)


def number(text: str, unit: str = "", *, units: dict[str, float] | None = None) -> Reading:
    """The reading in a text such as ``38 %`` or ``[N/A]``; ``unit`` where the text has none."""
    found = _NUMBER.fullmatch(text.strip().strip("()"))
    if found is None:
        return Reading(None, reason_for(text))
    why = sentinel(found[1])
    if why is not None:
        return Reading(None, why)
    known = UNITS if units is None else units
    factor = known.get((found[2].strip() or unit).lower())
    if factor is None:
        return Reading(None, reason_for(text))
    value = scaled(float(found[1]), factor)
    return Reading(value, None) if math.isfinite(value) else Reading(None, NOT_A_NUMBER)
