"""What each step cost: the parts add up, and every step owns what it launched."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from tests.compare.training import training
from tests.laws.random_runs import runs
from whyidle.diagnose import diagnose
from whyidle.errors import NothingRecorded
from whyidle.model import Evidence
from whyidle.stories import Story


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(evidence=runs())
def test_the_parts_of_every_step_add_up_on_any_evidence(evidence: Evidence) -> None:
    try:
        found = diagnose(evidence)
    except NothingRecorded:
        return
    for cost in found.step_costs:
        states = cost.compute_s + cost.communication_s + cost.copy_s + cost.empty_s
        whole = cost.useful_s + cost.unexplained_s + sum(cost.lost_s.values())
        assert states == pytest.approx(cost.step_s, abs=1e-9)
        assert whole == pytest.approx(cost.step_s, abs=2e-9)


def test_losses_of_all_steps_are_those_of_the_ledger() -> None:
    found = diagnose(training(seed=1))
    by_step = sum(sum(cost.lost_s.values()) for cost in found.step_costs)
    assert by_step == pytest.approx(found.lost_s, rel=1e-6)


def test_the_loader_wait_of_each_step_is_its_own() -> None:
    found = diagnose(training(seed=1, jitter=0.0, loader_us=400))
    waits = [c.lost_s["data_loading.loader_workers_too_few"] for c in found.step_costs[1:]]
    assert waits == pytest.approx([400e-6] * len(waits), rel=0.03)


def test_a_host_that_runs_ahead_does_not_make_steps_look_short() -> None:
    story = Story()
    for number in range(6):
        story.step(number, number * 100, number * 100 + 100)
        call = number * 100 + 10
        story.op("aten::mm", call, call + 9)
        begin = 20 + number * 1000
        story.launch("gemm", (call + 1, call + 8), (begin, begin + 1000))
    found = diagnose(story.evidence())
    assert [round(c.step_s * 1e6) for c in found.step_costs][1:] == [1000] * 5
    assert found.kernels is not None
    (kernel,) = found.kernels.rows
    assert kernel.calls == 1 and kernel.per_step_s == pytest.approx([1e-3] * 4)


def test_kernels_stand_under_the_operators_and_ranges_around_their_launch() -> None:
    story = Story()
    story.step(0, 0, 1000)
    story.annotate("forward", 10, 500)
    story.op("aten::linear", 20, 100)
    story.op("aten::addmm", 30, 90)
    story.launch("gemm", (40, 50), (60, 460))
    found = diagnose(story.evidence())
    assert found.kernels is not None
    (kernel,) = found.kernels.rows
    assert kernel.path == ["forward", "aten::linear", "aten::addmm"]
    assert kernel.seconds == pytest.approx(400e-6)


def test_a_run_without_steps_keeps_its_kernels_as_a_whole() -> None:
    found = diagnose(training(seed=1, marked=False, steps=5, jitter=0.0))
    assert found.step_costs == []
    assert found.kernels is not None and found.kernels.steps is None
    conv = next(row for row in found.kernels.rows if row.name == "conv_fprop")
    assert conv.calls == 5 and conv.seconds == pytest.approx(1.5e-3)
    assert conv.per_step_s == []
