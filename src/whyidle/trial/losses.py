"""Whether the change also changes training: the loss curves of both sides set side by side.

The curve of a run is the mean loss of each tenth of its steps (of each step, where there are at
most ten). Where runs of one command agree among themselves within the tolerance, as with a fixed
seed, the curves are compared tenth by tenth. Where they do not, only the end of training can be
compared: the mean loss of the last quarter, with its interval over the pairs of runs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from whyidle.render.numerals import percent
from whyidle.trial.ratio import mean_of

Curve = dict[int, float]
"""Step -> loss of one run; nan where it was not finite or not told."""

Verdict = Literal["within tolerance", "changes training", "cannot tell", "not compared"]

TOLERANCE = 0.02
"""How much the loss may differ, as a share of it, unless asked otherwise."""

BLOCKS = 10

_LACK = "have steps with a loss that is not finite, or was not told"


@dataclass(frozen=True)
class LossGuard:
    """The comparison: ``largest`` is the largest relative difference, None when unknown."""

    verdict: Verdict
    why: str
    largest: float | None = None


def compare(before: Sequence[Curve], after: Sequence[Curve], tolerance: float) -> LossGuard:
    """Compare the losses of the runs, given in the order of their pairs."""
    curves = [*before, *after]
    if not any(curves):
        return LossGuard("not compared", "no run told its loss")
    if not all(curves):
        return LossGuard("cannot tell", "not every run told its loss, or it was never finite")
    shared = set.intersection(*(set(curve) for curve in curves))
    steps = sorted(s for s in shared if not all(math.isnan(curve[s]) for curve in curves))
    if not steps:
        return LossGuard("cannot tell", "the runs have no step in common with a loss")
    broken = [sum(_broken(curve, steps) for curve in side) for side in (before, after)]
    if any(broken):
        return _not_finite(broken[0], broken[1], len(before))
    blocks = _blocks(steps)
    first = [_means(curve, blocks) for curve in before]
    second = [_means(curve, blocks) for curve in after]
    own = max(_spread(first), _spread(second))
    if own > tolerance:
        return _ends(before, after, steps, tolerance, own)
    largest = _largest([_middle(first), _middle(second)])
    verdict: Verdict = "within tolerance" if largest <= tolerance else "changes training"
    return LossGuard(verdict, f"loss over {_steps(len(steps))}, tenth by tenth", largest)


SEEDS = 3
"""Runs with other random numbers that show how far those alone move a loss."""

ROOM = 1.5
"""Times the largest difference between seeds that a change may make: few seeds were seen."""


def beside_seeds(guard: LossGuard, curves: Sequence[Curve]) -> LossGuard:
    """The guard of a change that may only have drawn other random numbers.

    ``curves`` are of one unchanged job with its own random numbers and with others. A difference
    of at most ROOM times that between any two of them is within tolerance.
    """
    allowed = spread(curves)
    if guard.verdict != "changes training" or guard.largest is None or allowed is None:
        return guard
    if guard.largest > ROOM * allowed:
        why = f"{guard.why}; other random numbers alone make it differ by {percent(allowed)}"
        return LossGuard(guard.verdict, why, guard.largest)
    why = (
        f"it differs by {percent(guard.largest)}, as other random numbers make it differ "
        f"({percent(allowed)})"
    )
    return LossGuard("within tolerance", why, guard.largest)


def spread(curves: Sequence[Curve]) -> float | None:
    """The largest relative difference between any two; None where none can be compared."""
    found = [compare([one], [two], 0.0).largest for one, two in combinations(curves, 2)]
    known = [value for value in found if value is not None]
    return max(known, default=None)


def _steps(count: int) -> str:
    return f"{count} step{'' if count == 1 else 's'}"


def _broken(curve: Curve, steps: Sequence[int]) -> bool:
    return any(math.isnan(curve[step]) for step in steps)


def _not_finite(before: int, after: int, runs: int) -> LossGuard:
    if before:
        return LossGuard("cannot tell", f"{before} of {runs} runs before {_LACK}")
    return LossGuard("changes training", f"{after} of {runs} runs after {_LACK}")


def _blocks(steps: Sequence[int]) -> list[Sequence[int]]:
    count = min(BLOCKS, len(steps))
    edges = [round(i * len(steps) / count) for i in range(count + 1)]
    return [steps[a:b] for a, b in zip(edges, edges[1:], strict=False)]


def _means(curve: Curve, blocks: Sequence[Sequence[int]]) -> list[float]:
    return [statistics.fmean(curve[step] for step in block) for block in blocks]


def _middle(curves: Sequence[Sequence[float]]) -> list[float]:
    return [statistics.median(values) for values in zip(*curves, strict=True)]


def _spread(curves: Sequence[Sequence[float]]) -> float:
    """The largest relative difference among runs of one command."""
    return max((_largest([curves[0], other]) for other in curves[1:]), default=0.0)


def _largest(pair: Sequence[Sequence[float]]) -> float:
    """The largest difference, relative to the first curve at that place.

    A loss near zero counts as at least a hundredth of the curve's largest, or noise around nothing
    would look like a change.
    """
    first, second = pair
    floor = max(map(abs, first)) / 100
    return max(_relative(a, b, floor) for a, b in zip(first, second, strict=True))


def _relative(first: float, second: float, floor: float) -> float:
    if first == second:
        return 0.0
    scale = max(abs(first), floor) or abs(second)
    return abs(second - first) / scale


def _ends(
    before: Sequence[Curve],
    after: Sequence[Curve],
    steps: Sequence[int],
    tolerance: float,
    own: float,
) -> LossGuard:
    """Compare the last quarter over pairs, where runs of one command differ by ``own``."""
    last = [steps[-max(1, len(steps) // 4) :]]
    pairs = [
        (_means(one, last)[0], _means(two, last)[0]) for one, two in zip(before, after, strict=True)
    ]
    scale = abs(statistics.fmean(one for one, _ in pairs))
    found = mean_of([(two - one) / scale for one, two in pairs]) if scale else None
    noisy = f"runs of one command differ among themselves by {own:.1%}"
    if found is None:
        return LossGuard("cannot tell", f"{noisy}; fix the seed")
    largest = abs(found.mid)
    if -tolerance <= found.low and found.high <= tolerance:
        return LossGuard("within tolerance", f"{noisy}; compared at the end of training", largest)
    if found.low > tolerance or found.high < -tolerance:
        return LossGuard("changes training", f"{noisy}, but the end of training by more", largest)
    return LossGuard("cannot tell", f"{noisy}; fix the seed, or allow more", largest)
