"""Whether two sets of steps differ by more than the steps of one run differ among themselves.

All tests here are permutation tests: if nothing changed, it does not matter which steps are called
*before* and which *after*, so the difference as it is must stand out among those of all ways to
deal the steps out. That holds whatever the shape of the noise. One figure by itself is tested by
ranks (Wilcoxon, Mann and Whitney). The lines of a table are dealt out together, and each must
stand out among the largest of all of them (Westfall and Young), so that a long table is no more
likely to raise a false alarm than a short one.

Steps are taken for independent draws of one run: a machine that slows down as it gets warm, or
another node, is a difference between runs that no test of steps can tell from a change of the
program.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

Verdict = Literal["more than noise", "within noise", "cannot tell"]

ALPHA = 0.05
"""How often a table of two runs of one program may show any change, at most."""

ACTED = 0.03
"""The level that the tests act on. It is below ALPHA, since the steps of a run depend on one
another a little, which makes any such test raise more alarms than it says."""

FEWEST = 3
"""Steps on a side below which nothing is said."""

MOST_DEALS = 2000
"""Ways to deal steps out that are looked at; all of them where there are fewer."""

_EXACT = 30
"""Steps on both sides together up to which ranks are counted exactly."""


@dataclass(frozen=True)
class Interval:
    """The values between which the true one lies, with the certainty 1 - ACTED."""

    low: float
    high: float


def verdict(before: Sequence[float], after: Sequence[float]) -> Verdict:
    """Whether one figure by itself changed, by the rank test."""
    if _outside(len(before), len(after)) < 0 or min(len(before), len(after)) < FEWEST:
        return "cannot tell"
    return "more than noise" if rank_p(before, after) <= ACTED else "within noise"


def enough(before: int, after: int) -> bool:
    """Whether so many steps could show any difference at all, however large."""
    if min(before, after) < FEWEST:
        return False
    mirrored = 2 if before == after else 1
    return mirrored / math.comb(before + after, before) <= ACTED


def rank_p(before: Sequence[float], after: Sequence[float]) -> float:
    """Two-sided p of the rank test; exact for few steps, ties counted by their mean rank."""
    doubled = _doubled_ranks([*before, *after])
    total = sum(doubled[: len(before)])
    if len(doubled) <= _EXACT:
        return _exact_p(tuple(sorted(doubled)), len(before), total)
    return _normal_p(doubled, len(before), total)


def _doubled_ranks(values: Sequence[float]) -> list[int]:
    """Twice the rank of each value, from 2; equal ones share the mean, so it is whole."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    found = [0] * len(values)
    at = 0
    while at < len(order):
        stop = at
        while stop < len(order) and values[order[stop]] == values[order[at]]:
            stop += 1
        for place in order[at:stop]:
            found[place] = at + 1 + stop
        at = stop
    return found


@lru_cache(maxsize=512)
def _sums(ranks: tuple[int, ...], size: int) -> dict[int, int]:
    """Sum of ``size`` of the ranks -> in how many ways it comes about."""
    ways: list[dict[int, int]] = [{0: 1}, *({} for _ in range(size))]
    for rank in ranks:
        for taken in range(size, 0, -1):
            here = ways[taken]
            for total, count in ways[taken - 1].items():
                here[total + rank] = here.get(total + rank, 0) + count
    return ways[size]


def _exact_p(ranks: tuple[int, ...], size: int, total: int) -> float:
    ways = _sums(ranks, size)
    twice_mean = 2 * size * sum(ranks)  # of total, times the number of ranks
    away = abs(2 * len(ranks) * total - twice_mean)
    as_far = sum(n for t, n in ways.items() if abs(2 * len(ranks) * t - twice_mean) >= away)
    return as_far / math.comb(len(ranks), size)


def _normal_p(doubled: Sequence[int], size: int, total: int) -> float:
    count, other = len(doubled), len(doubled) - size
    mean = sum(doubled) / count
    spread = sum((rank - mean) ** 2 for rank in doubled) / (count * (count - 1))
    deviation = math.sqrt(size * other * spread)
    if deviation == 0:
        return 1.0
    away = max(0.0, abs(total - size * mean) - 1)
    return math.erfc(away / deviation / math.sqrt(2))


def verdicts(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> list[Verdict]:
    """One verdict per line (before, after) of one table; the lines share their steps.

    Lines of other lengths than the first one that could tell anything are left open.
    """
    sizes = next(((len(a), len(b)) for a, b in pairs if enough(len(a), len(b))), None)
    able = [i for i, (a, b) in enumerate(pairs) if (len(a), len(b)) == sizes]
    found: list[Verdict] = ["cannot tell"] * len(pairs)
    if sizes is None:
        return found
    lines = np.array([[*pairs[i][0], *pairs[i][1]] for i in able], dtype=np.float64)
    for i, p in zip(able, _stand_out(lines, sizes[0]).tolist(), strict=True):
        found[i] = "more than noise" if p <= ACTED else "within noise"
    return found


def _stand_out(lines: Floats, before: int) -> Floats:
    """Per line its p, corrected for all lines: Westfall and Young's step-down of the largest."""
    seen = _squared_t(lines, _deals(lines.shape[1], before))
    order = np.argsort(-seen[:, 0], kind="stable")
    largest = np.maximum.accumulate(seen[order][::-1], axis=0)[::-1]
    as_far = (largest >= seen[order, :1] * (1 - 1e-9)).mean(axis=1)
    found = np.empty(order.size)
    found[order] = np.maximum.accumulate(as_far)
    return found


def _squared_t(lines: Floats, deals: Floats) -> Floats:
    """The squared t statistic of each line (row) under each way to deal steps out (column)."""
    centred = lines - lines.mean(axis=1, keepdims=True)
    count, first = deals.shape[1], float(deals[0].sum())
    between = (centred @ deals.T) ** 2 * (1 / first + 1 / (count - first))
    total = (centred**2).sum(axis=1, keepdims=True)
    dust = 1e-18 * (lines**2).sum(axis=1, keepdims=True) + 1e-300
    within = np.maximum(total - between, 1e-12 * total) + dust
    return np.asarray(between / within * (count - 2))


@lru_cache(maxsize=16)
def _deals(count: int, before: int) -> Floats:
    """Ways to call ``before`` of the steps *before*, a row of 0 and 1 each; first as they are."""
    if math.comb(count, before) <= MOST_DEALS:
        chosen = np.array(list(combinations(range(count), before)))
    else:
        chance = np.random.default_rng(count * 1009 + before)
        drawn = chance.permuted(np.tile(np.arange(count), (MOST_DEALS - 1, 1)), axis=1)
        chosen = np.vstack([np.arange(before), drawn[:, :before]])
    found = np.zeros((len(chosen), count))
    np.put_along_axis(found, chosen, 1.0, axis=1)
    return found


def difference(before: Sequence[float], after: Sequence[float]) -> Interval | None:
    """After minus before, as the shift that the rank test does not reject (Hodges, Lehmann).

    None where so few steps leave it open.
    """
    return _between(sorted(b - a for a in before for b in after), len(before), len(after))


def ratio(before: Sequence[float], after: Sequence[float]) -> Interval | None:
    """After divided by before, likewise; None as well where a value is not positive."""
    if min([*before, *after], default=0.0) <= 0:
        return None
    return _between(sorted(b / a for a in before for b in after), len(before), len(after))


def _between(steps: Sequence[float], before: int, after: int) -> Interval | None:
    if min(before, after) < FEWEST:
        return None
    outside = _outside(before, after)
    if outside < 0:
        return None
    return Interval(steps[outside], steps[len(steps) - 1 - outside])


@lru_cache(maxsize=512)
def _outside(before: int, after: int) -> int:
    """How many of the ordered pairs lie below the interval; -1 where there are too few steps."""
    if before + after <= _EXACT:
        ways = _sums(tuple(range(1, before + after + 1)), before)
        lowest, room = before * (before + 1) // 2, math.comb(before + after, before) * ACTED / 2
        below, found = 0, 0
        while below + ways.get(lowest + found, 0) <= room:
            below += ways.get(lowest + found, 0)
            found += 1
        return found - 1
    deviation = math.sqrt(before * after * (before + after + 1) / 12)
    return max(0, math.floor(before * after / 2 - 2.170090 * deviation - 0.5))
