"""How many times faster, and how sure that is, from runs in pairs.

Runs of a pair lie beside each other in time, and every other pair is turned round (before, after,
after, before, ...), so what drifts slowly meets both sides alike. Per pair the logarithm of
*before seconds / after seconds* is taken; the mean of those is the answer, and Student's t tells
how far off it may be. The logarithm makes twice as fast and half as fast equally far from
no change.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95

METHOD = "paired t interval of the log ratio (before seconds / after seconds)"


@dataclass(frozen=True)
class Estimate:
    """A value and the ends of the interval that holds the true one with CONFIDENCE."""

    low: float
    mid: float
    high: float


def speed_ratio(before_s: Sequence[float], after_s: Sequence[float]) -> Estimate | None:
    """How many times faster ``after`` is; 1 is no difference, below 1 is slower.

    Both are seconds, in the order of the pairs; None with fewer than two pairs.
    """
    logs = [math.log(b / a) for b, a in zip(before_s, after_s, strict=True)]
    found = mean_of(logs)
    if found is None:
        return None
    return Estimate(math.exp(found.low), math.exp(found.mid), math.exp(found.high))


def mean_of(values: Sequence[float]) -> Estimate | None:
    """The mean of independent values with its t interval; None for fewer than two."""
    if len(values) < 2:
        return None
    mid = statistics.fmean(values)
    spread = math.sqrt(math.fsum((v - mid) ** 2 for v in values) / (len(values) - 1))
    half = t_quantile(len(values) - 1) * spread / math.sqrt(len(values))
    return Estimate(mid - half, mid, mid + half)


def t_quantile(freedom: int, confidence: float = CONFIDENCE) -> float:
    """The t within which lies ``confidence`` of Student's distribution, both sides together."""
    low, high = 0.0, 1.0
    while t_within(high, freedom) < confidence:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        if t_within(middle, freedom) < confidence:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def t_within(t: float, freedom: int) -> float:
    """The share of Student's distribution between -t and t, by its finite series.

    (Abramowitz and Stegun, 26.7.3 and 26.7.4.)
    """
    angle = math.atan2(t, math.sqrt(freedom))
    square = math.cos(angle) ** 2
    odd = freedom % 2 == 1
    term, total = math.cos(angle) if odd else 1.0, 0.0
    for k in range(freedom // 2):
        total += term
        term *= square * ((2 * k + 2) / (2 * k + 3) if odd else (2 * k + 1) / (2 * k + 2))
    if odd:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total
