"""Causes inside compute and communication: a second story for each, and what must stay silent.

Seconds are computed by hand in each test. Times in the stories are microseconds.
"""

from __future__ import annotations

import pytest

from whyidle.diagnose import diagnose
from whyidle.diagnosis import Diagnosis
from whyidle.stories import Story
from whyidle.views import Views
from whyidle.views.streaming import avoidable

GEMM = "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn"
SMALL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, X>(int)"
)
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
NODE = "autograd::engine::evaluate_function: "


def told(story: Story, cause: str) -> float:
    """Seconds that the cause won."""
    return seconds(diagnose(story.evidence()), cause)


def seconds(found: Diagnosis, cause: str) -> float:
    assert found.crashed == []
    return sum(row.lost_s for row in found.ledger if row.cause == cause)


def kernels(story: Story, *work: tuple[str, str, int], at: int = 0, **more: object) -> int:
    """Launches (operator, kernel, length) one after another, queued at once; returns the end."""
    ready = at + 2
    for index, (op, kernel, took) in enumerate(work):
        begin = at + index * 3
        story.op(op, begin, begin + 2)
        story.launch(kernel, (begin, begin + 2), (max(ready, begin + 2), ready + took), **more)
        ready += took
    return ready


# small_work.batch_too_small and small_work.underfilled_kernels


def test_a_batch_is_too_small_when_most_matrix_time_is_underfilled() -> None:
    story = Story(sms=100)
    kernels(story, ("aten::mm", GEMM, 600), ("aten::add", SMALL, 200), blocks=40)
    kernels(story, ("aten::mm", GEMM, 300), at=900)  # 4096 blocks: full
    # 600 of 900 us of products are under-filled: the batch is the reason, also for the addition.
    assert told(story, "small_work.batch_too_small") == pytest.approx(0.6 * 800e-6)
    assert told(story, "small_work.underfilled_kernels") == 0


def test_single_operators_are_too_small_when_most_matrix_time_is_full() -> None:
    story = Story(sms=100)
    kernels(story, ("aten::mm", GEMM, 300), ("aten::sum", SMALL, 100), blocks=25)
    kernels(story, ("aten::mm", GEMM, 900), at=500)
    assert told(story, "small_work.underfilled_kernels") == pytest.approx(0.75 * 400e-6)
    assert told(story, "small_work.batch_too_small") == 0


def test_a_larger_batch_does_not_help_the_optimizer_and_no_kernel_is_claimed_twice() -> None:
    story = Story(sms=100)
    end = kernels(story, ("aten::mm", GEMM, 500), blocks=50)
    story.annotate("Optimizer.step#SGD.step", 100, 200)
    story.op("aten::add_", 110, 120)
    story.launch(SMALL, (112, 118), (end, end + 100), blocks=10)
    found = diagnose(story.evidence())
    assert seconds(found, "small_work.batch_too_small") == pytest.approx(0.5 * 500e-6)
    assert seconds(found, "small_work.underfilled_kernels") == pytest.approx(0.9 * 100e-6)
    assert all(f.contested_s == pytest.approx(0, abs=1e-12) for f in found.findings)


@pytest.mark.parametrize("blocks", [76, 100, 101, 5000])
def test_a_kernel_with_blocks_for_more_than_three_quarters_of_the_gpu_is_full(blocks: int) -> None:
    story = Story(sms=100)
    kernels(story, ("aten::mm", GEMM, 500), blocks=blocks)
    found = diagnose(story.evidence())
    assert seconds(found, "small_work.batch_too_small") == 0
    assert seconds(found, "small_work.underfilled_kernels") == 0


def test_kernels_that_run_beside_others_are_not_called_underfilled() -> None:
    story = Story(sms=100)
    story.launch(GEMM, (0, 2), (2, 500), blocks=20, lane=7)
    story.launch(GEMM, (3, 5), (5, 500), blocks=20, lane=8)
    found = diagnose(story.evidence())
    assert seconds(found, "small_work.batch_too_small") == 0


def test_a_deliberate_sleep_on_the_gpu_is_not_a_kernel_to_fill() -> None:
    story = Story(sms=100)
    kernels(story, ("aten::mm", GEMM, 500))
    story.launch(
        "at::cuda::(anonymous namespace)::spin_kernel(long)", (10, 12), (502, 900), blocks=1
    )
    assert told(story, "small_work.underfilled_kernels") == 0


def test_without_the_number_of_multiprocessors_filling_is_not_judged() -> None:
    story = Story(sms=None)
    kernels(story, ("aten::mm", GEMM, 500), blocks=1)
    absent = {n.cause: n.missing for n in diagnose(story.evidence()).not_judged}
    for cause in ("small_work.batch_too_small", "small_work.underfilled_kernels"):
        assert absent[cause] == ["the GPU's number of multiprocessors"]


# memory.fp32_no_tensor_cores


@pytest.mark.parametrize(
    ("name", "capability", "weight"),
    [
        ("NVIDIA A100-SXM4-80GB", (8, 0), 0.5),
        ("NVIDIA H100 80GB HBM3", (9, 0), 0.5),
        ("NVIDIA RTX 6000 Ada Generation", (8, 9), 0.5),
        ("Tesla V100-SXM2-32GB", (7, 0), 0.4),
        ("NVIDIA GeForce RTX 2080 Ti", (7, 5), 0.4),
        ("NVIDIA GeForce RTX 3090", (8, 6), 0.3),
        ("NVIDIA GeForce GTX 1660 Ti", (7, 5), 0.0),  # Turing without tensor cores
        ("Tesla P100-PCIE-16GB", (6, 0), 0.0),
    ],
)
def test_fp32_products_lose_what_the_gpu_could_give(
    name: str, capability: tuple[int, int], weight: float
) -> None:
    story = Story(name=name, capability=capability)
    kernels(story, ("aten::mm", "volta_sgemm_128x128_nn", 700), ("aten::relu", SMALL, 300))
    assert told(story, "memory.fp32_no_tensor_cores") == pytest.approx(weight * 700e-6)


@pytest.mark.parametrize(
    "kernel",
    [
        "cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x256_16x3_nn_align4>",
        GEMM,
        "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT",
        "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false>(X)",
        "ampere_dgemm_64x64_nn",
        "some_library_kernel_of_its_own",
    ],
)
def test_kernels_that_are_not_fp32_products_on_ordinary_units_are_left_alone(kernel: str) -> None:
    story = Story()
    kernels(story, ("aten::mm", kernel, 700))
    assert told(story, "memory.fp32_no_tensor_cores") == 0


def test_where_tf32_is_in_use_already_the_librarys_choice_of_fp32_is_left_alone() -> None:
    story = Story()
    tf32 = "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x256_16x3_nn_align4>(X)"
    kernels(story, ("aten::mm", "ampere_sgemm_128x64_nn", 700), ("aten::mm", tf32, 100))
    assert told(story, "memory.fp32_no_tensor_cores") == 0


def test_short_products_gain_nothing_from_tensor_cores() -> None:
    story = Story()
    kernels(story, *[("aten::mm", "ampere_sgemm_128x64_nn", 19)] * 5)
    assert told(story, "memory.fp32_no_tensor_cores") == 0


# model_design.unaligned_shapes

ODD = "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x64_32x6_nt_align1>(X)"


def product(story: Story, kernel: str, shapes: str | None, took: int = 1000) -> None:
    more = {} if shapes is None else {"shapes": shapes}
    story.op("aten::addmm", 0, 10, **more)
    story.launch(kernel, (2, 6), (6, 6 + took))


def test_a_product_read_one_tf32_element_at_a_time_loses_29_percent() -> None:
    story = Story()
    product(story, ODD, "[[512], [1024, 9375], [9375, 512], [], []]")
    found = diagnose(story.evidence())
    assert seconds(found, "model_design.unaligned_shapes") == pytest.approx(0.29 * 1000e-6)
    (finding,) = (f for f in found.findings if f.cause == "model_design.unaligned_shapes")
    assert "[1024, 9375] x [9375, 512] in tf32 reads 1 of 4" in str(finding.where[0].op)


def test_half_precision_on_volta_without_tensor_cores_is_unaligned_when_its_shapes_are() -> None:
    kernel = "volta_fp16_sgemm_fp16_128x64_nn"
    odd, even = Story(capability=(7, 0)), Story(capability=(7, 0))
    product(odd, kernel, "[[33708], [4096, 512], [512, 33708], [], []]")  # 33708 = 8 x 4213.5
    product(even, kernel, "[[33712], [4096, 512], [512, 33712], [], []]")
    assert told(odd, "model_design.unaligned_shapes") == pytest.approx(0.29 * 1000e-6)
    assert told(even, "model_design.unaligned_shapes") == 0


@pytest.mark.parametrize(
    ("kernel", "shapes"),
    [
        (ODD, "[[512], [8192, 512], [512, 8192], [], []]"),  # aligned: an offset, not a shape
        (ODD.replace("align1", "align4"), "[[512], [1024, 9375], [9375, 512], [], []]"),
        (GEMM, "[[512], [1024, 9375], [9375, 512], [], []]"),  # the library coped
        ("ampere_sgemm_128x64_nn", "[[512], [1024, 9375], [9375, 512], [], []]"),
    ],
)
def test_a_product_whose_kernel_reads_whole_accesses_is_aligned(kernel: str, shapes: str) -> None:
    story = Story()
    product(story, kernel, shapes)
    assert told(story, "model_design.unaligned_shapes") == 0


def test_without_shapes_or_alignment_in_names_shapes_are_not_judged() -> None:
    story = Story()
    product(story, GEMM, None)
    found = diagnose(story.evidence())
    assert "model_design.unaligned_shapes" in {n.cause for n in found.not_judged}


# model_design.memory_bound_ops

LAYER_NORM = (
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int)"
)
SOFTMAX = (
    "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float, float, float, X>(float*)"
)


def kinds(story: Story) -> list[str]:
    return avoidable(Views(story.evidence()).kernels)["kind"].to_list()


def test_a_chain_of_four_streaming_kernels_spares_three_eighths() -> None:
    story = Story()
    chain = [("aten::native_layer_norm", LAYER_NORM, 50), *[("aten::mul", SMALL, 50)] * 3]
    kernels(story, ("aten::mm", GEMM, 300), *chain, ("aten::mm", GEMM, 300))
    # half of 1 - 1/4 of 4 x 50 us
    assert told(story, "model_design.memory_bound_ops") == pytest.approx(0.5 * 0.75 * 200e-6)


def test_scaled_masked_softmax_between_two_bmm_is_unfused_attention() -> None:
    story = Story()
    scores = [("aten::mul", SMALL, 40), ("aten::add", SMALL, 40), ("aten::_softmax", SOFTMAX, 120)]
    kernels(story, ("aten::bmm", GEMM, 300), *scores, ("aten::bmm", GEMM, 300))
    assert kinds(story) == ["attention"] * 3
    assert told(story, "model_design.memory_bound_ops") == pytest.approx(0.8 * 200e-6)


@pytest.mark.parametrize(
    "work",
    [
        # a classifier's softmax: linear layers around it
        [("aten::addmm", GEMM, 300), ("aten::_softmax", SOFTMAX, 100), ("aten::mm", GEMM, 300)],
        # the loss: no product follows
        [("aten::bmm", GEMM, 300), ("aten::_log_softmax", SOFTMAX, 100), ("aten::nll", "nll", 20)],
        # two kernels are no chain
        [("aten::add", SMALL, 100), ("aten::mul", SMALL, 100), ("aten::mm", GEMM, 300)],
        # too short to be limited by memory
        [("aten::add", SMALL, 4), ("aten::mul", SMALL, 4), ("aten::relu", SMALL, 4)],
        # fused by a compiler already
        [("x", "triton_poi_fused_add_0", 90), ("x", "triton_poi_fused_mul_1", 90)] * 2,
    ],
)  # fmt: skip
def test_kernels_that_no_fusion_would_spare_are_left_alone(
    work: list[tuple[str, str, int]],
) -> None:
    story = Story()
    kernels(story, *work)
    assert told(story, "model_design.memory_bound_ops") == 0


def test_a_chain_ends_where_the_tensors_change_their_size() -> None:
    story = Story()
    for index, rows in enumerate([4096, 4096, 64, 64]):
        story.op("aten::mul", index * 3, index * 3 + 2, shapes=f"[[{rows}, 1024], []]")
        story.launch(SMALL, (index * 3, index * 3 + 2), (20 + index * 50, 70 + index * 50))
    assert kinds(story) == []


def test_updates_inside_the_optimizer_are_no_chain() -> None:
    story = Story()
    story.annotate("Optimizer.step#AdamW.step", 0, 100)
    kernels(story, *[("aten::mul_", SMALL, 50)] * 6)
    assert kinds(story) == []


def test_a_device_copy_alone_on_the_gpu_is_lost_and_beside_a_kernel_it_is_not() -> None:
    story = Story()
    kernels(story, ("aten::mm", GEMM, 100))
    story.op("aten::cat", 10, 20)
    copy, size = "Memcpy DtoD (Device -> Device)", 1 << 24
    story.launch(copy, (12, 16), (82, 142), kind="copy", by="cudaMemcpyAsync", lane=9, bytes=size)
    # 102 to 142 us alone, 82 to 102 us beside the product
    assert told(story, "model_design.memory_bound_ops") == pytest.approx(40e-6)


# communication.*


def test_only_the_part_of_a_collective_that_no_kernel_hides_is_exposed() -> None:
    story = Story()
    kernels(story, ("aten::mm", GEMM, 300))  # 2 to 302
    story.op("c10d::allreduce_", 20, 40)
    story.launch(NCCL, (25, 30), (200, 700), lane=20)
    story.launch(NCCL, (31, 36), (400, 800), lane=21)  # overlaps the first
    found = diagnose(story.evidence())
    assert seconds(found, "communication.exposed_communication") == pytest.approx(498e-6)
    (finding,) = (f for f in found.findings if f.cause == "communication.exposed_communication")
    assert finding.contested_s == pytest.approx(0, abs=1e-12)
    assert "all-reduce" in str(finding.where[0].op)


def test_a_collective_that_a_kernel_hides_from_end_to_end_costs_nothing() -> None:
    story = Story()
    kernels(story, ("aten::mm", GEMM, 300))
    story.launch(NCCL, (25, 30), (100, 200), lane=20)
    assert told(story, "communication.exposed_communication") == 0


def test_a_collective_without_a_telling_kernel_is_named_by_the_call_that_issued_it() -> None:
    story = Story()
    story.op("c10d::alltoall_base_", 0, 20)
    story.launch("ncclDevKernel_SendRecv(X)", (5, 10), (10, 500), lane=20)
    (finding,) = (
        f
        for f in diagnose(story.evidence()).findings
        if f.cause.startswith("communication.exposed")
    )
    assert str(finding.where[0].op).startswith("all-to-all")


def accumulate(story: Story, begin: int, *, operator: str = "ConvolutionBackward0") -> None:
    """One micro-batch: 600 us of forward and backward, then 400 us of all-reduce alone."""
    story.op("aten::conv2d", begin, begin + 5)
    story.launch(GEMM, (begin, begin + 2), (begin + 2, begin + 602))
    story.op(NODE + operator, begin + 20, begin + 30, thread="autograd")
    story.op(NODE + "torch::autograd::AccumulateGrad", begin + 40, begin + 60, thread="autograd")
    story.op("c10d::allreduce_", begin + 42, begin + 58, thread="autograd")
    run = (begin + 602, begin + 1002)
    story.launch(NCCL, (begin + 45, begin + 50), run, thread="autograd", lane=20)


def test_all_but_the_last_reduction_before_an_optimizer_step_are_needless() -> None:
    story = Story()
    for micro in range(4):
        accumulate(story, micro * 1000)
    story.annotate("Optimizer.step#AdamW.step", 3900, 3950)
    found = diagnose(story.evidence())
    assert seconds(found, "communication.sync_every_microstep") == pytest.approx(3 * 400e-6)
    assert seconds(found, "communication.exposed_communication") == pytest.approx(400e-6)


def test_one_reduction_per_optimizer_step_is_needed() -> None:
    story = Story()
    for step in range(4):
        accumulate(story, step * 1000)
        story.annotate("Optimizer.step#AdamW.step", step * 1000 + 900, step * 1000 + 950)
    found = diagnose(story.evidence())
    assert seconds(found, "communication.sync_every_microstep") == 0
    assert seconds(found, "communication.exposed_communication") == pytest.approx(4 * 400e-6)


def test_passes_through_different_networks_do_not_repeat_each_other() -> None:
    story = Story()
    accumulate(story, 0, operator="ConvolutionBackward0")
    accumulate(story, 1000, operator="AddmmBackward0")
    story.annotate("Optimizer.step#Adam.step", 1900, 1920)
    assert told(story, "communication.sync_every_microstep") == 0


def test_reductions_after_the_last_optimizer_step_are_not_called_needless() -> None:
    story = Story()
    story.annotate("Optimizer.step#Adam.step", 0, 5)
    accumulate(story, 10)
    accumulate(story, 1010)
    assert told(story, "communication.sync_every_microstep") == 0


def test_without_optimizer_steps_no_reduction_is_called_repeated() -> None:
    story = Story()
    accumulate(story, 0)
    assert seconds(diagnose(story.evidence()), "communication.sync_every_microstep") == 0


def test_copies_from_buckets_to_gradients_are_the_wrappers() -> None:
    story = Story()
    kernels(story, ("aten::mm", GEMM, 300))
    story.op("torch.distributed.ddp.reducer::copy_bucket_to_grad", 20, 40)
    copy = "Memcpy DtoD (Device -> Device)"
    story.launch(copy, (25, 30), (302, 352), kind="copy", by="cudaMemcpyAsync", bytes=4096)
    found = diagnose(story.evidence())
    assert seconds(found, "communication.wrapper_host_overhead") == pytest.approx(50e-6)
    assert seconds(found, "model_design.memory_bound_ops") == 0


def test_a_gpu_that_runs_dry_while_a_collective_is_issued_names_the_call() -> None:
    story = Story()
    kernels(story, ("aten::mm", GEMM, 300))  # until 302
    story.op("c10d::allreduce_", 290, 500)
    story.launch(NCCL, (490, 500), (500, 900), lane=20)
    kernels(story, ("aten::mm", GEMM, 300), at=600)
    # empty from 302 until the launch returns at 500
    assert told(story, "communication.collective_call_blocks_host") == pytest.approx(198e-6)
