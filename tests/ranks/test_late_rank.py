"""A rank that comes late costs every waiting device its seconds, and the job once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ranks.told import EXPOSED, IMBALANCE, MS, finding, job, lost, only, with_clock
from whyidle.diagnose import diagnose
from whyidle.rank_stories import Ranks, side_by_side
from whyidle.stories import Story


def test_a_job_without_a_late_rank_has_only_communication() -> None:
    found = diagnose(job(None, 0))
    assert finding(found, IMBALANCE) is None
    # 1 ms of moving bytes, five steps, four devices
    assert lost(found, EXPOSED) == pytest.approx(5 * 4 * 1 * MS, rel=0.01)


@settings(max_examples=8, deadline=None)
@given(late=st.integers(0, 3), late_ms=st.integers(1, 9), steps=st.integers(3, 6))
def test_so_many_ms_late_cost_each_waiter_as_many_and_the_job_once(
    late: int, late_ms: int, steps: int
) -> None:
    found = diagnose(job(late, late_ms, steps=steps))
    told = finding(found, IMBALANCE)
    assert told is not None
    assert told.lost_s == pytest.approx(3 * steps * late_ms * MS, rel=0.01)
    assert told.job_cost_s == pytest.approx(steps * late_ms * MS, rel=0.01)
    assert {place.rank for place in told.where} == {late}
    for rank in range(4):
        own = 0.0 if rank == late else steps * late_ms * MS
        assert lost(found, IMBALANCE, rank) == pytest.approx(own, rel=0.01, abs=1e-9)
    assert lost(found, EXPOSED) == pytest.approx(steps * 4 * 1 * MS, rel=0.01)


def test_the_seconds_of_every_device_still_add_up() -> None:
    found = diagnose(job(2, 7))
    for device in found.devices:
        states_s = device.compute_s + device.communication_s + device.copy_s + device.empty_s
        assert states_s == pytest.approx(device.wall_s, rel=1e-9)
        parts_s = device.useful_s + device.lost_s + device.unexplained_s
        assert parts_s == pytest.approx(device.wall_s, rel=1e-9)
        rows = [r.lost_s for r in found.ledger if r.rank == device.rank]
        assert sum(rows) == pytest.approx(device.lost_s, rel=1e-9)


@pytest.mark.parametrize("by_ns", [-3, 40_000, 5_000_000_123, -86_400_000_000_000])
def test_a_clock_that_is_off_on_one_rank_changes_nothing(by_ns: int) -> None:
    plain, moved = diagnose(job(1, 6)), diagnose(with_clock(job(1, 6), 3, by_ns))
    assert {(r.rank, r.cause, r.state): r.lost_s for r in moved.ledger} == pytest.approx(
        {(r.rank, r.cause, r.state): r.lost_s for r in plain.ledger}
    )
    costs = [[f.job_cost_s for f in d.findings] for d in (plain, moved)]
    assert costs[0] == pytest.approx(costs[1], abs=1e-6)
    starts = [[d.start_ns for d in found.devices] for found in (plain, moved)]
    assert max(abs(a - b) for a, b in zip(*starts, strict=True)) <= 3_000
    said = [s.rank for s in moved.sources if any("clock moved" in note for note in s.notes)]
    assert said == ([3] if abs(by_ns) > 3_000 else [])


def test_rank_numbers_do_not_matter() -> None:
    plain, turned = diagnose(job(1, 6)), diagnose(job(2, 6))
    told = finding(turned, IMBALANCE)
    assert told is not None
    assert told.lost_s == pytest.approx(finding(plain, IMBALANCE).lost_s)  # type: ignore[union-attr]
    assert {place.rank for place in told.where} == {2}


def test_a_wait_for_a_rank_that_is_missing_stays_with_communication() -> None:
    found = diagnose(only(job(1, 8), {0, 2, 3}))
    assert finding(found, IMBALANCE) is None
    # three devices, five steps: 8 ms of waiting for nobody here and 1 ms of moving bytes
    assert lost(found, EXPOSED) == pytest.approx(3 * 5 * 9 * MS, rel=0.01)
    assert any("1 of 4 ranks are missing (rank 1)" in note for note in found.notes)


def test_one_rank_alone_says_that_others_are_needed() -> None:
    found = diagnose(only(job(1, 8), {0}))
    told = {n.cause for n in found.not_judged}
    assert {IMBALANCE, "communication.gc_jitter", "communication.pipeline_bubble"} <= told
    assert all(f.job_cost_s is None for f in found.findings)


def test_a_loader_that_keeps_one_rank_is_blamed_for_the_wait_of_all() -> None:
    stories = []
    for rank in range(3):
        story = Story(rank=rank)
        for number in range(4):
            at = number * 20_000
            wait = 8000 if rank == 2 else 0
            story.step(number, at, at + 20_000)
            if wait:
                name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
                story.annotate(name, at, at + wait)
            story.op("aten::mm", at + wait, at + wait + 10)
            begins = at + wait + (10 if wait or number == 0 else 0)
            call = (max(at + wait - 40, 0), max(at + wait - 30, 5)) if not wait else (
                at + wait + 2, at + wait + 8
            )  # fmt: skip
            story.launch("ampere_gemm_tn", call, (begins, at + wait + 10_000))
            story.op("c10d::allreduce_", at + wait + 20, at + wait + 30)
            run = (at + wait + 10_000, at + 20_000)
            story.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL",
                         (at + wait + 22, at + wait + 28), run, lane=20)  # fmt: skip
        stories.append(story)
    found = diagnose(side_by_side(stories))
    loader = finding(found, "data_loading.loader_workers_too_few")
    assert loader is not None
    # 8 ms a step on the late rank, and as long on the two that wait; the job is 8 ms later a step
    assert loader.lost_s == pytest.approx(4 * 3 * 8 * MS, rel=0.01)
    assert loader.job_cost_s == pytest.approx(4 * 8 * MS, rel=0.02)
    assert {place.rank for place in loader.where} == {2}


def test_a_gpu_on_which_the_same_kernels_take_longer_is_a_slow_gpu() -> None:
    told = Ranks(4)
    for _ in range(4):
        told.step([10_000, 10_000, 13_000, 10_000], slow=[1.0, 1.0, 1.3, 1.0])
    found = diagnose(told.evidence())
    slow = finding(found, "scheduling.slow_gpu")
    assert slow is not None
    assert slow.lost_s == pytest.approx(4 * 3 * 3 * MS, rel=0.02)
    assert slow.job_cost_s == pytest.approx(4 * 3 * MS, rel=0.02)
    assert {place.rank for place in slow.where} == {2}
    assert lost(found, IMBALANCE) == pytest.approx(0, abs=1e-4)
