"""How figures are written: three significant digits, a unit, and never a false 0 or 100 %."""

from __future__ import annotations

import math

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def duration(value_s: float) -> str:
    """Seconds as a person writes them: ``1.17 s``, ``65 ms``, ``4.2 min``; 3 digits at most."""
    if value_s < 0:
        return "-" + duration(-value_s)
    if value_s >= 7200:
        return f"{digits(value_s / 3600)} h"
    if value_s >= 600:
        return f"{digits(value_s / 60)} min"
    value_s = float(f"{value_s:.3g}")
    for size, unit in _UNITS:
        if value_s >= size:
            return f"{digits(value_s / size)} {unit}"
    return "0 s" if value_s == 0 else "<1 ns"


def digits(value: float) -> str:
    """A positive number with three significant digits, trailing zeros dropped."""
    if value <= 0:
        return "0"
    if value >= 1000:
        return f"{value:,.0f}"
    places = max(0, 2 - math.floor(math.log10(value)))
    text = f"{value:.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(share: float) -> str:
    """A share (0..1) with one decimal; ``0%`` and ``100%`` only when it is exactly that."""
    if share == 0:
        return "0%"
    if 0 < share < 0.0005:
        return "<0.1%"
    if 0.9995 <= share < 1 - 1e-9:
        return ">99.9%"
    return f"{share * 100:.1f}%" if share < 1 - 1e-9 else f"{share * 100:.0f}%"


def about(share: float) -> str:
    """A share (0..1) in whole percent for a sentence; tiny and nearly full ones in words."""
    if 0 < share < 0.01:
        return "less than 1%"
    if 0.99 < share < 1 - 1e-9:
        return "more than 99%"
    return f"{share * 100:.0f}%"


def count(number: int, noun: str, plural: str | None = None) -> str:
    """``1 step``, ``6 steps``, ``12,345 events``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def speedup(low: float, high: float) -> str:
    """An interval of speed-ups: ``1.20x to 1.44x``; one figure when both read the same."""
    first, last = f"{low:.2f}x", f"{high:.2f}x"
    return first if first == last else f"{first} to {last}"
