"""``compare --fail-on``: limits on how much worse B may be than A.

A limit reads ``slower>5%`` (the median step), ``lost>5%`` (all causes together),
``data_loading>2%`` or one cause. Its base is the median step of A, and it is exceeded only by what
is more than noise between steps.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from whyidle import gate
from whyidle.comparison import Comparison, Line
from whyidle.diagnosis import Diagnosis, matches_cause
from whyidle.errors import UsageError
from whyidle.gate import Limit
from whyidle.render.numerals import duration

SLOWER = "slower"
"""The name of the limit on the step itself."""

EXAMPLES = "'slower>5%', 'lost>5%' or 'data_loading>2%'"


def parse_limits(texts: Iterable[str], causes: Collection[str]) -> list[Limit]:
    """The limits that the user wrote; ``causes`` are the ids of all known causes.

    Raises UsageError for text that is no limit and for an id that no cause has.
    """
    return gate.parse_limits(texts, causes, own=(SLOWER,), most=math.inf, examples=EXAMPLES)


def exceeded(comparison: Comparison, limits: Iterable[Limit]) -> list[str]:
    """One sentence for each limit that B is above; empty when all hold.

    Raises UsageError for a limit that is passed by figures of which nobody can tell whether they
    are more than noise: that is neither held nor broken.
    """
    if comparison.same:
        return []
    found = []
    for limit in limits:
        said = _slower(comparison, limit) if limit.what == SLOWER else _worse(comparison, limit)
        found += said
    return found


def check_judged(after: Diagnosis, limits: Iterable[Limit], causes: Collection[str]) -> None:
    """Raise UsageError for a limit on causes of which B can show none at all."""
    gate.check_judged(after, [limit for limit in limits if limit.what != SLOWER], causes)


def _slower(comparison: Comparison, limit: Limit) -> list[str]:
    step = comparison.step
    if step is None:
        raise _untold(limit, "no steps were marked on one side")
    if step.ratio - 1 <= limit.share or step.verdict == "within noise":
        return []
    if step.verdict == "cannot tell":
        steps = f"{len(step.before)} and {len(step.after)}"
        raise _untold(limit, f"the step is {step.ratio - 1:.1%} slower, by {steps} steps")
    return [
        f"a step takes {duration(step.after_s)} instead of {duration(step.before_s)}: "
        f"{step.ratio - 1:.1%} slower, over the limit of {limit.share * 100:g}%."
    ]


def _worse(comparison: Comparison, limit: Limit) -> list[str]:
    mine = [line for line in comparison.causes if matches_cause(line.what, limit.prefix)]
    if comparison.step is None:
        raise _untold(limit, "no steps were marked on one side")
    base = comparison.step.before_s
    sure = _grown(mine, "more than noise") / base
    if sure > limit.share:
        return [
            f"{limit.what} costs {sure:.1%} of a step more than before, over the limit of "
            f"{limit.share * 100:g}%."
        ]
    open_ = _grown(mine, "cannot tell") / base
    if sure + max(0.0, open_) > limit.share:
        raise _untold(limit, f"{limit.what} costs {open_:.1%} of a step more")
    unseen = next((line for line in mine if line.after is None), None)
    if unseen is not None:
        raise _untold(limit, f"B does not show what “{unseen.title}” costs")
    return []


def _grown(lines: Iterable[Line], verdict: str) -> float:
    """Seconds by which the lines of this verdict grew; what was not judged before counts whole."""
    return sum(
        line.change if line.change is not None else line.after or 0.0
        for line in lines
        if line.verdict == verdict
    )


def _untold(limit: Limit, why: str) -> UsageError:
    return UsageError(
        f"--fail-on '{limit}': {why}; whether that is more than noise cannot be told.\n"
        "Record at least 6 marked steps of both runs, with the same switches."
    )
