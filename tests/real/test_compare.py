"""Recorded pairs side by side, against what their recordings say by themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

import whyidle
from tests.real.corpus import diagnosis_of, path_of
from whyidle.compare import compare
from whyidle.comparison import Comparison

LOADER = "data_loading.loader_workers_too_few"
ZERO_WORKERS = "kineto__samples__resnet50_num_workers_0__worker0.1623143089861.pt.trace.json.gz"
FOUR_WORKERS = "kineto__samples__resnet50_num_workers_4__worker0.1623212756351.pt.trace.json.gz"
BASE, TEST = "hta__trace_compare__base__base.json.gz", "hta__trace_compare__test__test.json.gz"
EXAMPLES = Path(__file__).resolve().parents[2] / "examples/traces"


def compared(before: str, after: str) -> Comparison:
    path_of(before), path_of(after)
    return compare(diagnosis_of(before), diagnosis_of(after), (before, after))


def test_resnet_with_four_workers_takes_a_step_of_126_5_instead_of_176_7_ms() -> None:
    found = compared(ZERO_WORKERS, FOUR_WORKERS)
    assert found.step is not None
    assert found.step.before_s == pytest.approx(0.1767, rel=0.01)
    assert found.step.after_s == pytest.approx(0.1265, rel=0.01)
    assert found.step.verdict == "more than noise" and found.step.how == "shrank"
    first = found.causes[0]
    assert first.what == LOADER and first.verdict == "more than noise"
    assert first.after is not None and first.after < 0.001
    assert found.kernels is not None and found.kernels.matched > 0.9


@pytest.mark.parametrize("name", [ZERO_WORKERS, FOUR_WORKERS, BASE])
def test_a_recording_against_itself_shows_no_difference(name: str) -> None:
    found = compared(name, name)
    assert found.same
    assert all(line.change in (0, None) for line in (*found.causes, *found.states))


def test_a_pair_with_one_kernel_removed_shows_that_kernel_and_leaves_noise_open() -> None:
    found = compared(BASE, TEST)
    assert found.step is not None and found.step.verdict in ("cannot tell", "within noise")
    assert found.kernels is not None
    changed = [row for row in found.kernels.rows if row.before_calls != row.after_calls]
    assert [(row.before_calls, row.after_calls) for row in changed] == [(1.5, 1.0)]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("slow_loader_cpu.pt.trace.json.gz", "slow_loader_fixed_cpu.pt.trace.json.gz"),
        (
            "slow_loader_gpu_simulated.pt.trace.json.gz",
            "slow_loader_fixed_gpu_simulated.pt.trace.json.gz",
        ),
    ],
)
def test_the_examples_and_their_fixed_twins_differ_by_the_loader(before: str, after: str) -> None:
    sides = [whyidle.diagnose(whyidle.read(EXAMPLES / name)) for name in (before, after)]
    found = compare(sides[0], sides[1], (before, after))
    assert found.causes[0].what == LOADER
    assert found.causes[0].verdict == "more than noise"
    assert found.causes[0].how in ("shrank", "vanished")
    assert found.step is not None and found.step.ratio < 0.6
