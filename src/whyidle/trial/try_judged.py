"""What the runs of one remedy say: its ratio, the verdict, and when no more runs are needed.

The noise between pairs of runs is taken to be alike for all remedies of a trial, which gives a
narrow interval from few pairs. A remedy whose own pairs scatter by more than twice that is judged
by its own scatter alone.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from whyidle.trial import losses
from whyidle.trial.losses import LossGuard
from whyidle.trial.ratio import CONFIDENCE, Estimate, t_quantile
from whyidle.trial.try_runs import TryRun
from whyidle.trial.try_table import BY_NAME, Value

Verdict = Literal[
    "pays", "does not pay", "changes training", "not applicable", "failed", "undecided"
]

What = Literal["median step", "mean step", "wall of the command"]

PAYS = 1.02
"""A remedy pays when it surely makes the job this many times faster."""

METHOD = "paired t interval of the log ratio, noise pooled over the remedies of the trial"

EARLY = 0.99
"""How sure a decision must be before all pairs have run: many looks are taken at the same runs."""

LEAST_PAIRS = 2

UNEVEN = 1.1
"""Times by which the mean step may differ from the median one before the mean is taken."""

OWN_NOISE = 4.0
"""Times the pooled variance above which a remedy's own variance is taken instead."""


@dataclass
class Row:
    """One thing to try: remedies with their values, and the pairs of runs (without, with)."""

    remedies: dict[str, Value]
    together: bool = False
    pairs: list[tuple[TryRun, TryRun]] = field(default_factory=list)
    runs: list[TryRun] = field(default_factory=list)
    verdict: Verdict | None = None
    why: str = ""
    guard: LossGuard | None = None
    estimate: Estimate | None = None

    @property
    def label(self) -> str:
        """Its name as it is asked for on the command line."""
        if self.together:
            return "all of them together"
        return ",".join(shown(name, value) for name, value in self.remedies.items())

    @property
    def open(self) -> bool:
        """Whether more runs may change what is known of it."""
        return self.verdict is None

    @property
    def what(self) -> What:
        """The measure, one for all its runs and those that they are compared with."""
        paces = [run.measured.pace for pair in self.pairs for run in pair]
        known = [pace for pace in paces if pace is not None]
        if len(known) < len(paces) or not known:
            return "wall of the command"
        rare = any(BY_NAME[name].rare for name in self.remedies if name in BY_NAME)
        if rare or any(max(p.mean_s / p.median_s, p.median_s / p.mean_s) > UNEVEN for p in known):
            return "mean step"
        return "median step"

    @property
    def logs(self) -> list[float]:
        """The logarithm of how many times faster it is, pair by pair."""
        what, factor = self.what, self.samples_factor
        return [
            math.log(seconds(without, what) / seconds(with_it, what) * factor)
            for without, with_it in self.pairs
        ]

    @property
    def alone(self) -> list[float]:
        """The logarithm of the seconds of the runs of the job as it is, pair by pair."""
        what = self.what
        return [math.log(seconds(without, what)) for without, _ in self.pairs]

    @property
    def samples_factor(self) -> float:
        """Samples per step with it, over those without."""
        scales = [
            float(value)
            for name, value in self.remedies.items()
            if name in BY_NAME and BY_NAME[name].scales_batch
        ]
        return math.prod(scales)


def shown(name: str, value: Value) -> str:
    """A remedy and its value as the command line takes them."""
    return name if value is True else f"{name}={value}"


def seconds(run: TryRun, what: What) -> float:
    """The seconds of one run by the measure."""
    pace = run.measured.pace
    if what == "wall of the command" or pace is None:
        return run.ended.wall_s
    return pace.mean_s if what == "mean step" else pace.median_s


@dataclass(frozen=True)
class Noise:
    """The variance of a pair's logarithm, and the degrees of freedom behind it."""

    variance: float
    freedom: int


def noise_of(all_logs: Sequence[Sequence[float]]) -> Noise | None:
    """The noise pooled over remedies; None while none has two pairs."""
    several = [logs for logs in all_logs if len(logs) >= LEAST_PAIRS]
    freedom = sum(len(logs) - 1 for logs in several)
    if not freedom:
        return None
    return Noise(sum(_squares(logs) for logs in several) / freedom, freedom)


def interval(
    logs: Sequence[float],
    pooled: Noise | None,
    confidence: float = CONFIDENCE,
    alone: Sequence[float] = (),
) -> Estimate | None:
    """How many times faster, with its interval; None with fewer than two pairs.

    ``alone`` are logarithms of the runs of the job as it is. Where these scatter more than the
    pairs, as on a machine that others use too, a few pairs agree by chance: their scatter counts.
    """
    if len(logs) < LEAST_PAIRS or pooled is None:
        return None
    own = Noise(_squares(logs) / (len(logs) - 1), len(logs) - 1)
    noise = own if own.variance > OWN_NOISE * pooled.variance else pooled
    if len(alone) >= LEAST_PAIRS:
        bare = Noise(_squares(alone) / (len(alone) - 1), len(alone) - 1)
        noise = bare if bare.variance > noise.variance else noise
    half = t_quantile(noise.freedom, confidence) * math.sqrt(noise.variance / len(logs))
    mid = statistics.fmean(logs)
    return Estimate(math.exp(mid - half), math.exp(mid), math.exp(mid + half))


def _squares(logs: Sequence[float]) -> float:
    mid = statistics.fmean(logs)
    return math.fsum((value - mid) ** 2 for value in logs)


def settle_early(rows: Sequence[Row]) -> None:
    """Close the rows of which enough is known: surely no gain, or surely one."""
    pooled = noise_of([row.logs for row in rows if row.pairs])
    for row in rows:
        if not row.open:
            continue
        sure = interval(row.logs, pooled, EARLY, row.alone)
        if sure is not None and (sure.high < PAYS or (sure.low > PAYS and len(row.pairs) > 2)):
            row.verdict = "does not pay" if sure.high < PAYS else "pays"


def settle(rows: Sequence[Row], tolerance: float, others: Sequence[Row] = ()) -> None:
    """The interval, the loss and the verdict of every row; ``others`` tell of the noise too."""
    pooled = noise_of([row.logs for row in (*rows, *others) if row.pairs])
    for row in rows:
        if not row.pairs:
            row.verdict = row.verdict or "undecided"
            row.why = row.why or "it did not get to run"
            continue
        row.estimate = interval(row.logs, pooled, alone=row.alone)
        row.guard = losses.compare(
            [without.measured.losses for without, _ in row.pairs],
            [with_it.measured.losses for _, with_it in row.pairs],
            tolerance,
        )
        if row.verdict not in ("failed", "not applicable"):
            row.verdict = speed_verdict(row)
            _guard(row)


def speed_verdict(row: Row) -> Verdict:
    """By its interval, or by what was sure earlier."""
    found = row.estimate
    if found is None:
        row.why = row.why or "fewer than two pairs of runs"
        return "undecided"
    if found.low >= PAYS:
        return "pays"
    if found.high < PAYS:
        return "does not pay"
    row.why = "the noise between runs hides whether it pays; more --pairs narrow the interval"
    return "undecided"


def _guard(row: Row) -> None:
    """A loss that differs counts more than speed, where the speed would pay."""
    if row.verdict == "does not pay" or row.guard is None:
        return
    if any(BY_NAME[name].scales_batch for name in row.remedies if name in BY_NAME):
        row.verdict, row.why = "changes training", "other batches and learning rate"
    elif row.guard.verdict == "changes training":
        row.verdict, row.why = "changes training", row.guard.why
    elif row.guard.verdict == "cannot tell" and row.verdict == "pays":
        row.verdict = "undecided"
        row.why = f"faster, but whether training changed cannot be told: {row.guard.why}"
