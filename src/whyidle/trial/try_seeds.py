"""Whether a loss that differs with a remedy differs more than it would with another seed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from whyidle.render.numerals import percent
from whyidle.trial import losses
from whyidle.trial.losses import Curve, LossGuard
from whyidle.trial.try_judged import Row, speed_verdict
from whyidle.trial.try_rounds import Bench
from whyidle.trial.try_table import BY_NAME

SEEDS = 3
"""Runs of the job as it is with other seeds, made only when a row hangs on them."""

ROOM = 1.5
"""Times the largest difference between seeds that a remedy may differ: few seeds were seen."""


def forgive(bench: Bench, rows: Sequence[Row]) -> None:
    """Rows that draw other numbers, and whose loss differs no more than by a seed, may pay."""
    open_to_it = [row for row in rows if _redraws(row)]
    if not open_to_it or not bench.baselines:
        return
    curves = [bench.baselines[0].measured.losses]
    for number in range(1, SEEDS + 1):
        if bench.spent:
            return
        run = bench.run(f"the job as it is, other random numbers {number}", {"reseed": number})
        if not run.ended.well:
            return
        curves.append(run.measured.losses)
    allowed = spread(curves)
    for row in open_to_it:
        if row.guard is None or row.guard.largest is None or allowed is None:
            continue
        if row.guard.largest <= ROOM * allowed:
            why = (
                f"it differs by {percent(row.guard.largest)}, as other random numbers make it "
                f"differ ({percent(allowed)})"
            )
            row.guard = LossGuard("within tolerance", why, row.guard.largest)
            row.why = ""
            row.verdict = speed_verdict(row)


def _redraws(row: Row) -> bool:
    known = [BY_NAME[name] for name in row.remedies]
    return (
        row.verdict == "changes training"
        and any(remedy.redraws for remedy in known)
        and not any(remedy.scales_batch for remedy in known)
    )


def spread(curves: Sequence[Curve]) -> float | None:
    """The largest relative difference between any two; None where none can be compared."""
    found = [losses.compare([one], [two], 0.0).largest for one, two in combinations(curves, 2)]
    known = [value for value in found if value is not None]
    return max(known, default=None)
