"""Two told runs side by side: what was planted is found, what was not is not."""

from __future__ import annotations

import msgspec
import pytest

from tests.compare.training import training
from whyidle.compare import compare
from whyidle.comparison import Comparison, Line
from whyidle.diagnose import diagnose
from whyidle.diagnosis import Diagnosis
from whyidle.model import Evidence

LOADER = "data_loading.loader_workers_too_few"
CONV = ("aten::conv2d", "conv_fprop", 300)
GEMM = ("aten::mm", "ampere_sgemm_tn", 200)
RELU = ("aten::relu", "relu_kernel", 50)


def compared(before: Evidence, after: Evidence) -> Comparison:
    return compare(diagnose(before), diagnose(after), ("before", "after"))


def line(found: Comparison, what: str) -> Line:
    (one,) = [x for x in (*found.causes, *found.states) if x.what == what]
    return one


def test_the_same_run_shows_no_difference() -> None:
    found = compared(training(seed=1), training(seed=1))
    assert found.same
    assert found.differences == []
    assert found.step is not None and found.step.how == "same"
    assert all(x.change == 0 for x in (*found.causes, *found.states))


def test_the_same_program_again_is_within_noise() -> None:
    alarms = 0
    for seed in range(8):
        found = compared(training(seed=2 * seed), training(seed=2 * seed + 1))
        assert not found.same
        assert found.step is not None and found.kernels is not None
        lines = (*found.causes, *found.states, *found.kernels.rows, found.step)
        alarms += any(x.verdict == "more than noise" for x in lines)
    assert alarms <= 2


def test_a_loader_made_faster_is_found_with_what_it_gained() -> None:
    found = compared(training(seed=1, loader_us=400), training(seed=2, loader_us=40))
    loader = line(found, LOADER)
    assert loader.verdict == "more than noise" and loader.how == "shrank"
    assert loader.change == pytest.approx(-360e-6, rel=0.05)
    assert loader.low is not None and loader.high is not None
    assert loader.low < -360e-6 < loader.high
    assert found.step is not None and found.step.verdict == "more than noise"
    assert found.step.ratio == pytest.approx(600 / 960, rel=0.03)
    assert found.step.ratio_low is not None and found.step.ratio_high is not None
    assert found.step.ratio_low < 600 / 960 < found.step.ratio_high
    assert line(found, "compute").verdict == "within noise"


def test_a_cause_that_is_gone_has_vanished_and_the_way_back_is_a_new_one() -> None:
    with_loader, without = training(seed=1), training(seed=2, loader_us=1)
    gone = line(compared(with_loader, without), LOADER)
    back = line(compared(without, with_loader), LOADER)
    assert (gone.verdict, back.verdict) == ("more than noise", "more than noise")
    assert gone.change is not None and back.change == pytest.approx(-gone.change)


def test_kernels_are_matched_by_operator_and_name() -> None:
    before = training(seed=1, kernels=(CONV, GEMM, RELU))
    after = training(seed=2, kernels=(("aten::conv2d", "conv_fprop", 150), GEMM, RELU))
    found = compared(before, after)
    assert found.kernels is not None and found.kernels.matched == 1
    first, *others = found.kernels.rows
    assert first.path == ["aten::conv2d"] and first.after_name == "conv_fprop"
    assert first.change == pytest.approx(-150e-6, rel=0.05)
    assert first.verdict == "more than noise"
    assert {x.verdict for x in others} == {"within noise"}


def test_another_kernel_at_the_same_place_is_a_replacement() -> None:
    after = training(seed=2, kernels=(CONV, ("aten::mm", "ampere_s1688gemm_tn", 60), RELU))
    found = compared(training(seed=1), after)
    assert found.kernels is not None
    (swapped,) = [x for x in found.kernels.rows if x.replaced]
    assert (swapped.before_name, swapped.after_name) == ("ampere_sgemm_tn", "ampere_s1688gemm_tn")
    assert swapped.change == pytest.approx(-140e-6, rel=0.05)
    assert found.kernels.matched < 1


def test_new_and_vanished_kernels_are_told() -> None:
    after = training(seed=2, kernels=(CONV, RELU, ("aten::gelu", "gelu_kernel", 120)))
    found = compared(training(seed=1), after)
    assert found.kernels is not None
    how = {x.before_name or x.after_name: x.how for x in found.kernels.rows}
    assert how["gelu_kernel"] == "appeared"
    assert how["ampere_sgemm_tn"] == "vanished"


def test_without_steps_shares_are_compared_and_nothing_is_told_from_noise() -> None:
    before, after = training(seed=1, marked=False), training(seed=2, marked=False, loader_us=40)
    found = compared(before, after)
    assert found.unit == "share" and found.step is None
    loader = line(found, LOADER)
    assert loader.before == pytest.approx(400 / 960, abs=0.05)
    assert loader.verdict == "cannot tell"
    assert any("No steps were marked before and after" in note for note in found.notes)


def test_runs_of_different_length_and_number_of_devices_are_compared_per_step_and_device() -> None:
    from whyidle.readers.combine import combined

    two = combined([training(seed=3, rank=0, steps=12), training(seed=4, rank=1, steps=12)])
    found = compared(training(seed=1), two)
    assert (found.before.devices, found.after.devices) == (1, 2)
    assert found.after.steps == 10
    loader = line(found, LOADER)
    assert loader.before == pytest.approx(loader.after, rel=0.05)
    assert any("1 against 2 devices" in note for note in found.notes)
    assert "devices" in {d.what for d in found.differences}


def test_other_versions_are_named() -> None:
    before = training(seed=1, versions={"torch": "2.6.0", "cuda": "12.4"})
    after = training(seed=1, versions={"torch": "2.7.1", "cuda": "12.4"})
    found = compared(before, after)
    assert [(d.what, d.before, d.after) for d in found.differences] == [
        ("version of torch", "2.6.0", "2.7.1")
    ]
    assert not found.same


def test_what_one_side_could_not_show_is_left_open() -> None:
    import msgspec

    from whyidle.diagnosis import NotJudged

    before, after = diagnose(training(seed=1)), diagnose(training(seed=2))
    blind = NotJudged(cause=LOADER, missing=["x"], record_with="y")
    before = msgspec.structs.replace(before, not_judged=[blind])
    found = compare(before, after, ("a", "b"))
    loader = line(found, LOADER)
    assert loader.before is None and loader.change is None and loader.verdict == "cannot tell"
    assert loader.note is not None and "not judged before" in loader.note


def test_a_diagnosis_saved_without_a_table_of_steps_still_compares() -> None:
    import msgspec

    old = [
        msgspec.structs.replace(d, step_costs=[], kernels=None)
        for d in (diagnose(training(seed=1)), diagnose(training(seed=2, loader_us=40)))
    ]
    found = compare(old[0], old[1], ("a", "b"))
    assert found.step is not None and found.step.verdict == "more than noise"
    assert found.kernels is None
    loader = line(found, LOADER)
    assert loader.change == pytest.approx(-360e-6, rel=0.1)
    assert loader.verdict == "cannot tell"


def test_a_comparison_survives_json_exactly() -> None:
    found = compared(training(seed=1), training(seed=2))
    assert Comparison.from_json(found.to_json()) == found


def test_the_order_of_reading_does_not_matter() -> None:
    saved = Diagnosis.from_json(diagnose(training(seed=1)).to_json())
    fresh = diagnose(training(seed=1))
    assert compare(saved, fresh, ("a", "b")).same


def test_runs_that_only_samples_saw_are_compared_by_shares_of_known_time() -> None:
    from tests.render.building import diagnosis as told
    from tests.render.building import job_of

    cause = "scheduling.idle_reservation"
    before = told([], [], job=job_of([(1000.0, 0.4, 300.0)], cause, shares=[0.4]))
    after = told([], [], job=job_of([(2000.0, 0.9, 100.0)], cause, shares=[0.9]))
    found = compare(before, after, ("a", "b"))
    idle = line(found, cause)
    assert idle.before == pytest.approx(300 / 940) and idle.after == pytest.approx(100 / 1980)
    assert idle.verdict == "cannot tell"
    assert (found.before.devices, found.after.devices) == (1, 1)


def test_signs_without_seconds_are_new_gone_or_as_before() -> None:
    from tests.render.building import diagnosis as told
    from tests.render.cases import signs_only

    both, none = signs_only(), told([], [])
    gone = compare(both, none, ("a", "b"))
    assert [(s.before is None, s.after is None) for s in gone.signs] == [(False, True)] * 2
    assert compare(both, both, ("a", "a")).same
    assert not gone.same


def test_steps_that_took_no_time_are_no_steps_to_compare() -> None:
    told = diagnose(training(seed=1))
    empty = [msgspec.structs.replace(cost, step_s=0.0) for cost in told.step_costs]
    odd = msgspec.structs.replace(told, step_costs=empty)
    for sides in ((odd, told), (told, odd)):
        found = compare(*sides, ("a", "b"))
        assert found.step is None and found.unit == "share"


def test_a_side_without_device_time_has_no_figures_rather_than_zeros() -> None:
    from tests.render.cases import signs_only

    told = diagnose(training(seed=1))
    found = compare(signs_only(), told, ("a", "b"))
    assert (found.before.seen_by, found.after.seen_by) == ("neither", "trace")
    assert found.states == []
    assert found.causes and all(x.before is None and x.change is None for x in found.causes)


def test_equal_signs_of_several_places_are_told_once() -> None:
    from tests.render.building import diagnosis as told
    from tests.render.cases import signs_only

    some = signs_only()
    twice = msgspec.structs.replace(some, observations=[*some.observations, *some.observations])
    found = compare(twice, told([], []), ("a", "b"))
    assert [s.before for s in found.signs] == [o.what for o in some.observations]
