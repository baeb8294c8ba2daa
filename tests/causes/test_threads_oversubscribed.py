"""More threads than CPUs are told with the line that chose them."""

from __future__ import annotations

from whyidle import diagnose
from whyidle.diagnosis import Observation
from whyidle.moment_stories import TimedRun

CAUSE = "scheduling.threads_oversubscribed"


def told(run: TimedRun) -> list[Observation]:
    found = diagnose(run.evidence())
    assert not found.crashed
    return [one for one in found.observations if one.cause == CAUSE]


def process(threads: int, cpus: float, quota: float | None = None) -> TimedRun:
    run = TimedRun().steps(10, 20).setting("threads", str(threads)).setting("cpus", str(cpus))
    return run if quota is None else run.setting("cpu_quota", str(quota))


def test_as_many_threads_as_cpus_are_fine() -> None:
    assert told(process(8, 8)) == []


def test_threads_above_a_quota_are_seen() -> None:
    (sign,) = told(process(64, 64, quota=3.5))
    assert sign.level == "seen"
    assert "64 threads on 3.5 CPUs" in sign.what
    assert sign.remedies[0].what == "Compute with 3 threads"


def test_the_last_line_that_chose_a_number_counts() -> None:
    run = process(8, 8).site("threads", "a.py", 3, value=2).site("threads", "train.py", 7, value=9)
    (sign,) = told(run)
    assert (sign.where[0].file, sign.where[0].line) == ("train.py", 7)
    assert told(process(64, 8).site("threads", "a.py", 3, value=2)) == []


def test_ranks_of_one_machine_share_its_cpus() -> None:
    run = TimedRun()
    for rank in range(4):
        run.process(100 + rank, rank).steps(10, 20).setting("threads", "8").setting("cpus", "16")
    (sign,) = told(run)
    assert sign.level == "deduced"
    assert "4 ranks compute with 32 threads together" in sign.what
    assert sign.remedies[0].what == "Compute with 4 threads"


def test_a_process_that_says_no_threads_says_nothing() -> None:
    assert told(TimedRun().steps(10, 20).setting("cpus", "2")) == []
