"""Predictions against arithmetic that shares no code with the model."""

from __future__ import annotations

import heapq
import random

import pytest

from whyidle.data import predict
from whyidle.data.predict import Costs


def costs(**given: float) -> Costs:
    made: dict[str, float] = {
        "alone_s": 0.002, "worker_cpu_s": 0.002, "worker_wait_s": 0.0, "main_s": 0.0,
        "slowdown": 1.0, "cpus": 2.0, "spread": 0.03,
    }  # fmt: skip
    return Costs(**(made | given), batch=64)


def simulated(workers: int, wait_s: float, cpu_s: float, cpus: int, samples: int = 40_000) -> float:
    """Samples per second when each worker waits, queues for one of ``cpus``, and computes.

    All times are random (exponential); the queue is simulated event by event.
    """
    source = random.Random(7)

    def draw(mean: float) -> float:
        return source.expovariate(1 / mean)

    now, done, busy, queue = 0.0, 0, 0, 0
    events = [(draw(wait_s), "asks") for _ in range(workers)]
    heapq.heapify(events)
    while done < samples:
        now, what = heapq.heappop(events)
        if what == "asks":
            queue += 1
        else:
            busy, done = busy - 1, done + 1
            heapq.heappush(events, (now + draw(wait_s), "asks"))
        while queue and busy < cpus:
            queue, busy = queue - 1, busy + 1
            heapq.heappush(events, (now + draw(cpu_s), "done"))
    return done / now


@pytest.mark.parametrize(("workers", "wait_ms"), [(1, 4), (4, 4), (8, 4), (12, 4), (6, 1), (3, 10)])
def test_waiting_workers_queue_for_cpus_as_in_a_simulation(workers: int, wait_ms: float) -> None:
    found = predict.throughput(costs(worker_cpu_s=0.001, worker_wait_s=wait_ms / 1e3), workers, 2.0)
    assert found == pytest.approx(simulated(workers, wait_ms / 1e3, 0.001, 2), rel=0.03)


def test_workers_that_only_compute_are_limited_by_the_cpus() -> None:
    # 2 ms of CPU per sample: 500/s from one worker, and 1000/s from two CPUs, whatever workers.
    one, two = (predict.rate(costs(), workers) for workers in (1, 2))
    assert one.rate == pytest.approx(500, rel=0.01)
    assert two.rate == pytest.approx(1000, rel=0.01)
    assert two.bound == "the CPUs"


def test_the_training_process_takes_its_part_of_the_cpus() -> None:
    # 2 ms in a worker and 0.5 ms in the training process: two CPUs do 2 / 2.5 ms = 800/s.
    found = predict.rate(costs(main_s=0.0005), 2)
    assert found.rate == pytest.approx(800, rel=0.01)


def test_a_training_process_that_is_busy_with_every_sample_is_the_limit() -> None:
    found = predict.rate(costs(worker_cpu_s=0.0001, main_s=0.001, cpus=8.0), 4)
    assert found.rate == pytest.approx(1000, rel=0.03)
    assert found.bound == "the training process"


def test_a_quota_of_one_and_a_half_cpus_gives_one_and_a_half_times_one() -> None:
    found = predict.rate(costs(cpus=1.5), 4)
    assert found.rate == pytest.approx(750, rel=predict.CROWD_MOST)


def test_cpus_that_slow_each_other_down_count_only_when_all_work() -> None:
    slowed = costs(slowdown=1.25)
    assert predict.rate(slowed, 1).rate == pytest.approx(500, rel=0.01)
    assert predict.rate(slowed, 2).rate == pytest.approx(800, rel=0.01)


def test_without_workers_the_rate_is_what_one_process_does() -> None:
    assert predict.rate(costs(alone_s=0.004), 0).rate == pytest.approx(250)


def test_the_interval_holds_the_rate_and_grows_with_the_spread() -> None:
    narrow, wide = predict.rate(costs(), 2), predict.rate(costs(spread=0.2), 2)
    assert narrow.low < narrow.rate < narrow.high
    assert wide.high - wide.low > narrow.high - narrow.low


def test_the_pick_is_the_fewest_workers_within_three_percent() -> None:
    found = predict.rates(costs(cpus=4.0), range(9))
    chosen = predict.pick(found)
    best = max(one.rate for one in found)
    assert chosen.rate >= 0.97 * best
    assert all(one.rate < 0.97 * best for one in found if one.workers < chosen.workers)


def test_what_was_measured_is_not_predicted() -> None:
    # Samples in memory: without workers 50,000/s, and no number of workers comes near.
    ready = costs(alone_s=0.00002, worker_cpu_s=0.0002, main_s=0.00005)
    found = predict.rates(ready, range(5), {0: (50_000.0, 0.05), 1: (4_000.0, 0.05)})
    assert predict.pick(found).workers == 0
    assert [one.measured for one in found] == [True, True, False, False, False]


@pytest.mark.parametrize(
    ("workers", "step_ms", "share"),
    [(2, 64, 1.0), (2, 32, 0.5), (0, 64, 0.5), (0, 192, 0.75)],
)
def test_a_device_is_busy_while_it_need_not_wait(
    workers: int, step_ms: float, share: float
) -> None:
    # 64 samples at 1000/s take 64 ms: beside the step with workers, before it without.
    found = predict.Rate(workers, 1000.0, 900.0, 1100.0, "")
    assert predict.busy(found, 64, step_ms / 1e3) == pytest.approx(share)


def test_more_workers_than_cpus_are_looked_at_where_samples_wait() -> None:
    assert max(predict.candidates(2.0)) == 4
    assert max(predict.candidates(2.0, wait_share=0.8)) >= 10
    assert 7 in predict.candidates(2.0, (7, None))
