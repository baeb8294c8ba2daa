"""How many loader workers would keep up, told from what batches and steps took."""

from __future__ import annotations

from dataclasses import replace

import pytest

from whyidle.diagnose import diagnose
from whyidle.diagnosis import Finding
from whyidle.model import BATCHES, Evidence, frame
from whyidle.moment_stories import TimedRun

MS = 1_000_000


def found(evidence: Evidence) -> Finding:
    findings = diagnose(evidence).findings
    return next(f for f in findings if f.cause == "data_loading.loader_workers_too_few")


def run(batch_ms: float, each_step: int = 1, cpu: float = 0.0, cpus: str | None = None) -> Evidence:
    """Twenty steps of 100 ms that wait 60 ms, and the batches that they used.

    ``cpu`` is the part of a batch's time that computes.
    """
    story = TimedRun() if cpus is None else TimedRun().setting("cpus", cpus)
    story = story.site("loader", "train.py", 12, num_workers=0)
    told = story.passes(1000).steps(20, 100, wait=60).evidence()
    row = {"source": 0, "rank": None, "process": 100, "loader": 0, "wall_ns": round(batch_ms * MS)}
    row["cpu_ns"] = round(cpu * batch_ms * MS)
    tables = {**told.tables, "batches": frame(BATCHES, [row] * (20 * each_step))}
    return replace(told, tables=tables)


@pytest.mark.parametrize(("batch_ms", "each_step", "workers"), [(60, 1, 2), (30, 4, 3), (10, 1, 1)])
def test_workers_are_the_work_of_a_step_over_the_time_it_leaves(
    batch_ms: float, each_step: int, workers: int
) -> None:
    """A step leaves 40 ms: 60 ms of work need two workers, 4 times 30 ms three."""
    finding = found(run(batch_ms, each_step))
    assert finding.remedies[0].effect["workers"] == workers
    assert finding.remedies[0].effect["share_removed"] == 1.0


def test_nothing_is_said_without_batches_or_where_no_number_would_do() -> None:
    bare = TimedRun().steps(20, 100, wait=60).evidence()
    assert "workers" not in found(bare).remedies[0].effect
    assert "workers" not in found(run(40 * 65)).remedies[0].effect


@pytest.mark.parametrize(
    ("cpu", "cpus", "workers"), [(1.0, "4", 4), (0.25, "2", 8), (0.1, "2", 15), (1.0, None, 15)]
)
def test_no_more_workers_than_the_cpus_can_run(cpu: float, cpus: str | None, workers: int) -> None:
    """600 ms of work in the 40 ms that a step leaves ask for 15 workers."""
    assert found(run(600, cpu=cpu, cpus=cpus)).remedies[0].effect["workers"] == workers
