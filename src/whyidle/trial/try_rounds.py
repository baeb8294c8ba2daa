"""The runs of a trial: rounds through what is open, in turn with runs of the job as it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from whyidle.trial import child
from whyidle.trial.try_judged import Row, settle_early
from whyidle.trial.try_runs import Job, TryRun, run_once
from whyidle.trial.try_table import Value

BASELINE = "the job as it is"

Watch = Callable[[int, int, str], None]
"""Called with (run from 0, runs at most, what runs) before a run starts."""


@dataclass
class Bench:
    """Where runs are made and counted. ``until_s``: no run starts later (monotonic seconds)."""

    job: Job
    folder: Path
    watch: Watch
    most_runs: int = 1
    until_s: float | None = None
    made: int = 0
    baselines: list[TryRun] = field(default_factory=list)

    def run(self, label: str, remedies: dict[str, Value], *, dry: bool = False) -> TryRun:
        """One run in a folder of its own."""
        self.watch(self.made, max(self.most_runs, self.made + 1), label)
        self.made += 1
        place = self.folder / f"run-{self.made:03d}"
        return run_once(self.job, place, remedies, dry=dry)

    @property
    def spent(self) -> bool:
        """Whether the time for all runs is used up."""
        return self.until_s is not None and time.monotonic() >= self.until_s


def rounds(bench: Bench, rows: Sequence[Row], pairs: int) -> str | None:
    """Run until all rows are decided or have ``pairs`` pairs; why it ended sooner, or None.

    A round is the job as it is and then every open row; every other round goes backwards.
    """
    for number in range(pairs):
        opened = [row for row in rows if row.open]
        if not opened:
            return None
        entries: list[Row | None] = [None, *opened]
        baseline: TryRun | None = None
        waiting: list[tuple[Row, TryRun]] = []
        for row in entries if number % 2 == 0 else entries[::-1]:
            if bench.spent:
                return "the time of --budget is used up"
            if row is None:
                baseline = bench.run(BASELINE, {})
                if not baseline.ended.well:
                    _doubt(rows)
                    return f"the job as it is {how(baseline)}"
                bench.baselines.append(baseline)
            else:
                _one(bench, row, waiting)
            if baseline is not None:
                for one, run in waiting:
                    one.pairs.append((baseline, run))
                waiting = []
        settle_early(rows)
    return None


def _one(bench: Bench, row: Row, waiting: list[tuple[Row, TryRun]]) -> None:
    run = bench.run(row.label, row.remedies)
    row.runs.append(run)
    if not run.ended.well and run.ended.exit_code is not None and not bench.spent:
        run = bench.run(f"{row.label}, once more", row.remedies)
        row.runs.append(run)
    if not run.ended.well:
        row.verdict, row.why = "failed", failure(run)
        return
    said = [run.said[name] for name in row.remedies if name in run.said]
    if any(one.applied for one in said):
        waiting.append((row, run))
        return
    reasons = [why for one in said for why in one.why_not]
    row.verdict = "not applicable"
    row.why = "; ".join(reasons[:2]) or "nothing that it changes was met in these steps"


def _doubt(rows: Sequence[Row]) -> None:
    """A job that fails by itself, too, makes its failures no sign against a remedy."""
    for row in rows:
        if row.verdict == "failed":
            row.verdict = "undecided"
            row.why = f"{row.why}; but the job as it is fails at times, too"


def how(run: TryRun) -> str:
    """How a run failed, as a clause."""
    code = run.ended.exit_code
    if code is None:
        return f"was still running after {run.ended.wall_s:.0f} s"
    return f"was ended by signal {code - 128}" if code > 128 else f"ended with exit code {code}"


def failure(run: TryRun) -> str:
    """How it failed, and the last line of its output."""
    told = [line for line in child.tail(run.output).splitlines() if line.strip()]
    return f"{how(run)}: {told[-1].strip()[:200]}" if told else how(run)
