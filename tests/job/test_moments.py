"""What a hook timed over a whole run, as seconds of the job ledger, with the truth planted."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whyidle.causes import all_causes
from whyidle.diagnose import diagnose
from whyidle.diagnosis import Diagnosis, Finding
from whyidle.errors import UsageError
from whyidle.gate import check_judged, exceeded, parse_limits
from whyidle.job_records import JobDevice
from whyidle.model import MOMENTS, SAMPLES, Evidence, SourceInfo, frame
from whyidle.moment_stories import MS, TimedRun
from whyidle.views import Views

ORIGIN = 1_700_000_000_000_000_000


def told(evidence: Evidence) -> Diagnosis:
    found = diagnose(evidence)
    assert found.crashed == []
    return found


def only_device(diagnosis: Diagnosis) -> JobDevice:
    assert diagnosis.job is not None
    (device,) = diagnosis.job.devices
    return device


def lost(diagnosis: Diagnosis) -> dict[str, float]:
    assert diagnosis.job is not None
    return {row.cause: round(row.lost_s, 9) for row in diagnosis.job.ledger}


def finding(diagnosis: Diagnosis, cause: str) -> Finding:
    (found,) = (f for f in diagnosis.findings if f.cause == cause and f.ledger == "job")
    return found


def test_steps_are_busy_but_for_their_wait_and_the_wait_is_the_loaders() -> None:
    # 20 steps of 100 ms, 60 ms of each in the loader; no start-up, no end.
    found = told(TimedRun().steps(20, 100, wait=60).evidence())
    device = only_device(found)
    assert device.meter == "training_steps"
    assert (device.wall_s, device.busy_s, device.idle_s, device.unknown_s) == (2.0, 0.8, 1.2, 0.0)
    assert (device.samples, device.period_s) == (20, 0.1)
    assert lost(found) == {"data_loading.loader_workers_too_few": 1.2}


def test_the_line_of_the_data_loader_is_where_the_wait_is_lost() -> None:
    story = TimedRun().site("loader", "data.py", 7, num_workers=0)
    found = told(story.steps(20, 100, wait=60).evidence())
    (place,) = finding(found, "data_loading.loader_workers_too_few").where
    assert (place.file, place.line) == ("data.py", 7)
    remedy = finding(found, "data_loading.loader_workers_too_few").remedies[0]
    assert "num_workers=0" in remedy.how


def test_of_two_loaders_no_line_is_named_without_knowing_which_was_waited_for() -> None:
    story = TimedRun().site("loader", "data.py", 7).site("loader", "data.py", 9)
    found = told(story.steps(20, 100, wait=60).evidence())
    (place,) = finding(found, "data_loading.loader_workers_too_few").where
    assert (place.file, place.line) == (None, None)


def test_of_two_loaders_the_one_that_steps_waited_for_most_is_named() -> None:
    story = TimedRun()
    for number, (line, waited_ns) in enumerate([(7, 10**6), (9, 10**9)]):
        about = {"loader": number, "num_workers": number, "waited_ns": waited_ns}
        story.site("loader_iterated", "data.py", 20, **about)
        story.site("loader_made", "data.py", line, **about)
    found = told(story.steps(20, 100, wait=60).evidence())
    (place,) = finding(found, "data_loading.loader_workers_too_few").where
    assert (place.file, place.line) == ("data.py", 9)


def test_a_step_that_was_overdue_is_idle_and_unexplained_and_told() -> None:
    # 10 steps of 100 ms, one of 70 s in which nothing is known, 10 more.
    story = TimedRun().steps(10, 100).pause("stalled", 70_000, "train.py", 5).steps(1, 0)
    found = told(story.steps(9, 100).evidence())
    device = only_device(found)
    assert (device.busy_s, device.idle_s, device.unexplained_s) == (1.9, 70.0, 70.0)
    assert lost(found) == {}
    assert any("ended no step for 70 s and stood at train.py:5" in note for note in found.notes)


def test_an_overdue_step_that_waited_for_its_loader_is_a_wait() -> None:
    story = TimedRun().steps(10, 100).pause("stalled", 70_000).steps(1, 0, wait=69_000)
    found = told(story.steps(9, 100).evidence())
    assert lost(found) == {"data_loading.loader_workers_too_few": 69.0}
    assert only_device(found).busy_s == 2.9


def test_what_comes_before_the_usual_length_of_the_first_step_is_start_up() -> None:
    # The first step ends 5.1 s after the import of torch; all others take 100 ms.
    found = told(TimedRun().passes(5000).steps(11, 100).evidence())
    assert lost(found) == {"data_loading.startup_preprocessing": 5.0}
    assert only_device(found).busy_s == 1.1


def test_of_a_single_step_nobody_knows_how_much_was_start_up() -> None:
    device = only_device(told(TimedRun().passes(5000).steps(1, 100).passes(400).evidence()))
    assert (device.wall_s, device.unknown_s, device.idle_s) == (5.5, 5.1, 0.4)


def test_pauses_of_every_kind_go_to_their_cause_with_their_line() -> None:
    story = TimedRun().steps(4, 100).pause("loader_start", 30, "train.py", 8, "loader 0")
    story.steps(10, 100).pause("checkpoint", 500, "train.py", 31).steps(10, 100)
    story.pause("evaluation", 700, "train.py", 33).steps(10, 100)
    story.pause("collector", 200, what="generation 2").steps(10, 100)
    story.pause("loader_start", 40, "train.py", 8, "loader 0").steps(1, 100)
    found = told(story.evidence())
    assert lost(found) == {
        "blind_spots.eval_pause": 0.7,
        "blind_spots.checkpoint_pause": 0.5,
        "communication.gc_jitter": 0.2,
        "data_loading.worker_restart_per_epoch": 0.04,
    }
    (place,) = finding(found, "blind_spots.checkpoint_pause").where
    assert (place.file, place.line) == ("train.py", 31)
    device = only_device(found)
    # The first start of the loader is no restart: 30 ms without a cause.
    assert (device.busy_s, round(device.unexplained_s, 9)) == (4.5, 0.03)


def test_a_wait_in_a_step_with_a_checkpoint_is_counted_beside_it() -> None:
    # Step 5 lasts 700 ms: 500 in torch.save, then 100 of its own and 100 of waiting.
    story = TimedRun().steps(5, 100).pause("checkpoint", 500, "a.py", 1).passes(100)
    found = told(story.steps(1, 100, wait=100).steps(4, 100).evidence())
    assert lost(found) == {
        "blind_spots.checkpoint_pause": 0.5,
        "data_loading.loader_workers_too_few": 0.1,
    }


def test_a_checkpoint_in_an_evaluation_is_counted_once() -> None:
    story = TimedRun().steps(5, 100)
    begin = ORIGIN + 500 * MS
    story.pause("evaluation", 1000, "a.py", 2).steps(5, 100)
    evidence = story.evidence()
    inner = frame(
        MOMENTS,
        [
            {
                "source": 0, "process": 100, "kind": "checkpoint", "start_ns": begin + 300 * MS,
                "end_ns": begin + 500 * MS, "length_ns": 200 * MS,
            }
        ],
    )  # fmt: skip
    both = pl.concat([evidence.table("moments"), inner])
    found = told(Evidence({"moments": both}, sources=evidence.sources))
    assert lost(found) == {"blind_spots.eval_pause": 0.8, "blind_spots.checkpoint_pause": 0.2}


def test_our_own_profiles_are_unknown_and_never_lost_and_the_report_says_so() -> None:
    story = TimedRun().steps(10, 100).pause("profiler", 300).steps(4, 100).pause("profiler", 900)
    found = told(story.steps(10, 100).evidence())
    device = only_device(found)
    assert (device.unknown_s, device.lost_s, device.busy_s) == (1.2, 0.0, 2.4)
    assert any("whyidle's own profiles took 1.2 s" in note for note in found.notes)


def test_a_hole_between_steps_is_unknown() -> None:
    evidence = TimedRun().steps(10, 100).evidence()
    rows = evidence.table("moments").filter(~pl.col("number").is_in([4, 5]).fill_null(False))
    device = only_device(told(Evidence({"moments": rows}, sources=evidence.sources)))
    assert (device.wall_s, device.busy_s, device.unknown_s) == (1.0, 0.8, 0.2)


def test_where_the_first_steps_are_missing_nothing_is_called_start_up() -> None:
    evidence = TimedRun().steps(10, 100).evidence()
    rows = evidence.table("moments").filter(~(pl.col("number") < 3).fill_null(False))
    found = told(Evidence({"moments": rows}, sources=evidence.sources))
    assert lost(found) == {}
    assert only_device(found).unknown_s == pytest.approx(0.3)


def test_half_an_hour_after_the_last_step_is_held_without_work() -> None:
    short = told(TimedRun().steps(10, 100).passes(60_000).evidence())
    assert lost(short) == {}
    assert any("went on for 60 s after the last step" in note for note in short.notes)
    long = told(TimedRun().steps(10, 100).passes(3_600_000).evidence())
    assert lost(long) == {"scheduling.idle_reservation": 3600.0}


def test_every_rank_is_a_device_and_several_are_summed() -> None:
    story = TimedRun().process(7, rank=0).steps(10, 100, wait=10)
    found = told(story.process(8, rank=1).steps(10, 100, wait=50).evidence())
    assert found.job is not None
    assert [(d.rank, d.process, round(d.lost_s, 9)) for d in found.job.devices] == [
        (0, 7, 0.1),
        (1, 8, 0.5),
    ]
    assert found.job.lost_s == pytest.approx(0.6)
    places = finding(found, "data_loading.loader_workers_too_few").where
    assert [(p.rank, round(p.lost_s, 9)) for p in places] == [(1, 0.5), (0, 0.1)]


def test_a_clean_run_loses_nothing() -> None:
    found = told(TimedRun().steps(50, 100).evidence())
    assert [f.cause for f in found.findings] == []
    assert only_device(found).busy_s == 5.0


def test_processes_that_made_no_step_are_no_devices() -> None:
    evidence = TimedRun().passes(1000).evidence()
    found = told(evidence)
    assert found.job is None


def sampled(evidence: Evidence, *shares: float, gpus: int = 1) -> Evidence:
    """The same with readings of GPUs, one a second from the origin on, of no named machine."""
    rows = [
        {
            "source": 0, "gpu": str(gpu), "device": gpu, "metric": "gpu_utilization",
            "t_ns": ORIGIN + (i + 1) * 1000 * MS, "value": share, "unit": "ratio",
        }
        for gpu in range(gpus)
        for i, share in enumerate(shares)
    ]  # fmt: skip
    tables = {**evidence.tables, "samples": frame(SAMPLES, rows)}
    info = SourceInfo("example", "example", None, len(rows), clock_error_ns=MS)
    return Evidence(tables, sources=(info,))


def test_where_the_gpu_was_sampled_its_readings_stay_the_meter() -> None:
    # 40 steps of 100 ms wait 30 ms each; the GPU is read as 60 % busy, 40 % idle: 1.6 s of 4 s.
    run = TimedRun().steps(40, 100, wait=30).evidence()
    found = told(sampled(run, 0.6, 0.6, 0.6, 0.6))
    device = only_device(found)
    assert device.meter == "gpu_utilization"
    assert (device.busy_s, device.idle_s) == pytest.approx((2.4, 1.6))
    # No more than what steps waited is the loader's: 1.2 s of the 1.6 s.
    assert lost(found) == {"data_loading.loader_workers_too_few": pytest.approx(1.2)}
    assert finding(found, "data_loading.loader_workers_too_few").level == "deduced"


def test_a_checkpoint_takes_the_idle_part_of_a_sampled_gpu() -> None:
    run = TimedRun().steps(20, 100).pause("checkpoint", 2000, "t.py", 3).steps(20, 100).evidence()
    found = told(sampled(run, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0))
    assert lost(found) == {"blind_spots.checkpoint_pause": 2.0}
    (place,) = finding(found, "blind_spots.checkpoint_pause").where
    assert (place.file, place.line, place.device) == ("t.py", 3, 0)


def test_of_two_gpus_and_one_process_no_seconds_are_placed_and_that_is_said() -> None:
    run = TimedRun().steps(40, 100, wait=30).evidence()
    found = told(sampled(run, 0.6, 0.6, 0.6, 0.6, gpus=2))
    assert found.job is not None
    assert [d.meter for d in found.job.devices] == ["gpu_utilization"] * 2
    assert lost(found) == {}
    assert any("Which training process ran on which sampled GPU" in n for n in found.notes)


def test_beside_gpus_that_never_worked_the_steps_are_the_meter() -> None:
    run = TimedRun().steps(40, 100, wait=30).evidence()
    found = told(sampled(run, 0.0, 0.0, 0.0, 0.0))
    assert found.job is not None
    meters = {d.meter: round(d.lost_s, 9) for d in found.job.devices}
    assert meters == {"gpu_utilization": 0.0, "training_steps": 1.2}


def test_a_limit_is_judged_by_the_whole_run_where_no_step_was_profiled() -> None:
    causes = list(all_causes())
    found = told(TimedRun().steps(20, 100, wait=60).evidence())
    limits = parse_limits(["data_loading>50%"], causes)
    check_judged(found, limits, causes)
    assert exceeded(found, limits) == [
        "data_loading is 60.0% of the recorded time, over the limit of 50%."
    ]
    unseen = parse_limits(["small_work.launch_bound_small_kernels>1%"], causes)
    with pytest.raises(UsageError, match="cannot show small_work"):
        check_judged(found, unseen, causes)


def test_a_diagnosis_of_a_timed_run_survives_json() -> None:
    found = told(TimedRun().process(7, rank=0).passes(300).steps(20, 100, wait=60).evidence())
    assert Diagnosis.from_json(found.to_json()) == found


KINDS = ["loader_start", "evaluation", "checkpoint", "collector", "profiler"]
stretches = st.one_of(
    st.tuples(st.just("step"), st.integers(1, 500), st.floats(0, 1)),
    st.tuples(st.sampled_from(KINDS), st.integers(0, 900), st.just(0.0)),
    st.tuples(st.just("passes"), st.integers(0, 900), st.just(0.0)),
)
runs = st.lists(st.lists(stretches, min_size=1, max_size=30), min_size=1, max_size=3)


def story_of(processes: list[list[tuple[str, int, float]]], by_ns: int = 0) -> Evidence:
    story = TimedRun(origin_ns=ORIGIN + by_ns)
    for pid, parts in enumerate(processes):
        story.process(pid + 1, rank=pid)
        for kind, ms, share in parts:
            if kind == "step":
                story.steps(1, ms, wait=round(ms * share, 3))
            elif kind == "passes":
                story.passes(ms)
            else:
                story.pause(kind, ms, "train.py", 3)
    return story.evidence()


@given(runs)
def test_wall_is_busy_idle_and_unknown_and_also_what_became_of_it(processes) -> None:
    made = [pid for pid, parts in enumerate(processes) if any(p[0] == "step" for p in parts)]
    found = told(story_of(processes)).job
    if not made:
        assert found is None
        return
    assert found is not None
    assert [d.rank for d in found.devices] == made
    for device in found.devices:
        parts = processes[device.rank or 0]
        assert device.wall_s == pytest.approx(sum(ms for _, ms, _ in parts) / 1e3)
        assert min(device.busy_s, device.idle_s, device.unknown_s) >= 0
        assert min(device.useful_s, device.lost_s, device.unexplained_s) >= 0
        whole = pytest.approx(device.wall_s, rel=1e-9)
        assert device.busy_s + device.idle_s + device.unknown_s == whole
        left = device.useful_s + device.lost_s + device.unexplained_s + device.unknown_s
        assert left == whole
        ours = sum(ms for kind, ms, _ in parts if kind == "profiler") / 1e3
        assert device.unknown_s >= ours - 1e-9
    won_s = sum(row.lost_s for row in found.ledger)
    assert won_s == pytest.approx(found.lost_s, rel=1e-9, abs=1e-9)


@given(runs, st.integers(-(10**15), 10**15))
def test_the_ledger_is_the_same_on_another_clock(processes, by_ns: int) -> None:
    assert told(story_of(processes, by_ns)).job == told(story_of(processes)).job


@given(runs)
def test_pieces_lie_end_to_end_and_are_no_busier_than_they_are_long(processes) -> None:
    moments = Views(story_of(processes)).moments
    bounds = moments.devices.select("number", "start_ns", "end_ns").rows()
    for number, start, end in bounds:
        mine = moments.pieces.filter(pl.col("number") == number)
        edges = [start, *mine["end_ns"].to_list()]
        assert mine["start_ns"].to_list() == edges[:-1]
        assert edges[-1] == end
        lasted = mine["end_ns"] - mine["start_ns"]
        assert ((mine["busy_ns"] >= 0) & (mine["busy_ns"] <= lasted)).fill_null(True).all()
