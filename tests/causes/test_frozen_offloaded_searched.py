"""Second stories for frozen layers, offloaded optimizers, searched convolutions."""

from __future__ import annotations

import pytest

from whyidle.diagnose import diagnose
from whyidle.diagnosis import Diagnosis, Observation
from whyidle.stories import Story

NODE = "autograd::engine::evaluate_function: "
FROZEN = "model_design.redundant_frozen_compute"
OFFLOAD = "memory.cpu_offload_step"
SEARCHED = "model_design.cudnn_benchmark_mismatch"


def seconds(found: Diagnosis, cause: str) -> float:
    assert found.crashed == []
    return sum(row.lost_s for row in found.ledger if row.cause == cause)


def told(story: Story, cause: str) -> list[Observation]:
    found = diagnose(story.evidence())
    assert found.crashed == []
    return [o for o in found.observations if o.cause == cause]


def training(
    encoder_us: int, *, steps: int = 4, numbered: bool, around: str | None = None
) -> Story:
    """Steps of an encoder, a trained layer of 3 ms and its backward of 3 ms."""
    story = Story()
    at = 0
    for number in range(4):
        length = encoder_us + 6000
        story.step(number, at, at + length)
        if around:
            story.annotate(around, at, at + 15)
        more = {"sequence": number} if numbered else {}
        story.op("aten::conv2d", at, at + 12, **more)
        done = at + 8 + encoder_us
        story.launch("implicit_convolve_sgemm", (at + 2, at + 8), (at + 8, done))
        story.op("aten::linear", at + 20, at + 40, sequence=number)
        story.launch("ampere_sgemm_128x64_tn", (at + 22, at + 28), (done, done + 3000))
        story.op(f"{NODE}AddmmBackward0", at + 50, at + 80, thread="backward", sequence=number)
        story.op("aten::mm", at + 52, at + 75, thread="backward")
        run = (done + 3000, done + 6000)
        story.launch("ampere_sgemm_128x64_nt", (at + 55, at + 60), run, thread="backward")
        at += length
    return story


def test_a_frozen_encoder_is_told_with_its_share_of_the_kernel_time() -> None:
    (seen,) = told(training(2000, numbered=False), FROZEN)
    # By hand: 2 ms of 2 + 3 + 3 ms.
    assert "2 ms of kernels per step (25% of all kernel time)" in seen.what
    assert seen.level == "suspected"
    assert seen.where[0].op == "aten::conv2d"


def test_layers_with_gradients_are_not_frozen() -> None:
    assert told(training(2000, numbered=True), FROZEN) == []


def test_a_small_frozen_layer_is_not_worth_telling() -> None:
    assert told(training(500, numbered=False), FROZEN) == []  # 0.5 of 6.5 ms is 8 %


def test_evaluation_without_gradients_is_no_frozen_layer() -> None:
    assert told(training(2000, numbered=False, around="validation"), FROZEN) == []


def test_inference_has_no_frozen_layers() -> None:
    story = Story()
    for number in range(4):
        at = number * 1000
        story.step(number, at, at + 1000)
        story.op("aten::conv2d", at, at + 12)
        story.launch("implicit_convolve_sgemm", (at + 2, at + 8), (at + 8, at + 1000))
    assert told(story, FROZEN) == []


def optimizer(operator_us: int, *, launching: bool) -> Diagnosis:
    """Three steps of 1 ms of compute and an optimizer of ten operators, back to back."""
    story = Story()
    at = 0
    for number in range(3):
        length = 1000 + 10 * operator_us
        story.step(number, at, at + length)
        story.op("aten::mm", at, at + 10)
        story.launch("gemm", (at + 2, at + 8), (at + 8, at + 1000))
        story.annotate("Optimizer.step#AdamW.step", at + 1000, at + length)
        for begin in range(at + 1000, at + length, operator_us):
            story.op("aten::addcdiv_", begin, begin + operator_us)
            if launching:
                call = (begin + operator_us - 20, begin + operator_us - 10)
                story.launch("update", call, (call[1], begin + operator_us))
        at += length
    story.launch("gemm", (at, at + 5), (at + 5, at + 100))
    return diagnose(story.evidence())


def test_an_optimizer_that_computes_on_the_processor_is_offloaded() -> None:
    found = optimizer(1500, launching=False)
    assert seconds(found, OFFLOAD) == pytest.approx(3 * 10 * 1.5e-3, rel=1e-3)
    assert seconds(found, "small_work.optimizer_launch_bound") == 0


def test_short_operators_that_launch_nothing_may_be_preparation() -> None:
    found = optimizer(500, launching=False)
    assert seconds(found, OFFLOAD) == 0
    assert seconds(found, "small_work.optimizer_launch_bound") == pytest.approx(15e-3, rel=1e-2)


def test_long_operators_that_launch_are_bound_by_launching() -> None:
    found = optimizer(1500, launching=True)
    assert seconds(found, OFFLOAD) == 0
    assert seconds(found, "small_work.optimizer_launch_bound") > 40e-3


def convolutions(searched: tuple[int, ...], kernels: int) -> Diagnosis:
    """Six steps of a convolution of 1 ms; in those named, ``kernels`` of 2 ms run before it."""
    story = Story()
    at = 0
    for number in range(6):
        tried = kernels if number in searched else 0
        length = tried * 2000 + 1000
        story.step(number, at, at + length)
        story.op("aten::cudnn_convolution", at, at + 90)
        for index in range(tried):
            run = (at + 8 + index * 2000, at + 8 + (index + 1) * 2000)
            story.launch(f"cudnn_algorithm_{index}", (at + 2, at + 8), run)
        story.launch("cudnn_fast", (at + 10, at + 14), (at + 8 + tried * 2000, at + length))
        at += length
    return diagnose(story.evidence())


def test_a_search_in_two_steps_costs_all_kernels_but_the_shortest() -> None:
    assert seconds(convolutions((2, 4), 9), SEARCHED) == pytest.approx(2 * 9 * 2e-3)


def test_a_search_in_one_step_is_warm_up() -> None:
    assert seconds(convolutions((0,), 9), SEARCHED) == 0


def test_a_convolution_of_a_few_kernels_is_no_search() -> None:
    assert seconds(convolutions((1, 2, 3), 5), SEARCHED) == 0
