"""Kernel names of cuBLAS, cuDNN, CUTLASS, Triton, Tensile, CK, MIOpen and PyTorch, read right."""

from __future__ import annotations

from pathlib import Path

import pytest

from whyidle.views.collectives import collective_of
from whyidle.views.kernel_names import read_name, short_name

NAMES = Path(__file__).with_name("kernel_names.tsv")
"""Real names, longer than a line of code, with the family, units and precision they stand for."""


def rows() -> list[tuple[str, str | None, str | None, str]]:
    lines = NAMES.read_text(encoding="utf-8").splitlines()[1:]
    cells = [line.split("\t") for line in lines]
    return [(f, None if c == "-" else c, None if p == "-" else p, n) for f, c, p, n in cells]


def test_enough_names_are_read() -> None:
    assert len(rows()) >= 60
    assert len({name for *_, name in rows()}) == len(rows())


@pytest.mark.parametrize(("family", "cores", "precision", "name"), rows())
def test_a_kernel_tells_its_family_units_and_precision(
    family: str, cores: str | None, precision: str | None, name: str
) -> None:
    told = read_name(name)
    assert (told.family, told.cores, told.precision) == (family, cores, precision)


@pytest.mark.parametrize(
    ("name", "align"),
    [
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x64_32x6_nt_align1>(X)", 1),
        ("cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_f16_64x64_64x6_nn_align2>", 2),
        ("cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x64_64x6_tn_align8>", 8),
        ("void cutlass::Kernel<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(X)", None),
        ("ampere_bf16_s16816gemm_bf16_256x128_ldg8_f2f_stages_64x3_nn", None),
    ],
)  # fmt: skip
def test_only_a_tensor_core_kernel_tells_the_alignment_it_needs(
    name: str, align: int | None
) -> None:
    assert read_name(name).align == align


@pytest.mark.parametrize(
    ("name", "fused"),
    [
        ("triton_poi_fused_add_cos_sin_0", True),
        ("kernel_cutlass_fused_add_rmsnorm_FusedAddRMSNormKernel", True),
        ("void cudnn::winograd_nonfused::winogradWgradData4x4<float, float>(X)", False),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>", False),
    ],
)  # fmt: skip
def test_a_name_tells_whether_neighbours_were_merged_already(name: str, fused: bool) -> None:
    assert read_name(name).fused is fused


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            "void at::native::vectorized_elementwise_kernel<4, at::CUDAFunctor_add<float>>(X)",
            "vectorized_elementwise_kernel<CUDAFunctor_add>",
        ),
        (
            "cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x6_tn_align8>",
            "cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x6_tn",
        ),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
         "ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
        ("volta_sgemm_128x64_nn", "volta_sgemm_128x64_nn"),
    ],
)  # fmt: skip
def test_the_short_name_is_the_function_a_person_would_say(name: str, short: str) -> None:
    assert short_name(name) == short


@pytest.mark.parametrize(
    ("name", "collective"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "all-reduce"),
        ("ncclKernel_AllGather_RING_LL_Sum_int8_t", "all-gather"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "reduce-scatter"),
        ("ncclDevKernel_SendRecv", "send and receive"),
        ("ncclDevKernel_Broadcast_RING_LL", "broadcast"),
        ("c10d::alltoall_base_", "all-to-all"),
        ("nccl:_reduce_scatter_base", "reduce-scatter"),
        ("gloo:all_reduce", "all-reduce"),
        ("void sglang::cross_device_reduce_1stage<float, 8>(X)", "all-reduce"),
        ("ncclDevKernel_Generic_4", None),
    ],
)
def test_a_collective_is_told_by_name_or_left_open(name: str, collective: str | None) -> None:
    assert collective_of(name) == collective
