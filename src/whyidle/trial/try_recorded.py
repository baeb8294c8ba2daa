"""From the rows of a trial to its record."""

from __future__ import annotations

import math
import os
import platform
import shlex
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from whyidle import __version__
from whyidle.trial.proof import LossRecord, Machine, RatioRecord, RunRecord
from whyidle.trial.ratio import CONFIDENCE, Estimate
from whyidle.trial.try_judged import METHOD, PAYS, Row, What, seconds
from whyidle.trial.try_record import SCHEMA, BaselineRecord, Predicted, RowRecord, Trial
from whyidle.trial.try_runs import Job, TryRun
from whyidle.trial.try_table import BY_NAME, NOT_OFFERED, Value

if TYPE_CHECKING:
    from whyidle.diagnosis import Diagnosis


@dataclass(frozen=True)
class Context:
    """What holds for all rows of a trial."""

    job: Job
    pairs: int
    tolerance: float
    started: datetime
    diagnosis: Diagnosis | None


def trial_of(
    context: Context,
    rows: Sequence[Row],
    together: Row | None,
    baselines: Sequence[TryRun],
    notes: Sequence[str],
) -> Trial:
    """The record; ``started`` is in UTC."""
    job = context.job
    return Trial(
        schema=SCHEMA,
        whyidle=__version__,
        started=context.started.isoformat(timespec="seconds").replace("+00:00", "Z"),
        command=[os.fsencode(word).decode("utf-8", "replace") for word in job.command],
        steps=job.steps,
        warm_up=job.warm_up,
        pairs=context.pairs,
        pays_from=PAYS,
        seed=job.seed,
        baseline=_baseline(baselines),
        remedies=[_row(row, context) for row in rows],
        together=None if together is None else _row(together, context),
        not_offered=dict(NOT_OFFERED),
        notes=list(notes),
        machine=Machine(
            python=platform.python_version(),
            cpus=len(os.sched_getaffinity(0)),
            platform=platform.platform(),
        ),
    )


def _baseline(runs: Sequence[TryRun]) -> BaselineRecord:
    known = [run.measured.pace.median_s for run in runs if run.measured.pace is not None]
    what: What = "median step" if len(known) == len(runs) and known else "wall of the command"
    return BaselineRecord(
        step_s=statistics.median(known) if known else None,
        what=what,
        runs=[_run(run, what) for run in runs],
    )


def _row(row: Row, context: Context) -> RowRecord:
    known = [BY_NAME[name] for name in row.remedies]
    what = row.what if row.pairs else None
    took = [
        why
        for name in row.remedies
        for why in (row.runs[-1].said[name].took if row.runs and name in row.runs[-1].said else [])
    ]
    return RowRecord(
        remedy=row.label,
        values=dict(row.remedies),
        does=", and ".join(remedy.does for remedy in known),
        causes=sorted({cause for remedy in known for cause in remedy.causes}),
        safe=all(remedy.safe for remedy in known),
        why_safe=" ".join(dict.fromkeys(remedy.why for remedy in known)),
        predicted=None if row.together else predicted(row, context.diagnosis),
        measured=_ratio(row.estimate),
        what=what,
        verdict=row.verdict or "undecided",
        why=row.why,
        took_effect=took,
        loss=_loss(row, context.tolerance),
        keep=keep(row.remedies, context.job.command),
        source="; ".join(source_of(name, value) for name, value in row.remedies.items()),
        runs=[_run(run, what or "median step") for run in row.runs],
    )


def predicted(row: Row, diagnosis: Diagnosis | None) -> Predicted | None:
    """What the diagnosis says of the costliest cause that the remedy answers; never more."""
    if diagnosis is None:
        return None
    causes = {cause for name in row.remedies for cause in BY_NAME[name].causes}
    for finding in diagnosis.findings:
        if finding.cause not in causes:
            continue
        gain = next((one.gain for one in finding.remedies if one.gain is not None), None)
        if gain is not None:
            return Predicted(low=gain.speedup_low, mid=gain.speedup_mid, high=gain.speedup_high)
    return None


def keep(remedies: dict[str, Value], command: Sequence[str]) -> str | None:
    """The ``fix`` command that writes all of them; None where it cannot write each one."""
    fixes = [BY_NAME[name].fix for name in remedies]
    if not fixes or None in fixes:
        return None
    script = next((word for word in command if word.endswith(".py")), "train.py")
    unsafe = "" if all(BY_NAME[name].safe for name in remedies) else " --unsafe"
    only = ",".join(dict.fromkeys(fix for fix in fixes if fix is not None))
    return f"whyidle fix {shlex.quote(script)} --only {only}{unsafe}"


def source_of(name: str, value: Value) -> str:
    """The line of source that keeps a remedy."""
    told = str(value)
    if name == "ddp_flags":
        on = ("gradient_as_bucket_view", "static_graph")
        flags = [] if value is True else told.split("+")
        told = ", ".join(f"{flag}={flag in on}" for flag in flags)
    return BY_NAME[name].source.format(value=told)


def _ratio(found: Estimate | None) -> RatioRecord | None:
    if found is None:
        return None
    return RatioRecord(
        low=found.low, mid=found.mid, high=found.high, confidence=CONFIDENCE, method=METHOD
    )


def _loss(row: Row, tolerance: float) -> LossRecord | None:
    if row.guard is None:
        return None
    return LossRecord(
        compared=row.guard.verdict in ("within tolerance", "changes training"),
        why=row.guard.why,
        largest_relative_difference=row.guard.largest,
        tolerance=tolerance,
        verdict=row.guard.verdict,
    )


def _run(run: TryRun, what: What) -> RunRecord:
    pace, curve = run.measured.pace, run.measured.losses
    last = curve[max(curve)] if curve else math.nan
    return RunRecord(
        seconds_per_step=None if pace is None else seconds(run, what) if "step" in what else None,
        wall_s=run.ended.wall_s,
        steps=None if pace is None else pace.steps,
        loss_last=None if math.isnan(last) else last,
        exit_code=run.ended.exit_code,
    )
