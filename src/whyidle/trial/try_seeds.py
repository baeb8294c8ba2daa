"""Whether a loss that differs with a remedy differs more than it would with another seed."""

from __future__ import annotations

from collections.abc import Sequence

from whyidle.trial.losses import SEEDS, beside_seeds
from whyidle.trial.try_judged import Row, speed_verdict
from whyidle.trial.try_rounds import Bench
from whyidle.trial.try_table import BY_NAME


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
    for row in open_to_it:
        guard = None if row.guard is None else beside_seeds(row.guard, curves)
        if guard is not None and guard.verdict == "within tolerance":
            row.guard = guard
            row.why = ""
            row.verdict = speed_verdict(row)


def _redraws(row: Row) -> bool:
    known = [BY_NAME[name] for name in row.remedies]
    return (
        row.verdict == "changes training"
        and any(remedy.redraws for remedy in known)
        and not any(remedy.scales_batch for remedy in known)
    )
