"""The course of a trial: one look at the job, rounds of runs, and what pays taken together."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from whyidle.errors import UsageError
from whyidle.render.numerals import count
from whyidle.trial import child
from whyidle.trial.try_choosing import Asked, causes_in, rows_of, to_ask
from whyidle.trial.try_judged import Row, settle
from whyidle.trial.try_record import Trial
from whyidle.trial.try_recorded import Context, trial_of
from whyidle.trial.try_rounds import Bench, Watch, how, rounds
from whyidle.trial.try_runs import Job, TryRun, child_cpus
from whyidle.trial.try_seeds import forgive
from whyidle.trial.try_table import APART, Place

if TYPE_CHECKING:
    from whyidle.diagnosis import Diagnosis

LOOK_STEPS = 24
"""Steps of the first run, and the fewest of all others, unless asked otherwise."""

MOST_STEPS = 400

RUN_S = 4.0
"""Seconds that the steps of a run last, as far as LOOK_STEPS and MOST_STEPS allow."""

EPOCH_S = 20.0
"""Seconds up to which a run is made longer to hold the start of a second epoch and a third."""


@dataclass(frozen=True)
class Wishes:
    """What the user asked for; None where whyidle is to choose (``seed``: the job's own)."""

    command: Sequence[str]
    asked: Asked | None
    diagnosis: Diagnosis | None
    pairs: int
    steps: int | None
    warm_up: int
    tolerance: float
    timeout_s: float | None
    budget_s: float | None
    seed: int | None


class Course:
    """One trial. ``rows`` fill as it goes; ``trial`` tells what is known at any moment."""

    def __init__(self, wishes: Wishes) -> None:
        self._wishes = wishes
        self._started = datetime.now(UTC)
        self._job = Job(
            wishes.command,
            wishes.steps or LOOK_STEPS,
            wishes.warm_up,
            wishes.timeout_s,
            wishes.seed,
        )
        self._rows: list[Row] = []
        self._together: Row | None = None
        self._baselines: list[TryRun] = []
        self._notes: list[str] = []

    @property
    def begun(self) -> bool:
        """Whether there is anything to tell."""
        return bool(self._baselines)

    def run(self, watch: Watch) -> None:
        """Make all runs; what they say is kept even when this is interrupted."""
        with tempfile.TemporaryDirectory(
            prefix="whyidle-try-", ignore_cleanup_errors=True
        ) as folder:
            until = None
            if self._wishes.budget_s is not None:
                until = time.monotonic() + self._wishes.budget_s
            bench = Bench(self._job, Path(folder), watch, until_s=until, baselines=self._baselines)
            self._look(bench)
            self._round(bench, self._rows)
            self.settle()
            forgive(bench, self._rows)
            self._all_together(bench)

    def settle(self) -> None:
        """Judge every row by what has run."""
        settle(self._rows, self._wishes.tolerance)

    def trial(self, *notes: str) -> Trial:
        """The record as far as it is known."""
        wishes = self._wishes
        context = Context(
            self._job, wishes.pairs, wishes.tolerance, self._started, wishes.diagnosis
        )
        told = [*notes, *self._notes, *_short(self._job, self._baselines)]
        return trial_of(context, self._rows, self._together, self._baselines, told)

    def _look(self, bench: Bench) -> None:
        """The first run changes nothing: it asks what could act, and how long steps take."""
        wishes = self._wishes
        causes = None if wishes.diagnosis is None else causes_in(wishes.diagnosis)
        asks = to_ask(wishes.asked, causes, Place(child_cpus()))
        look = bench.run("a first look at the job as it is", dict(asks), dry=True)
        if not look.ended.well:
            raise UsageError(_failed(look))
        self._rows += rows_of(wishes.asked, asks, look.said, look.facts)
        if wishes.diagnosis is not None and not asks:
            self._notes.append("No remedy that can be tried answers what the diagnosis shows.")
        pace = look.measured.pace
        if pace is None:
            self._notes.append(
                "No step of a torch optimizer, and no whyidle.step(), was seen, so whole runs of "
                "the command are compared."
            )
        self._job = replace(
            self._job,
            steps=None if pace is None else wishes.steps or self._steps(look, pace.mean_s),
            timeout_s=wishes.timeout_s or 60.0 + 10.0 * look.ended.wall_s,
        )
        bench.job = self._job

    def _steps(self, look: TryRun, step_s: float) -> int:
        """So many that steps last RUN_S, and that what loader workers hold ready weighs little."""
        steps = min(max(round(RUN_S / step_s), LOOK_STEPS), MOST_STEPS)
        opened = [row.remedies for row in self._rows if row.open]
        workers = [remedies.get("loader_workers") for remedies in opened]
        held = 2 * max((count for count in workers if isinstance(count, int)), default=0)
        steps = max(steps, self._job.warm_up + 8 * held)
        batches = look.facts.batches
        if batches is not None and any("persistent_workers" in one for one in opened):
            epochs = 2 * batches + self._job.warm_up + 2
            steps = max(steps, epochs) if epochs * step_s <= EPOCH_S else steps
        return steps

    def _round(self, bench: Bench, rows: Sequence[Row]) -> None:
        opened = sum(row.open for row in rows)
        bench.most_runs = bench.made + self._wishes.pairs * (opened + 1)
        ended = rounds(bench, rows, self._wishes.pairs) if opened else None
        if ended is not None:
            self._notes.append(f"Ended early: {ended}.")

    def _all_together(self, bench: Bench) -> None:
        """What pays, as one more thing to try; of values of a remedy, and of rivals, the best."""
        paying = [row for row in self._rows if row.verdict == "pays" and row.estimate is not None]
        chosen: dict[str, int | str | bool] = {}
        for row in sorted(paying, key=lambda row: -(row.estimate.mid if row.estimate else 0)):
            rivals = {name for pair in APART for name in pair if set(pair) & set(row.remedies)}
            if not rivals & set(chosen) and not set(row.remedies) & set(chosen):
                chosen.update(row.remedies)
        if len(chosen) < 2 or bench.spent:
            return
        self._together = row = Row(chosen, together=True)
        self._round(bench, [row])
        settle([row], self._wishes.tolerance, self._rows)
        forgive(bench, [row])


def _short(job: Job, runs: Sequence[TryRun]) -> list[str]:
    """A note where the job ended before a run had as many steps as it was to have."""
    made = [run.measured.pace.steps for run in runs if run.measured.pace is not None]
    if job.steps is None or not made or min(made) >= job.steps:
        return []
    return [f"The job ended by itself after {count(min(made), 'step')}; longer runs tell more."]


def _failed(look: TryRun) -> str:
    told = child.tail(look.output).strip()
    lines = f"Its last output:\n{told}" if told else "It printed nothing."
    return f"The command by itself, without a remedy, {how(look)}.\n{lines}"
