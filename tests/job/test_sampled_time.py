"""What a series of readings says of a GPU's time, with seconds counted by hand."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from whyidle.diagnose import diagnose
from whyidle.diagnosis import Diagnosis
from whyidle.job_records import JobDevice, JobLedger
from whyidle.model import SAMPLES, Evidence, SourceInfo, frame
from whyidle.sampled_stories import GIB, Sampling

ORIGIN = 1_700_000_000_000_000_000


def ledger(evidence: Evidence) -> JobLedger:
    found = diagnose(evidence)
    assert found.crashed == []
    assert found.job is not None
    return found.job


def only_device(evidence: Evidence) -> JobDevice:
    (device,) = ledger(evidence).devices
    return device


def both(*parts: Evidence) -> Evidence:
    """Several sources one below the other, as readers give them."""
    tables: dict[str, list[pl.DataFrame]] = {}
    for number, part in enumerate(parts):
        for name, table in part.tables.items():
            own = table.with_columns(pl.lit(number, pl.UInt16).alias("source"))
            tables.setdefault(name, []).append(own)
    sources = tuple(source for part in parts for source in part.sources)
    return Evidence({name: pl.concat(t) for name, t in tables.items()}, sources=sources)


def test_every_reading_stands_for_the_period_that_ends_at_it() -> None:
    # 30 readings at 40 % and 10 at 100 %, 10 s each: 120 + 100 of 400 s busy.
    story = Sampling(period_s=10).runs(300, gpu_utilization=0.4).runs(100, gpu_utilization=1.0)
    device = only_device(story.evidence())
    assert (device.wall_s, device.busy_s, device.idle_s) == (400.0, 220.0, 180.0)
    assert (device.unknown_s, device.samples, device.period_s) == (0.0, 40, 10.0)
    assert (device.start_ns, device.end_ns) == (0, 400 * 10**9)


def test_a_gap_in_the_readings_is_unknown_and_not_idle() -> None:
    # After 600 s without a reading the next one stands for its own 10 s only.
    story = Sampling(period_s=10).runs(100, gpu_utilization=1.0).skips(600)
    device = only_device(story.runs(100, gpu_utilization=1.0).evidence())
    assert (device.wall_s, device.busy_s, device.idle_s) == (800.0, 200.0, 0.0)
    assert device.unknown_s == 600.0


def test_a_reading_that_is_a_little_late_stands_for_all_the_time_since_the_last() -> None:
    story = Sampling(period_s=10).runs(100, gpu_utilization=1.0).skips(15)
    device = only_device(story.runs(100, gpu_utilization=1.0).evidence())
    assert (device.wall_s, device.busy_s, device.unknown_s) == (215.0, 215.0, 0.0)


def test_a_reading_without_a_value_is_unknown_and_zero_is_idle() -> None:
    story = Sampling(period_s=10).runs(100, gpu_utilization=None).runs(200, gpu_utilization=0.0)
    device = only_device(story.runs(100, gpu_utilization=1.0).evidence())
    assert (device.busy_s, device.idle_s, device.unknown_s) == (100.0, 200.0, 100.0)


def test_a_partitioned_gpu_without_utilisation_is_unknown_and_that_is_said() -> None:
    story = Sampling(period_s=10).runs(100, gpu_utilization=None, power=434.0)
    found = diagnose(story.setting("mig_mode", "Enabled").evidence())
    assert found.job is not None
    assert (found.job.wall_s, found.job.unknown_s, found.job.idle_s) == (100.0, 100.0, 0.0)
    (note,) = [note for note in found.notes if "unknown" in note]
    assert "GPU 0" in note
    assert "MIG" in note


def test_an_instance_of_a_partitioned_gpu_is_judged_by_its_engine() -> None:
    story = Sampling(period_s=10).runs(100, gpu_utilization=None, graphics_engine_active=0.25)
    device = only_device(story.evidence())
    assert (device.meter, device.busy_s, device.idle_s) == ("graphics_engine_active", 25.0, 75.0)


def test_an_engine_counter_that_reads_zero_at_high_power_has_failed() -> None:
    # Profiling counters are known to fall to 0 while the GPU works.
    at_work = {"graphics_engine_active": 0.9, "power": 650.0, "power_limit": 700.0}
    failed = at_work | {"graphics_engine_active": 0.0}
    story = Sampling(period_s=10).runs(100, **at_work).runs(100, **failed)
    device = only_device(story.evidence())
    assert (device.busy_s, device.idle_s, device.unknown_s) == (90.0, 10.0, 100.0)


def test_a_share_far_above_one_is_no_share() -> None:
    story = Sampling(period_s=10).runs(100, gpu_utilization=1.0).runs(100, gpu_utilization=93.0)
    assert only_device(story.evidence()).unknown_s == 100.0


def test_a_few_snapshots_are_no_account_of_time() -> None:
    story = Sampling(period_s=10).runs(20, gpu_utilization=1.0)
    found = diagnose(story.evidence())
    assert found.job is None
    assert any("snapshots" in note for note in found.notes)


def test_readings_without_a_clock_have_no_seconds() -> None:
    story = Sampling()
    for _ in range(50):
        story.reads("gpu_utilization", 1.0, None)
    assert diagnose(story.evidence()).job is None


def test_readings_hours_apart_say_nothing_of_the_hours_between() -> None:
    story = Sampling(period_s=3600).runs(4 * 3600, gpu_utilization=1.0)
    device = only_device(story.evidence())
    # Each stands for one second, the longest that the driver's meter looks back on.
    assert (device.busy_s, device.idle_s) == (4.0, 0.0)
    assert device.unknown_s == 3 * 3599.0


def test_two_sources_of_one_gpu_are_one_account() -> None:
    one = Sampling(period_s=10).runs(300, gpu_utilization=0.5).evidence()
    two = Sampling(period_s=10).runs(300, power=300.0, memory_used=GIB).evidence()
    assert only_device(both(one, two)).wall_s == 300.0


def test_the_same_index_on_two_machines_is_two_gpus() -> None:
    one = Sampling(host="a").runs(300, gpu_utilization=1.0).evidence()
    two = Sampling(host="b").runs(300, gpu_utilization=0.5).evidence()
    found = ledger(both(one, two))
    assert [(d.host, d.busy_s) for d in found.devices] == [("a", 300.0), ("b", 150.0)]
    assert found.wall_s == 600.0


def test_files_without_machine_of_the_same_time_are_of_two_machines_and_that_is_said() -> None:
    one = Sampling(host=None).runs(300, gpu_utilization=1.0).evidence()
    two = Sampling(host=None).runs(300, gpu_utilization=0.5).evidence()
    found = diagnose(both(one, two))
    assert found.job is not None
    assert sorted(d.busy_s for d in found.job.devices) == [150.0, 300.0]
    assert any("different machines" in note for note in found.notes)


def test_files_of_one_machine_end_to_end_are_one_gpu() -> None:
    one = Sampling(host=None).runs(300, gpu_utilization=1.0).evidence()
    later = Sampling(host=None, origin_ns=ORIGIN + 300 * 10**9).runs(300, gpu_utilization=0.5)
    device = only_device(both(one, later.evidence()))
    assert (device.wall_s, device.busy_s) == (600.0, 450.0)


def test_a_uuid_joins_what_two_sources_number_differently() -> None:
    uuid = "GPU-5a0c1e2f-0001-4b5c-9d3e-77aa11bb22cc"
    rows = Sampling(host=None).runs(300, gpu_utilization=0.5).evidence().table("samples")
    first = rows.with_columns(pl.lit(uuid).cast(pl.Categorical).alias("gpu"))
    second = rows.with_columns(
        pl.lit(uuid.upper().replace("GPU", "GPU")).cast(pl.Categorical).alias("gpu"),
        pl.lit(None, pl.Int32).alias("device"),
        pl.lit("power").cast(pl.Categorical).alias("metric"),
        pl.lit(1, pl.UInt16).alias("source"),
    )
    infos = tuple(SourceInfo(n, "example", None, 30, clock_error_ns=1) for n in ("a", "b"))
    evidence = Evidence({"samples": frame(SAMPLES, pl.concat([first, second]))}, sources=infos)
    assert only_device(evidence).wall_s == 300.0


def test_what_the_training_logs_is_no_gpu() -> None:
    story = Sampling().runs(300, gpu_utilization=1.0).logs("train/loss", 0.5)
    assert len(ledger(story.evidence()).devices) == 1


def test_a_source_that_names_no_gpu_has_one() -> None:
    evidence = Sampling(host=None).runs(300, gpu_utilization=0.5).evidence()
    bare = evidence.table("samples").with_columns(
        pl.lit(None, pl.Categorical).alias("gpu"), pl.lit(None, pl.Int32).alias("device")
    )
    device = only_device(replace(evidence, tables={"samples": bare}))
    assert (device.gpu, device.device, device.busy_s) == (None, None, 150.0)


def test_the_shape_of_the_run_is_kept_for_the_report() -> None:
    story = Sampling(period_s=10).runs(600, gpu_utilization=0.8).runs(600, gpu_utilization=None)
    shares = only_device(story.runs(600, gpu_utilization=0.2).evidence()).shares
    assert len(shares) == 120
    assert set(shares[:39]) == {0.8}
    assert set(shares[41:79]) == {None}
    assert set(shares[81:]) == {0.2}


def of(found: Diagnosis, cause: str) -> float:
    assert found.job is not None
    return sum(row.lost_s for row in found.job.ledger if row.cause == cause)


def test_start_up_counts_from_when_memory_is_held() -> None:
    held = {"memory_used": 2 * GIB, "memory_total": 80 * GIB}
    story = Sampling(period_s=60)
    story.runs(600, gpu_utilization=0.0, memory_used=0.0, memory_total=80 * GIB)
    story.runs(900, gpu_utilization=0.0, **held).runs(1800, gpu_utilization=0.9, **held)
    found = diagnose(story.evidence())
    assert of(found, "data_loading.startup_preprocessing") == 900.0
    assert of(found, "scheduling.idle_reservation") == 0.0


def test_a_gap_inside_a_stretch_of_zero_starts_it_anew() -> None:
    # Twice 25 minutes at 0 % with 20 minutes of silence between: nothing lasted half an hour.
    held = {"memory_used": 20 * GIB, "memory_total": 80 * GIB}
    story = Sampling(period_s=60).runs(600, gpu_utilization=1.0, **held)
    story.runs(1500, gpu_utilization=0.0, **held).skips(1200)
    story.runs(1500, gpu_utilization=0.0, **held)
    assert of(diagnose(story.evidence()), "scheduling.idle_reservation") == 0.0


def test_a_free_gpu_without_memory_held_is_nobodys_reservation() -> None:
    story = Sampling(period_s=60)
    story.runs(3 * 3600, gpu_utilization=0.0, memory_used=4 * 2**20, memory_total=80 * GIB)
    found = diagnose(story.evidence())
    assert found.findings == []
    assert found.job is not None
    assert found.job.unexplained_s == 3 * 3600.0


def test_a_clock_below_its_most_at_the_power_limit_is_by_design() -> None:
    story = Sampling(period_s=10)
    story.runs(
        600, gpu_utilization=1.0, sm_clock=1.2e9, sm_clock_max=1.98e9, power=690.0,
        power_limit=700.0,
    )  # fmt: skip
    assert of(diagnose(story.evidence()), "scheduling.slow_gpu") == 0.0


def test_heat_named_by_the_driver_makes_a_slow_clock_deduced() -> None:
    story = Sampling(period_s=10)
    story.runs(600, gpu_utilization=1.0, sm_clock=0.99e9, sm_clock_max=1.98e9)
    story.setting("throttle.hw_thermal_slowdown", "Active")
    (finding,) = diagnose(story.evidence()).findings
    assert (finding.cause, finding.level) == ("scheduling.slow_gpu", "deduced")
    assert finding.lost_s == pytest.approx(300.0)


def test_full_use_at_low_power_without_work_before_is_not_called_stuck() -> None:
    story = Sampling(period_s=10)
    story.runs(1800, gpu_utilization=1.0, power=120.0, power_limit=700.0)
    found = diagnose(story.evidence())
    assert of(found, "communication.collective_stuck") == 0.0
    (seen,) = [o for o in found.observations if o.cause == "blind_spots.misread_meter"]
    assert (seen.level, seen.what) == (
        "suspected",
        "GPU 0 shows 100% utilisation and draws 120 of 700 W: little is computed.",
    )


def test_an_idle_link_is_no_fault() -> None:
    story = Sampling(period_s=10)
    story.runs(300, gpu_utilization=0.0, pcie_gen=1, pcie_gen_max=4)
    story.runs(300, gpu_utilization=0.9, pcie_gen=4, pcie_gen_max=4)
    assert diagnose(story.evidence()).observations == []
