"""Nanoseconds from the microseconds of a trace, without losing a digit."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from whyidle.readers.torch_events import ABSENT, FLOAT_EXACT_US, exact_ns

Ints = npt.NDArray[np.int64]

START_LIMIT_NS = 1 << 62
LENGTH_LIMIT_NS = 1 << 60
BASE_LIMIT_NS = 1 << 61
"""Starts later than the year 2116 and spans longer than 36 years are no measurements; below these
limits every sum of a base, a start and a length fits 64 bits."""


class InexactTimes(Exception):
    """Floats that do not tell the nanosecond that was written: decode the chunk again as text."""


def times(starts: list[Any], lengths: list[Any], unit: str) -> tuple[Ints, Ints]:
    """Starts and lengths in nanoseconds; ``ABSENT`` where there is no finite start."""
    count = len(starts)
    if unit == "int":
        start = np.fromiter(starts, np.int64, count)
        length = np.fromiter(lengths, np.int64, count)
        return _thousandfold(start), _thousandfold(length)
    if unit == "float":
        return _float_ns(np.array(starts)), _float_ns(np.array(lengths))
    if unit == "text":
        starts, lengths = [exact_ns(t) for t in starts], [exact_ns(t) for t in lengths]
        lengths = [-1 if t is None else t for t in lengths]
    return integers(starts), np.fromiter(lengths, np.int64, count)


def instant_times(when: Any, unit: str) -> Ints:
    """Nanoseconds of instants, from values as ``Instant.ts`` holds them."""
    if unit == "ns":
        return integers(when)
    return integers([exact_ns(repr(t) if isinstance(t, float) else t) for t in when])


def integers(values: Any) -> Ints:
    """An array of integers, ``ABSENT`` for None."""
    return np.fromiter([ABSENT if v is None else v for v in values], np.int64, len(values))


def _thousandfold(us: Ints) -> Ints:
    """Nanoseconds; what would overflow becomes ``ABSENT`` or the largest value."""
    limit = START_LIMIT_NS // 1000
    if us.size and (us.max() > limit or us.min() < -limit):
        return np.where(us == ABSENT, ABSENT, np.clip(us, -limit - 1, limit + 1) * 1000)
    return us * 1000


def _float_ns(us: npt.NDArray[np.float64]) -> Ints:
    """Nanoseconds of float microseconds, exact; raises InexactTimes where digits were lost.

    A float this small is nearer to the whole nanosecond that was written than to any other,
    unless more digits were written than the profiler writes; those show in small numbers.
    """
    known = np.isfinite(us)
    if not known.all():
        us = np.where(known, us, 0.0)
    if us.size and (us.max() >= FLOAT_EXACT_US or us.min() <= -FLOAT_EXACT_US):
        raise InexactTimes
    whole = np.floor(us)
    fraction = (us - whole) * 1000
    nearest = np.rint(fraction)
    if (np.abs(fraction - nearest) > np.spacing(np.abs(us)) * 501 + 1e-9).any():
        raise InexactTimes
    ns = whole.astype(np.int64) * 1000 + nearest.astype(np.int64)
    return ns if known.all() else np.where(known, ns, ABSENT)
