"""On recorded traces the replay of no change meets the step, and predictions meet real pairs."""

from __future__ import annotations

import statistics
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import whyidle
from tests.real.corpus import path_of
from whyidle.diagnosis import Diagnosis, Gain
from whyidle.gain.effects import unchanged
from whyidle.gain.predict import begins
from whyidle.partial import merged, partial_of

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "traces"

RESNET_0 = "kineto__samples__resnet50_num_workers_0__worker0.1623143089861.pt.trace.json.gz"
RESNET_4 = "kineto__samples__resnet50_num_workers_4__worker0.1623212756351.pt.trace.json.gz"
DDP = "hta__df_index_resolver__df_index_resolver.json.gz"
STEPPED = (
    DDP,
    "hta__negative_queue_length_values_check__rank0.json.gz",
    "hta__ns_resolution_trace__rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
    "hta__trace_diff__control__control.json.gz",
    RESNET_0,
    RESNET_4,
    "lens__mi300__resnet_act_checkpoint.json.gz",
)
"""Every recorded trace of the evidence with at least three steps."""


@cache
def told(path: Path) -> Diagnosis:
    """The diagnosis of one trace or folder of ranks."""
    return whyidle.diagnose(whyidle.read(path))


def first_gain(said: Diagnosis, cause: str) -> Gain:
    """The gain of the first remedy of a cause."""
    (finding,) = (f for f in said.findings if f.cause == cause)
    gain = finding.remedies[0].gain
    assert gain is not None
    return gain


@pytest.mark.parametrize("name", STEPPED)
def test_nothing_changed_replays_within_five_percent(name: str) -> None:
    said = told(path_of(name))
    assert said.crashed == []
    assert said.replay is not None
    assert abs(said.replay.error) <= 0.05
    assert said.replay.measured_step_s == pytest.approx(said.devices[0].step_s)
    assert 0 <= said.replay.constants_s <= said.replay.replayed_step_s


def test_half_of_the_traces_replay_within_three_percent() -> None:
    replays = [told(path_of(name)).replay for name in STEPPED]
    assert statistics.median(abs(r.error) for r in replays if r) <= 0.03


@pytest.mark.parametrize(("name", "within_us"), [(DDP, 20), (RESNET_0, 200), (RESNET_4, 200)])
def test_device_work_begins_where_the_graph_says(name: str, within_us: float) -> None:
    found = partial_of(whyidle.read(path_of(name))).replayable
    assert found is not None
    model = found.model
    derived = begins(model, [unchanged(model)])[model.hosts :, 0]
    off_us = np.abs(derived - model.device_work.start) / 1e3
    assert float(np.median(off_us)) <= within_us


def test_resnet_with_four_workers_takes_what_was_predicted_from_none() -> None:
    gain = first_gain(told(path_of(RESNET_0)), "data_loading.loader_workers_too_few")
    after_s = told(path_of(RESNET_4)).devices[0].step_s
    assert after_s is not None
    assert gain.step_s_high <= after_s <= gain.step_s_low
    assert gain.step_s_mid == pytest.approx(after_s, rel=0.10)
    assert gain.speedup_high <= 1.6 * gain.speedup_low


def test_workers_promise_less_than_the_whole_loader_wait() -> None:
    said = told(path_of(RESNET_0))
    gain = first_gain(said, "data_loading.loader_workers_too_few")
    (device,) = said.devices
    waited = {f.cause: f.lost_s for f in said.findings}["data_loading.loader_workers_too_few"]
    assert device.step_s is not None
    assert device.step_s - gain.step_s_mid < waited / len(device.steps)


def test_the_plan_of_the_simulated_run_holds_what_its_fixed_twin_takes() -> None:
    before = told(EXAMPLES / "slow_loader_gpu_simulated.pt.trace.json.gz")
    after = told(EXAMPLES / "slow_loader_fixed_gpu_simulated.pt.trace.json.gz").devices[0]
    assert before.plan is not None
    per_step_s = after.wall_s / len(after.steps)  # its host runs ahead: the marks say less
    predicted = before.plan.predicted
    assert predicted.high * 0.99 <= per_step_s <= predicted.low
    assert predicted.mid == pytest.approx(per_step_s, rel=0.10)


def test_the_loader_on_a_cpu_gets_the_workers_that_its_short_step_asks_for() -> None:
    said = told(EXAMPLES / "slow_loader_cpu.pt.trace.json.gz")
    (finding,) = (f for f in said.findings if f.cause == "data_loading.loader_workers_too_few")
    assert finding.remedies[0].effect["workers"] == 16  # 54 ms to build, 4 ms for the rest
    gain = first_gain(said, finding.cause)
    assert 54e-3 / 16 * 0.9 <= gain.step_s_high <= gain.step_s_low <= 54e-3 / 16 * 1.7


def test_two_ranks_that_reduce_less_often_take_what_was_predicted() -> None:
    before = told(EXAMPLES / "accumulate_without_no_sync")
    after_s = told(EXAMPLES / "accumulate_without_no_sync_fixed").devices[0].step_s
    gain = first_gain(before, "communication.sync_every_microstep")
    assert after_s is not None
    assert gain.step_s_mid == pytest.approx(after_s, rel=0.10)
    assert gain.step_s_high <= after_s <= gain.step_s_low
    assert gain.speedup_high <= 1.6 * gain.speedup_low


@pytest.mark.parametrize("name", STEPPED)
def test_the_page_lists_every_trace_with_three_steps(name: str) -> None:
    assert name in (ROOT / "docs" / "gain.md").read_text()


def test_the_same_device_is_replayed_however_the_ranks_are_dealt_out() -> None:
    parts = [
        partial_of(whyidle.read(path))
        for path in sorted((EXAMPLES / "accumulate_without_no_sync").iterdir())
    ]
    whole = told(EXAMPLES / "accumulate_without_no_sync")
    apart = merged(parts)
    assert apart.replay == whole.replay
