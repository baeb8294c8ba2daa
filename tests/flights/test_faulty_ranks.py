"""Dumps of a simulated job with planted faults: who is named, and how surely."""

from __future__ import annotations

import random
from pathlib import Path

import polars as pl
import pytest

from tests.flights.simulator import Fault, Job
from whyidle.diagnose import diagnose
from whyidle.diagnosis import Observation
from whyidle.flight_stories import flights_told
from whyidle.model import COLLECTIVES, GROUPS, Evidence, frame
from whyidle.readers import read


def told(folder: Path) -> list[Observation]:
    diagnosis = diagnose(read([folder]))
    assert [crash for crash in diagnosis.crashed if crash.cause.startswith("communication")] == []
    return [o for o in diagnosis.observations if o.cause.startswith("communication.")]


def named(observations: list[Observation], cause: str, level: str | None = None) -> set[int | None]:
    return {
        place.rank
        for observation in observations
        if observation.cause == f"communication.{cause}" and level in (None, observation.level)
        for place in observation.where
    }


def test_a_job_that_ended_well_shows_no_fault(tmp_path: Path) -> None:
    assert told(Job(only_active=False).write(tmp_path / "dumps")) == []


@pytest.mark.parametrize("only_active", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_a_host_that_stops_is_deduced_whatever_the_others_wait_in(
    seed: int, only_active: bool, tmp_path: Path
) -> None:
    draw = random.Random(seed)
    rank, at = draw.randrange(8), draw.randrange(9, 16)
    job = Job(faults={rank: ("host_stops", at)}, only_active=only_active)
    if job.program(rank)[at - 1][1] == "sync":
        found = told(job.write(tmp_path / "dumps"))
        assert named(found, "rank_absent", "deduced") == {rank}
    else:
        found = told(job.write(tmp_path / "dumps"))
        assert rank in named(found, "rank_absent")
        assert all(o.cause == "communication.rank_absent" for o in found)


@pytest.mark.parametrize("kind", ["unreadable", "host_stops"])
@pytest.mark.parametrize("seed", range(5))
def test_two_faulty_ranks_are_named_with_any_innocent_dumps_missing(
    kind: Fault, seed: int, tmp_path: Path
) -> None:
    draw = random.Random(100 + seed)
    faulty = draw.sample(range(8), 2)
    starts = [len(Job(steps=1).program(rank)) for rank in range(8)]  # first operation of step two
    at = {rank: starts[rank] - (3 if kind == "unreadable" else 0) for rank in faulty}
    job = Job(faults={rank: (kind, at[rank]) for rank in faulty})
    innocent = [rank for rank in range(8) if rank not in faulty]
    found = told(job.write(tmp_path / "all"))
    assert named(found, "rank_absent", "deduced") == set(faulty)
    gone = tuple(draw.sample(innocent, 2))
    some = told(job.write(tmp_path / "some", gone))
    sure = named(some, "rank_absent", "deduced")
    assert sure <= set(faulty)
    assert sure or set(faulty) & named(some, "rank_absent")


def test_steadily_late_ranks_are_told_by_durations_and_by_clocks() -> None:
    evidence = flights_told(ranks=4, collectives=20, done=20, late={1: 8_000_000})
    (one,) = [o for o in diagnose(evidence).observations if o.cause.endswith("rank_late")]
    assert (one.level, one.where[0].rank) == ("deduced", 1)
    assert "8 ms" in one.what
    table = evidence.table("collectives").with_columns(
        pl.lit(None, dtype=pl.Int64).alias("duration_ns"),
        # the clock of rank 2's host is 3 s ahead; that is no lateness
        *(
            pl.col(c) + pl.when(pl.col("rank") == 2).then(3_000_000_000).otherwise(0)
            for c in ("created_ns", "completed_ns")
        ),
    )
    moved = Evidence({**evidence.tables, "collectives": table}, evidence.facts, evidence.sources)
    (one,) = [o for o in diagnose(moved).observations if o.cause.endswith("rank_late")]
    assert (one.level, one.where[0].rank) == ("suspected", 1)
    assert "8 ms" in one.what


@pytest.mark.parametrize("rank", range(8))
def test_a_crashed_rank_without_a_dump_is_suspected_alone(rank: int, tmp_path: Path) -> None:
    start = len(Job(steps=1).program(rank))
    found = told(Job(faults={rank: ("crash", start)}).write(tmp_path / "dumps"))
    assert named(found, "rank_absent", "deduced") == set()
    assert named(found, "rank_absent", "suspected") == {rank}
    (one,) = found
    assert f"Rank {rank} left no dump" in one.what


def test_a_device_that_stops_is_named_where_dumps_tell_what_began(tmp_path: Path) -> None:
    start = len(Job(steps=1).program(5))
    faults: dict[int, tuple[Fault, int]] = {5: ("device_stops", start + 4)}
    found = told(Job(faults=faults, says_started=True).write(tmp_path / "dumps"))
    assert named(found, "rank_absent", "deduced") == {5}
    assert "device has not begun it" in found[0].what
    unsure = told(Job(faults=faults).write(tmp_path / "without"))
    assert {o.level for o in unsure} == {"suspected"}
    assert named(unsure, "rank_absent", "deduced") == set()


@pytest.mark.parametrize("kind", ["other_call", "size"])
def test_a_rank_that_calls_something_else_is_in_the_minority(kind: Fault, tmp_path: Path) -> None:
    program = Job().program(6)
    at = next(i for i, op in enumerate(program) if op[0] == "0")
    found = told(Job(faults={6: (kind, at)}).write(tmp_path / "dumps"))
    assert named(found, "collective_mismatch") == {6}
    (one,) = found
    assert one.level == "seen"
    assert "Rank 6 is in the minority" in one.what
    assert one.where[0].file == "/proj/train.py"


def test_a_rank_that_skips_a_collective_is_a_mismatch_and_not_absent(tmp_path: Path) -> None:
    job = Job(replicas=3)
    at = next(i for i, op in enumerate(job.program(1)) if op[1] == "nccl:_reduce_scatter_base")
    job.faults = {1: ("skips", at)}
    found = told(job.write(tmp_path / "dumps"))
    assert named(found, "collective_mismatch") == {1}
    assert named(found, "rank_absent", "deduced") == set()


def test_two_ranks_that_enter_two_groups_in_opposite_order_wait_for_each_other() -> None:
    evidence = flights_told(ranks=2, collectives=1, done=0)
    table = evidence.table("collectives").with_columns(
        pl.when(pl.col("rank") == 0).then(pl.lit("A")).otherwise(pl.lit("B")).alias("group")
    )
    groups = pl.concat(
        [
            evidence.table("groups").with_columns(
                pl.lit(name).alias("group"),
                pl.when(pl.col("rank") == first).then(1).otherwise(0).alias("last_enqueued"),
                pl.lit(0).alias("last_completed"),
            )
            for first, name in enumerate("AB")
        ]
    )
    tables = {"collectives": frame(COLLECTIVES, table), "groups": frame(GROUPS, groups)}
    found = diagnose(Evidence(tables, evidence.facts, evidence.sources))
    (one,) = [o for o in found.observations if o.cause == "communication.rank_absent"]
    assert one.level == "suspected"
    assert "Ranks 0 and 1 wait for each other" in one.what
