"""From the runs of a plan to the proof: the measure, the ratio, the loss, and the verdict."""

from __future__ import annotations

import math
import os
import platform
import statistics
from collections.abc import Sequence
from datetime import datetime

from whyidle import __version__
from whyidle.render.numerals import digits, percent
from whyidle.trial import losses
from whyidle.trial.findings import Shortfall, findings_of
from whyidle.trial.losses import LossGuard
from whyidle.trial.pairs import Plan, Run, Side
from whyidle.trial.proof import (
    SCHEMA,
    LossRecord,
    Machine,
    MeasureRecord,
    Proof,
    RatioRecord,
    RunRecord,
    SideRecord,
    Verdict,
    What,
    signed,
)
from whyidle.trial.ratio import CONFIDENCE, METHOD, Estimate, speed_ratio

UNEVEN = 1.1
"""Times by which mean and median step may differ before the median would mislead: loader workers
that deliver several batches at once make most steps short and a few long."""


def measure_of(runs: Sequence[Run]) -> MeasureRecord:
    """One measure for all runs, so that both sides are measured alike."""
    paces = [run.measured.pace for run in runs]
    known = [pace for pace in paces if pace is not None]
    if len(known) < len(paces) or not known:
        who = "no run" if not known else f"only {len(known)} of {len(paces)} runs"
        return MeasureRecord(
            what="wall of the command",
            why=f"{who} told its steps, so the whole command was timed, start-up included",
        )
    if any(max(p.mean_s / p.median_s, p.median_s / p.mean_s) > UNEVEN for p in known):
        return MeasureRecord(
            what="mean step",
            why="the steps of a run differ too much for its median step to tell its pace",
        )
    return MeasureRecord(what="median step", why="of the slowest rank, after its warm-up")


def seconds(run: Run, what: What) -> float:
    """The seconds of one run by the measure."""
    pace = run.measured.pace
    if what == "wall of the command" or pace is None:
        return run.ended.wall_s
    return pace.mean_s if what == "mean step" else pace.median_s


def guard_of(runs: Sequence[Run], tolerance: float) -> LossGuard:
    """The losses of both sides set side by side."""
    before, after = _side(runs, "before"), _side(runs, "after")
    return losses.compare(
        [run.measured.losses for run in before], [run.measured.losses for run in after], tolerance
    )


def proof_of(
    plan: Plan,
    runs: Sequence[Run],
    started: datetime,
    *,
    at_least: float,
    tolerance: float,
    seeds: Sequence[Run] = (),
) -> Proof:
    """The signed proof; ``started`` is in UTC, and a failed run is the last of ``runs``.

    ``seeds`` are runs of before with other random numbers.
    """
    measure = measure_of(runs)
    failed = not runs[-1].ended.well
    before, after = _side(runs, "before"), _side(runs, "after")
    ratio = None
    guard = LossGuard("not compared", "a run failed")
    if not failed:
        ratio = speed_ratio(
            [seconds(run, measure.what) for run in before],
            [seconds(run, measure.what) for run in after],
        )
        guard = guard_of(runs, tolerance)
        if seeds:
            others = [run.measured.losses for run in seeds if run.ended.well]
            guard = losses.beside_seeds(guard, [before[0].measured.losses, *others])
    verdict, found = judge(ratio, guard, at_least, tolerance)
    if failed:
        verdict, found = "failed", [Shortfall("prove.failed", how_failed(plan, runs))]
    found = [*strays(runs), *found]
    before_record = _side_record(plan, "before", before, measure.what)
    after_record = _side_record(plan, "after", after, measure.what)
    return signed(
        Proof(
            schema=SCHEMA,
            whyidle=__version__,
            started=started.isoformat(timespec="seconds").replace("+00:00", "Z"),
            verdict=verdict,
            proven=not found,
            at_least=at_least,
            reasons=[one.sentence for one in found],
            measure=measure,
            before=before_record,
            after=after_record,
            ratio=_ratio_record(ratio),
            loss=_loss_record(guard, tolerance),
            machine=_machine(),
            findings=findings_of(found, measure.what, before_record, after_record),
            notes=notes_of(plan, runs),
        )
    )


def judge(
    ratio: Estimate | None, guard: LossGuard, at_least: float, tolerance: float
) -> tuple[Verdict, list[Shortfall]]:
    """The verdict, and what keeps the claim from being proven."""
    found = []
    verdict: Verdict = "no difference"
    if ratio is not None and ratio.low > 1:
        verdict = "faster"
    elif ratio is not None and ratio.high < 1:
        verdict = "slower"
    if verdict == "slower":
        found.append(Shortfall("prove.slower", "It is slower."))
    elif verdict == "no difference":
        found.append(
            Shortfall("prove.no_difference", "No difference beyond the noise between runs.")
        )
    elif ratio is not None and ratio.low < at_least:
        sentence = (
            f"Faster, but maybe by {digits(ratio.low)}x only; {digits(at_least)}x was asked for "
            "(more --pairs narrow the interval)."
        )
        found.append(Shortfall("prove.too_little", sentence))
    if guard.verdict == "changes training":
        verdict = "changes training"
        size = "" if guard.largest is None else f" by {percent(guard.largest)}"
        sentence = f"The loss differs{size}, {percent(tolerance)} is tolerated: {guard.why}."
        found.append(Shortfall("prove.changes_training", sentence))
    elif guard.verdict == "cannot tell":
        sentence = f"Whether training changed cannot be told: {guard.why}."
        found.append(Shortfall("prove.loss_unknown", sentence))
    return verdict, found


def strays(runs: Sequence[Run]) -> list[Shortfall]:
    """One where a run stepped in the user's own files and not in those of its tree."""
    for run in runs:
        if run.stray is not None:
            sentence = (
                f"A run ({run.side}) used {_text(run.stray)}, which is not in its tree, so both "
                "sides may have run the same code (a package installed with pip install -e?)."
            )
            return [Shortfall("prove.wrong_tree", sentence)]
    return []


def notes_of(plan: Plan, runs: Sequence[Run]) -> list[str]:
    """Where --steps did not do what was asked of it, or the sides made steps of unlike number."""
    if not runs or not runs[-1].ended.well:
        return []
    steps = [run.measured.pace.steps if run.measured.pace else 0 for run in runs]
    if plan.steps is None:
        return _unlike_steps(runs, steps)
    if not all(steps):
        return [
            f"--steps {plan.steps} had no effect on {steps.count(0)} of {len(runs)} runs: no step "
            "of a torch optimizer, and no whyidle.step(), was seen in them."
        ]
    if min(steps) < plan.steps:
        return [f"--steps {plan.steps}: a run ended by itself after {min(steps)} steps."]
    return []


def _unlike_steps(runs: Sequence[Run], steps: Sequence[int]) -> list[str]:
    sides = {
        side: statistics.median(n for run, n in zip(runs, steps, strict=True) if run.side == side)
        for side in {run.side for run in runs}
    }
    before, after = sides.get("before", 0), sides.get("after", 0)
    if not before or not after or before == after:
        return []
    return [
        f"after makes {after:g} steps where before makes {before:g}. Compared is one step; that is "
        "the same work only if a step still holds as many samples."
    ]


def how_failed(plan: Plan, runs: Sequence[Run]) -> str:
    """One sentence on the last run, which failed."""
    last = runs[-1]
    code = last.ended.exit_code
    if code is None:
        how = f"was still running after --timeout {plan.timeout_s or 0:g} s"
    elif code > 128:
        how = f"was ended by signal {code - 128}"
    else:
        how = f"ended with exit code {code}"
    return f"Run {len(runs)} of {2 * plan.pairs} ({last.side}) {how}."


def _side(runs: Sequence[Run], side: Side) -> list[Run]:
    return [run for run in runs if run.side == side]


def _side_record(plan: Plan, side: Side, runs: Sequence[Run], what: What) -> SideRecord:
    figures = [seconds(run, what) for run in runs if run.ended.well]
    tree = plan.tree(side)
    return SideRecord(
        tree=None if tree is None else _text(tree.holds),
        command=[_text(word) for word in plan.command(side)],
        runs=[_run_record(run, what) for run in runs],
        median=statistics.median(figures) if figures else None,
        low=min(figures, default=None),
        high=max(figures, default=None),
    )


def _text(word: str) -> str:
    return os.fsencode(word).decode("utf-8", "replace")


def _run_record(run: Run, what: What) -> RunRecord:
    pace, curve = run.measured.pace, run.measured.losses
    last = curve[max(curve)] if curve else math.nan
    per_step = None if pace is None else pace.mean_s if what == "mean step" else pace.median_s
    return RunRecord(
        seconds_per_step=per_step,
        wall_s=run.ended.wall_s,
        steps=None if pace is None else pace.steps,
        loss_last=None if math.isnan(last) else last,
        exit_code=run.ended.exit_code,
    )


def _ratio_record(ratio: Estimate | None) -> RatioRecord | None:
    if ratio is None:
        return None
    return RatioRecord(
        low=ratio.low, mid=ratio.mid, high=ratio.high, confidence=CONFIDENCE, method=METHOD
    )


def _loss_record(guard: LossGuard, tolerance: float) -> LossRecord:
    return LossRecord(
        compared=guard.verdict in ("within tolerance", "changes training"),
        why=guard.why,
        largest_relative_difference=guard.largest,
        tolerance=tolerance,
        verdict=guard.verdict,
    )


def _machine() -> Machine:
    return Machine(
        python=platform.python_version(),
        cpus=len(os.sched_getaffinity(0)),
        platform=platform.platform(),
    )
