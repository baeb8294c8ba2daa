"""The arithmetic of a step, against formulas by hand and against PyTorch's own counter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import whyidle
from tests.ceiling.stories import Op, evidence, op
from tests.observe.jobs import needs_torch
from whyidle.step_work import step_work


@pytest.mark.parametrize(
    ("call", "flop"),
    [
        (op("mm", [3, 5], [5, 7]), 2 * 3 * 5 * 7),
        (op("addmm", [7], [3, 5], [5, 7]), 2 * 3 * 5 * 7),
        (op("bmm", [2, 3, 5], [2, 5, 7]), 2 * 2 * 3 * 5 * 7),
        (op("baddbmm", [2, 3, 7], [2, 3, 5], [2, 5, 7]), 2 * 2 * 3 * 5 * 7),
        (op("linear", [4, 3, 5], [7, 5], [7]), 2 * 4 * 3 * 5 * 7),
        # gradient of the output, input, weight; three times an output element's 3*3*3 products
        (op("convolution_backward", [2, 8, 6, 6], [2, 3, 8, 8], [8, 3, 3, 3]),
         3 * 2 * (2 * 8 * 6 * 6) * 27),
        (op("convolution_backward", [2, 8, 6, 6], [2, 8, 6, 6], [8, 1, 3, 3]),  # depthwise
         3 * 2 * (2 * 8 * 6 * 6) * 9),
        (op("convolution_backward", [2, 4, 16, 16], [2, 8, 8, 8], [8, 4, 2, 2]),  # transposed
         3 * 2 * (2 * 8 * 8 * 8) * 4 * 4),
        (op("_scaled_dot_product_flash_attention_for_cpu", *[[2, 4, 16, 8]] * 3),
         2 * 2 * (2 * 4 * 16 * 16 * 8)),
        (op("_scaled_dot_product_flash_attention_for_cpu_backward", *[[2, 4, 16, 8]] * 4),
         5 * 2 * (2 * 4 * 16 * 16 * 8)),
        (op("relu", [100, 100]), 0),
        (op("mm", [3, 5]), 0),
        (op("mm", [], []), 0),
    ],
)  # fmt: skip
def test_each_operator_counts_as_its_formula_says(call: Op, flop: int) -> None:
    found = step_work(evidence([call]))
    assert (found.flop if found else 0) == flop


def test_what_lies_inside_a_counted_operator_is_not_counted_again() -> None:
    outer = op("linear", [3, 5], [7, 5], [7])
    inner = op("addmm", [7], [3, 5], [5, 7])
    once = step_work(evidence([outer]))
    nested = step_work(evidence([outer], inside=[inner]))
    assert once is not None
    assert nested == once


def test_an_operator_that_only_calls_others_moves_nothing_itself() -> None:
    outer, inner = op("dropout", [100]), op("mul", [100], [100])
    found = step_work(evidence([outer], inside=[inner]))
    assert found is not None
    assert [piece.bytes for piece in found.pieces] == [4 * 300]


def test_views_move_nothing_and_lists_of_tensors_count_each() -> None:
    listed: Op = ("aten::_foreach_add_", [[[10], [20]], []], ["TensorList", "Scalar"])
    found = step_work(evidence([op("view", [1000]), listed]))
    assert found is not None
    assert [piece.bytes for piece in found.pieces] == [4 * (10 + 20 + 20)]


def test_the_loaders_own_work_is_no_work_of_the_gpu() -> None:
    loader: Op = ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", [], [])
    work = op("mm", [3, 5], [5, 7])
    found = step_work(evidence([loader, work], inside=[op("mm", [99, 99], [99, 99])]))
    assert found is not None
    assert found.flop == 2 * 3 * 5 * 7


@pytest.mark.parametrize("shapes", ["{", "[[", "null", '"x"', "[[1e9]]", "[[-4]]", "[" * 5000])
def test_shapes_that_make_no_sense_cost_nothing_but_themselves(shapes: str) -> None:
    from whyidle.step_work import _piece

    assert _piece("aten::mm", shapes, shapes, 1.0) is None


MODEL = """
import sys, torch
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.flop_counter import FlopCounterMode

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(),
    torch.nn.Conv2d(8, 16, 3, stride=2), torch.nn.ReLU(), torch.nn.Flatten(),
    torch.nn.Linear(16 * 7 * 7, 32), torch.nn.GELU(), torch.nn.Linear(32, 10),
)
pictures = torch.ones(4, 3, 16, 16, requires_grad=True)
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

def step():
    optimizer.zero_grad()
    model(pictures).square().mean().backward()
    optimizer.step()

with FlopCounterMode(display=False) as counter:
    step()
with profile(
    activities=[ProfilerActivity.CPU],
    schedule=schedule(wait=1, warmup=1, active=2),
    record_shapes=True,
    on_trace_ready=lambda p: p.export_chrome_trace(sys.argv[1]),
) as profiled:
    for _ in range(4):
        step()
        profiled.step()
print(counter.get_total_flops())
"""


@needs_torch
def test_a_real_step_counts_as_pytorchs_own_counter_says(tmp_path: Path) -> None:
    trace = tmp_path / "t.pt.trace.json"
    done = subprocess.run(
        [sys.executable, "-c", MODEL, str(trace)],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    found = step_work(whyidle.read(trace))
    assert found is not None
    assert found.flop == json.loads(done.stdout)
    assert found.uncounted == []
