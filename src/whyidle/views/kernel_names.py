"""What the name of a compute kernel tells: its family, its arithmetic, its alignment.

Read from the names that cuBLAS, cuDNN, CUTLASS, Triton, Tensile (rocBLAS, hipBLASLt), Composable
Kernel, MIOpen, AITER and PyTorch's own kernels carry. What a name does not tell is None.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

MATRIX = ("gemm", "gemv", "conv", "attention")
"""Families that multiply matrices; all others mostly move bytes."""
STREAMING = ("elementwise", "normalisation", "reduction", "softmax", "copy", "layout")
"""Families whose time is the bytes they move; a compiler can merge neighbours of these."""


@dataclass(frozen=True)
class KernelName:
    """What one name tells.

    family: one of gemm, gemv (matrix times vector), conv, attention, elementwise, normalisation,
    softmax, reduction, copy, layout (conversion between memory layouts), pooling, embedding,
    optimizer, other.
    cores: "tensor" (tensor cores, MFMA), "simt" (ordinary arithmetic units), None.
    precision: of the inputs: fp64, fp32, tf32, bf16, fp16, fp8, int8, None.
    align: elements per aligned access that a CUTLASS name states ("align8"), None.
    fused: made by a compiler that already merged neighbours, or by hand.
    """

    family: str
    cores: str | None = None
    precision: str | None = None
    align: int | None = None
    fused: bool = False


_FAMILIES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (family, re.compile(pattern, re.IGNORECASE))
    for family, pattern in (
        ("other", r"spin_kernel|topk|radixsort|devicesort|mergesort|bitonic"),
        ("gemm", r"^triton_(tem|mm|bmm)_"),
        ("reduction", r"^triton_(red|per)_"),
        ("elementwise", r"^triton_(poi|for)_|^triton__"),
        ("copy", r"^[^<]*(and_cache|kv_?cache)"),
        (
            "attention",
            r"^(?!.*norm)(.*(flash_|fmha|attn_(fwd|bwd)|attention|sage_fwd|sdpa|\bmha_|fattn|[^a-z]mla_))",
        ),
        ("layout", r"nchw_?(to|2)_?nhwc|nhwc_?(to|2)_?nchw|^batched_transpose_|tensorTransform"),
        ("embedding", r"(?<!rotary_)embedding|indexselect|index_select|_gather_kernel|pooled_embs"),
        ("optimizer", r"multi_tensor_apply|multitensorapply|fused_?(adam|sgd|lamb|adagrad)"),
        ("optimizer", r"(^|[^a-z])(adam|lamb|sgd|adagrad)(w|_|functor|kernel|math)"),
        (
            "normalisation",
            r"(batch|layer|rms|group|instance)_?norm|bnorm|(^|[^a-z])bn_(fw|bw)|(^|[^a-z])ln_(fwd|bwd)"
            r"|rowwisemoments|computeinternalgradients|computebackwardfusedparams|gammabeta"
            r"|1dforwardlayernorm|norm_kernel(?!.*reduce)",
        ),
        ("softmax", r"soft_?max"),
        ("pooling", r"pool"),
        ("gemv", r"gemv|gemmk1_kernel|gemmsn_|dot_kernel|wvsplitk"),
        (
            "conv",
            r"convolve|conv(olution)?(\d?d|_|<|fwd|bwd|forward|backward)|scudnn|cudnn_\w*gemm|[sh]\d*cudnn"
            r"|winograd|fprop|(?<![a-z])[dw]grad|igemm_(fwd|bwd|wrw)|fft[12]d_|im2col|im2d2col|col2im|vol2col"
            r"|[dw]grad_(alg|engine)|miopenconv|_bwd_weight|depthwise",
        ),
        (
            "gemm",
            r"gemm|^cijk_|nvjet|matmul|(^|[^a-z])_?(b?mm|grouped_mm|scaled_mm)_kernel|splitkreduce"
            r"|(fused_)?moe_kernel|marlin|cutlass::kernel2?<",
        ),
        (
            "copy",
            r"copy_kernel|catarray|transpose|permute|subtensorop|copydevice"
            r"|flip_kernel|roll_cuda|index_copy|copy_if",
        ),
        ("reduction", r"reduce_kernel|devicereduce|reduce_1block|segmented_?reduce|reduceop<"),
        (
            "elementwise",
            r"elementwise|pointwise|fillfunctor|gelu|silu|act_and_mul|dropout|rotary|rope_"
            r"|distribution_|optensor|op_tensor|bias|epilogue::impl|kernel_for_multi_outputs",
        ),
    )
)

_TENSOR = re.compile(
    r"tensorop|tensor16x8|[shi]\d*(16816|1688|161616|884|8816|16832)|d884|wmma|hmma|imma|dmma|gmma|tcgen05"
    r"|tf32|nvjet|xdlops|_mi\d+x\d+|mfma|gtcx|(?<![a-z])xdl(?![a-z])|_S_MX_B",
    re.IGNORECASE,
)
_XMMA = re.compile(r"xmma_", re.IGNORECASE)
_SIMT = re.compile(
    r"simt|ffma|(?<![a-z0-9])sgemm|_sgemm|scudnn(?!_h)|c?gcgemm|_cgemm|(^|_)dgemm"
    r"|([dw]grad\w*_(engine|alg)\w*|convolve\w*|_grouped_direct_kernel)<(float|__half|double)|fft[12]d_[rc]2[cr]",
    re.IGNORECASE,
)
_FIXED_PRECISION = (
    ("fp8", re.compile(r"e4m3|e5m2|fp8|float8|f8f8", re.IGNORECASE)),
    ("tf32", re.compile(r"tf32|_S_MX_B|xf32", re.IGNORECASE)),
    ("bf16", re.compile(r"bf16|bfloat16|DF16b", re.IGNORECASE)),
    (
        "fp16",
        re.compile(r"fp16|(?<![a-z])f16|__half|c10::half|_half\b|h884|hgemm|h1688", re.IGNORECASE),
    ),
    ("int8", re.compile(r"int8|i8i8|i16832|i8816", re.IGNORECASE)),
    ("fp64", re.compile(r"d884|dgemm|<double|f64|dmma", re.IGNORECASE)),
    ("tf32", re.compile(r"(?<![a-z])s1688(gemm|fprop|dgrad|wgrad)", re.IGNORECASE)),
    (
        "fp32",
        re.compile(
            r"sgemm|scudnn|f32f32|[<,] ?float(?=[,>])|gcgemm|cgemm|fft[12]d_|fp32", re.IGNORECASE
        ),
    ),
)
_TENSILE = re.compile(r"Cijk_A[ikl]+_B[jkl]+_(?P<types>S_MX_B|[A-Z0-9]+)")
_TENSILE_TYPES = (
    ("S_MX", "tf32"), ("F8", "fp8"), ("B8", "fp8"), ("I8", "int8"), ("H", "fp16"), ("B", "bf16"),
    ("S", "fp32"), ("D", "fp64"),
)  # fmt: skip
_CUTLASS = re.compile(r"cutlass\w*::Kernel2?<(\w+)")
_FUNCTOR = re.compile(r"(\w*(?:Functor\w*|_kernel_(?:impl|cuda)\w*|Ops|_functor))(?=[<({])")
_NAMESPACES = re.compile(r"\(anonymous namespace\)::|fbgemm(_gpu)?::|^void ")
_ALIGN = re.compile(r"_align(?:a)?(\d+)")
_FUSED = re.compile(r"^triton_|(?<!non)fused|_quant_kernel", re.IGNORECASE)


@lru_cache(maxsize=65536)
def read_name(name: str) -> KernelName:
    """Everything a kernel's name tells."""
    name = _bare(name)
    family = next((f for f, rule in _FAMILIES if rule.search(name)), "other")
    align = _ALIGN.search(name) if "tensorop" in name or "xmma" in name else None
    return KernelName(
        family=family,
        cores=_cores(name, family),
        precision=_precision(name) if family in MATRIX else None,
        align=int(align.group(1)) if align else None,
        fused=bool(_FUSED.search(name)),
    )


@lru_cache(maxsize=4096)
def short_name(name: str) -> str:
    """The function's name alone, without namespaces and template arguments; at most 60 signs."""
    inner = _CUTLASS.search(name)
    if inner:
        return inner.group(1)[:60]
    head = _bare(name).split("<")[0].rsplit("::", 1)[-1].strip()
    functor = (
        _FUNCTOR.search(name) if head.endswith(("elementwise_kernel", "reduce_kernel")) else None
    )
    return (f"{head}<{functor.group(1)}>" if functor else head or name)[:60]


def _bare(name: str) -> str:
    """The name without its parameter list and without namespaces that would mislead."""
    name = _NAMESPACES.sub("", name)
    depth = 0
    for at, sign in enumerate(name):
        depth += (sign == "<") - (sign == ">")
        if sign == "(" and depth <= 0:
            return name[:at]
    return name


def _cores(name: str, family: str) -> str | None:
    if family not in MATRIX:
        return None
    if _TENSOR.search(name):
        return "tensor"
    if _SIMT.search(name) or family == "gemv":
        return "simt"
    if _XMMA.search(name):
        return "tensor"
    tensile = _TENSILE.search(name)
    # Tensile writes MI<m>x<n>x<k> when it uses the matrix instruction, TT or WG tiles otherwise
    return "simt" if tensile and tensile["types"].startswith(("S", "D")) else None


def _precision(name: str) -> str | None:
    tensile = _TENSILE.search(name)
    if tensile:
        code = tensile["types"]
        return next((p for head, p in _TENSILE_TYPES if code.startswith(head)), None)
    return next((p for p, rule in _FIXED_PRECISION if rule.search(name)), None)
