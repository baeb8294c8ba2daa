"""Samples beside traces: one clock, one GPU, and what each says of the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl
import pytest

from whyidle.diagnose import diagnose
from whyidle.model import Evidence
from whyidle.readers.combine import combined
from whyidle.sampled_stories import GIB, Sampling
from whyidle.stories import Story

HOUR = 3600 * 10**9
ORIGIN = 1_700_000_000_000_000_000
SINCE_BOOT = 5 * 10**12


def traced(seconds: int = 20, *, rank: int | None = 0, device: int = 0, origin_ns: int = ORIGIN,
           busy: float = 1.0) -> Evidence:  # fmt: skip
    """A trace of steps of 1 s, each busy for a share of it."""
    story = Story(rank=rank, device=device, origin_ns=origin_ns, name=None)
    for number in range(seconds):
        at = number * 1_000_000
        story.step(number, at, at + 1_000_000)
        story.op("aten::mm", at, at + 20)
        story.launch("gemm", (at + 1, at + 5), (at + 10, at + 10 + round(busy * 999_990)))
    return story.evidence()


def sampled(*, by_ns: int = 0, naive: bool = False, share: float = 1.0, seconds: int = 300,
            gpu: int = 0, **more: float) -> Evidence:  # fmt: skip
    """Readings each second, from 100 s before the trace begins, stamped ``by_ns`` later."""
    error = None if naive else 10**9
    story = Sampling(
        period_s=1, origin_ns=ORIGIN - 100 * 10**9 + by_ns, clock_error_ns=error, host="node1"
    )
    return story.runs(seconds, gpu, gpu_utilization=share, **more).evidence()


def notes(evidence: Evidence) -> list[str]:
    return [note for source in evidence.sources for note in source.notes]


def test_samples_settings_and_links_need_no_rank_beside_ranked_traces() -> None:
    parts = [traced(rank=0), traced(rank=1), sampled()]
    found = diagnose(combined(parts))
    assert found.crashed == []
    assert {d.rank for d in found.devices} == {0, 1}
    assert found.job is not None


def test_a_name_like_rank3_gives_samples_no_rank() -> None:
    part = sampled()
    named = replace(part, sources=(replace(part.sources[0], path="rank3.csv"),))
    together = combined([traced(rank=0), named])
    assert [source.rank for source in together.sources] == [0, None]


def test_samples_alone_combine_without_any_trace() -> None:
    one = sampled()
    two = Sampling(host="node1").setting("name", "NVIDIA H200").evidence()
    (device,) = diagnose(combined([one, two])).job.devices  # type: ignore[union-attr]
    assert device.name == "NVIDIA H200"


@pytest.mark.parametrize("hours", [-8, 0, 2, 9])
def test_local_time_is_placed_by_the_one_whole_hour_in_which_it_overlaps(hours: int) -> None:
    together = combined([traced(), sampled(by_ns=hours * HOUR, naive=True)])
    (source,) = (s for s in together.sources if s.clock_error_ns is not None)
    assert source.clock_offset_ns == -hours * HOUR
    assert source.clock_error_ns == 10**9  # the time between readings
    zone = f"UTC{hours:+d}:00" if hours else "UTC"
    assert any(f"local time is taken to be {zone}," in note for note in notes(together))
    device = diagnose(together).job.devices[0]  # type: ignore[union-attr]
    assert device.start_ns == -100 * 10**9


def test_half_hour_zones_are_tried_when_no_whole_hour_fits() -> None:
    together = combined([traced(), sampled(by_ns=round(5.5 * HOUR), naive=True)])
    assert any("UTC+5:30" in note for note in notes(together))


def test_local_time_that_fits_several_zones_is_not_placed() -> None:
    long = sampled(by_ns=-HOUR, naive=True, seconds=3 * 3600)
    together = combined([traced(), long])
    assert together.sources[1].clock_error_ns is None
    assert any("cannot be placed" in note and "time zones" in note for note in notes(together))
    (device,) = diagnose(together).job.devices  # type: ignore[union-attr]
    assert (device.start_ns, device.end_ns) == (None, None)
    assert device.wall_s == 3 * 3600.0


def test_local_time_that_fits_no_zone_is_not_placed() -> None:
    together = combined([traced(), sampled(by_ns=40 * HOUR, naive=True)])
    assert any("in no time zone" in note for note in notes(together))


def test_a_trace_on_a_clock_of_its_own_is_not_compared() -> None:
    together = combined([traced(origin_ns=SINCE_BOOT), sampled()])
    assert together.sources[1].clock_error_ns is None
    assert any("do not count their time from 1970" in note for note in notes(together))


def test_readings_of_another_day_are_told_apart_from_the_trace() -> None:
    together = combined([traced(), sampled(by_ns=40 * HOUR)])
    assert any("no reading was taken while" in note for note in notes(together))


def test_one_gpu_on_both_sides_is_the_same_gpu() -> None:
    (device,) = diagnose(combined([traced(rank=3), sampled()])).job.devices  # type: ignore[union-attr]
    assert (device.rank, device.matched) == (3, "the only GPU sampled and the only one traced")


def test_another_model_is_another_gpu() -> None:
    samples = sampled()
    named = Sampling(host="node1").setting("name", "NVIDIA L4").evidence()
    trace = Story(origin_ns=ORIGIN, name="NVIDIA H200")
    trace.step(0, 0, 1000).op("aten::mm", 0, 20).launch("gemm", (1, 5), (10, 1000))
    found = diagnose(combined([trace.evidence(), samples, named]))
    assert found.job is not None
    assert found.job.devices[0].matched is None
    assert any("not known" in note for note in found.notes)


def _eight(devices: Sequence[int], gpus: Sequence[int]) -> Evidence:
    story = Sampling(period_s=1, origin_ns=ORIGIN - 100 * 10**9, host="node1")
    for gpu in gpus:
        story.runs(300, gpu, gpu_utilization=1.0)
    traces = [traced(rank=rank, device=device) for rank, device in enumerate(devices)]
    return combined([*traces, story.evidence()])


def test_every_gpu_of_a_machine_traced_under_its_own_index_is_matched() -> None:
    found = diagnose(_eight([0, 1, 2], [0, 1, 2]))
    assert [(d.device, d.rank) for d in found.job.devices] == [(0, 0), (1, 1), (2, 2)]  # type: ignore[union-attr]


def test_an_index_that_may_be_renumbered_is_not_trusted() -> None:
    found = diagnose(_eight([0], [0, 1, 2]))
    assert found.job is not None
    assert {d.matched for d in found.job.devices} == {None}
    assert any("numbers GPUs as the process sees them" in note for note in found.notes)


def test_more_sampled_than_traced_work_points_to_another_process() -> None:
    # The trace is busy for half of each second, the readings say all of it.
    found = diagnose(combined([traced(busy=0.5), sampled(share=1.0)]))
    (sign,) = [o for o in found.observations if o.cause == "scheduling.gpu_sharing"]
    assert sign.level == "suspected"
    assert sign.what == (
        "GPU 0 was busy for 100% of 20 s by its readings, and the traced process for 50%."
    )


def test_equal_sampled_and_traced_work_points_to_nobody() -> None:
    found = diagnose(combined([traced(busy=0.5), sampled(share=0.5)]))
    assert [o for o in found.observations if o.cause == "scheduling.gpu_sharing"] == []


def test_a_clock_held_down_while_tracing_costs_the_window_its_compute() -> None:
    low = {"sm_clock": 0.99e9, "sm_clock_max": 1.98e9}
    found = diagnose(combined([traced(busy=0.5), sampled(share=0.6, **low)]))
    (window,) = [f for f in found.findings if f.ledger == "window" and "slow_gpu" in f.cause]
    # Half of each of 20 seconds computed, at half the clock.
    assert window.lost_s == pytest.approx(20 * 0.5 * 0.5, rel=1e-4)
    assert window.level == "suspected"
    (job,) = [f for f in found.findings if f.ledger == "job" and "slow_gpu" in f.cause]
    assert job.lost_s == pytest.approx(300 * 0.6 * 0.5)


def test_window_seconds_do_not_change_when_samples_come_along() -> None:
    alone = diagnose(traced(busy=0.5))
    beside = diagnose(combined([traced(busy=0.5), sampled(share=0.5, memory_used=GIB)]))
    assert beside.devices == alone.devices
    assert beside.ledger == alone.ledger
    assert beside.share_lost() == alone.share_lost()


def test_samples_keep_their_own_order_of_time_after_the_move() -> None:
    together = combined([traced(), sampled(by_ns=2 * HOUR, naive=True)])
    times = together.table("samples").filter(pl.col("t_ns").is_not_null())["t_ns"]
    assert times.is_sorted()
