"""Sizes that events carry: grids, blocks, bytes, percentages, and the numbers of devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from whyidle.readers.torch_events import ABSENT, Arguments
from whyidle.readers.torch_names import as_integer
from whyidle.readers.torch_times import Ints

_ODD = (TypeError, ValueError, OverflowError, IndexError, KeyError)


def whole(values: list[Any]) -> Ints:
    """Integers from numbers or text; ``ABSENT`` for what is none."""
    try:
        return np.fromiter(values, np.int64, len(values))
    except _ODD:
        found = [as_integer(value) for value in values]
        return np.fromiter([ABSENT if v is None else v for v in found], np.int64, len(found))


def volumes(sizes: list[Any]) -> Ints:
    """The product of each grid or block; ``ABSENT`` where it is unusable or 0."""
    try:
        found = np.fromiter([s[0] * s[1] * s[2] for s in sizes], np.int64, len(sizes))
    except _ODD:
        return np.fromiter([_volume(s) for s in sizes], np.int64, len(sizes))
    return np.where(found > 0, found, ABSENT)


def _volume(size: Any) -> int:
    found = sides(size)
    product = found[0] * found[1] * found[2] if found is not None else 0
    return product if 0 < product < 1 << 62 else ABSENT


def percents(values: list[Any]) -> npt.NDArray[np.float64]:
    """Percentages as shares 0..1; NaN when absent or outside of what a share can be."""
    try:
        found = np.fromiter(values, np.float64, len(values))
    except _ODD:
        found = np.array([_number(value) for value in values])
    with np.errstate(invalid="ignore"):
        return np.where((found >= 0) & (found <= 1000), np.minimum(found / 100, 1.0), np.nan)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")


def sides(sizes: Any) -> tuple[int, int, int] | None:
    """The three sides of a grid or block; missing ones are 1; None when unusable or all 0."""
    if isinstance(sizes, str):
        sizes = sizes.strip("[]() ").split(",")
    if not isinstance(sizes, list) or not 0 < len(sizes) <= 3:
        return None
    found = [s if s.__class__ is int else as_integer(s) for s in sizes] + [1, 1]
    x, y, z = found[:3]
    if x is None or y is None or z is None or not all(0 < s < 1 << 32 for s in (x, y, z)):
        return None
    return x, y, z


def size_of(args: Arguments) -> int | None:
    """Bytes moved, under either of its two names, as a number or as text."""
    found = args.size if args.bytes is None else args.bytes
    size = found if found.__class__ is int else as_integer(found)
    return size if size is not None and 0 <= size < 1 << 62 else None
