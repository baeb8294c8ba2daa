"""How busy a GPU could at most be, against figures worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from tests.ceiling.stories import batch, evidence, op
from whyidle.ceiling import Ceiling, ceiling, loading_of, told
from whyidle.errors import UsageError
from whyidle.gpu_peaks import PEAKS, Peak, named

ROUND = Peak("Round", single=1e12, half=10e12, bandwidth=1e12)
LARGE = op("mm", [1000, 1000], [1000, 1000])
"""2e9 FLOP and 16 MB, so that its arithmetic takes longer than its bytes on ROUND."""


def worked_out(*arguments: object, **options: object) -> Ceiling:
    found = ceiling(*arguments, **options)  # type: ignore[arg-type]
    assert isinstance(found, Ceiling)
    return found


def test_two_workers_of_a_second_each_keep_a_gpu_busy_for_a_hundredth() -> None:
    told_by = [batch(n, n % 2, 1000) for n in range(8)]
    found = worked_out(evidence([LARGE], batches=told_by, steps=8, settings={"cpus": "8"}), ROUND)
    # 2e9 FLOP at 20 % and 60 % of 1e12 FLOP/s: 10 ms and 3.33 ms; a batch comes every 500 ms.
    assert found.step_s == pytest.approx((2e9 / 0.6e12, 2e9 / 0.2e12))
    assert found.loading.rate == pytest.approx(64)
    assert found.needed == pytest.approx((32 / 0.01, 32 * 0.6e12 / 2e9))
    assert found.busy == pytest.approx((2e9 / 0.6e12 / 0.5, 0.02))
    assert found.workers == (100, 300)
    said = " ".join(told(found))
    assert "The loader, 2 workers, could deliver at most 64 samples/s." in said
    assert "need 3,200 to 9,600 samples/s" in said
    assert "busy at most 0.7% to 2.0% of the time" in said
    assert "takes 100 to 300 workers as fast as these; the job may use 8 CPUs here" in said


def test_loading_in_the_training_process_lies_beside_the_step() -> None:
    told_by = [batch(n, None, 30) for n in range(5)]
    found = worked_out(evidence([LARGE], batches=told_by), ROUND)
    assert found.busy[1] == pytest.approx(10 / (10 + 30))
    assert "the training process itself" in told(found)[0]


def test_a_loader_that_is_fast_enough_leaves_the_gpu_all_its_time() -> None:
    found = worked_out(evidence([LARGE], batches=[batch(n, 0, 1) for n in range(5)]), ROUND)
    assert found.busy == (1, 1)
    assert not any("Keeping it busy" in line for line in told(found))


def test_workers_cannot_deliver_more_than_their_cpus_can_work() -> None:
    told_by = [batch(n, n % 8, 100) for n in range(32)]
    wide = loading_of(evidence([LARGE], batches=told_by, settings={"cpus": "16"}))
    narrow = loading_of(evidence([LARGE], batches=told_by, settings={"cpus": "1"}))
    assert wide is not None
    assert narrow is not None
    assert wide.seconds == pytest.approx(0.1 / 8)
    assert narrow.seconds == pytest.approx(0.025)  # a quarter of the batch is CPU time


def test_half_precision_is_judged_by_its_own_peak() -> None:
    wide = op("mm", [1000, 1000], [1000, 1000], type="c10::BFloat16")
    told_by = [batch(n, 0, 1000) for n in range(5)]
    found = worked_out(evidence([wide], batches=told_by), ROUND)
    assert found.step_s[1] == pytest.approx(2e9 / 2e12)
    assert "mostly in half precision" in told(found)[1]


def test_what_only_moves_memory_takes_its_bytes() -> None:
    told_by = [batch(n, 0, 1000) for n in range(5)]
    found = worked_out(evidence([op("add", [10**7], [10**7])], batches=told_by), ROUND)
    assert found.step_s[1] == pytest.approx(3 * 4 * 10**7 / 0.2e12)  # read two, write one


def test_tiny_operators_take_a_kernel_each() -> None:
    told_by = [batch(n, 0, 1000) for n in range(5)]
    found = worked_out(evidence([op("add", [1], [1])] * 10, batches=told_by), ROUND)
    assert found.step_s == pytest.approx((20e-6, 50e-6))


def test_several_batches_for_a_step_are_counted() -> None:
    told_by = [batch(n, 0, 100) for n in range(8)]
    found = worked_out(evidence([LARGE], batches=told_by, steps=4), ROUND)
    assert found.loading.batches_per_step == 2
    assert found.needed[0] == pytest.approx(64 / 0.01)


def test_batches_that_workers_made_ahead_are_no_batches_of_a_step() -> None:
    told_by = [batch(n, n % 8, 100) for n in range(4 + 2 * 8)]
    found = loading_of(evidence([LARGE], batches=told_by[:19], steps=4))
    assert found is not None
    assert found.batches_per_step == 1


def test_batches_of_an_evaluation_and_the_first_of_a_process_are_left_out() -> None:
    told_by = [batch(0, 0, 900), batch(1, 0, 100), batch(2, 0, 5000), batch(3, 0, 100)]
    found = loading_of(evidence([LARGE], batches=told_by, evaluations=[(1500, 2500)]))
    assert found is not None
    assert found.batch_s == pytest.approx(0.1)


def test_without_items_the_rate_is_told_in_batches() -> None:
    told_by = [batch(n, 0, 500, items=None) for n in range(5)]
    found = worked_out(evidence([LARGE], batches=told_by), ROUND)
    assert "at most 2 batches/s" in told(found)[0]


def test_what_is_lacking_is_said() -> None:
    assert "No batch" in str(ceiling(evidence([LARGE]), ROUND))
    told_by = [batch(n, 0, 500) for n in range(5)]
    assert "No step was profiled" in str(ceiling(evidence([], batches=told_by), ROUND))


@pytest.mark.parametrize(
    ("name", "known"),
    [("H200", "H200"), ("nvidia h200", "H200"), ("NVIDIA A100-SXM4-40GB", "A100 40GB"),
     ("rtx4090", "RTX 4090"), ("GeForce RTX 3090", "RTX 3090"), ("h100-pcie", "H100 PCIe")],
)  # fmt: skip
def test_a_gpu_is_known_however_it_is_spelt(name: str, known: str) -> None:
    assert named(name) is PEAKS[known]


def test_an_unknown_gpu_lists_those_that_are_known() -> None:
    with pytest.raises(UsageError, match="Known are B200, H200, H100") as refused:
        named("H9000")
    assert len(str(refused.value).splitlines()) == 2


def test_ranks_of_one_machine_share_its_cpus() -> None:
    told_by = [batch(n, n % 8, 100) for n in range(32)]
    alone = evidence([LARGE], batches=told_by, settings={"cpus": "2"})
    mine = alone.table("moments").with_columns(pl.lit(100, pl.Int64).alias("process"))
    other = mine.with_columns(
        pl.lit(101, pl.Int64).alias("process"), pl.lit(1, pl.Int32).alias("rank")
    )
    both = replace(alone, tables={**alone.tables, "moments": pl.concat([mine, other])})
    found, shared = loading_of(alone), loading_of(both)
    assert found is not None
    assert shared is not None
    assert (found.ranks, found.cpus, found.seconds) == (1, 2, pytest.approx(0.0125))
    assert (shared.ranks, shared.cpus, shared.seconds) == (2, 1, pytest.approx(0.025))
    assert "of each of 2 ranks" in told(worked_out(both, ROUND))[0]
