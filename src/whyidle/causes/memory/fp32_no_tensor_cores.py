"""Matrix products and convolutions run in FP32 beside tensor cores that stand idle.

Looks like: the GPU is busy all the time and slow; kernels are called volta_sgemm, ampere_sgemm,
scudnn or implicit_convolve_sgemm; nothing was said about precision in the script.

How we tell: the kernel's name shows FP32 on ordinary arithmetic units (on AMD: FP32 operands),
the GPU has tensor cores (NVIDIA capability 7.0 and up without the GTX 16 line, AMD Instinct MI100
and up), the kernel ran 20 us or longer and had at least one block per multiprocessor. Weight 0.5
where TF32 can be switched on (capability 8.0 and up): data sheets promise 8 times (A100: 156
against 19.5 TFLOPS), a published ViT-L run got 2 times, and 1 - 1/2 = 0.5 is what is claimed.
Weight 0.4 where only FP16 or BF16 helps (V100 and T4 have no TF32; AMD): published runs got 2 to
3.8 times, but casts and the rest take part of it back. Weight 0.3 on GeForce of capability 8.6
and up, whose tensor cores give FP16 twice and TF32 no more than the FP32 rate.
Not counted: a family (products, convolutions) in which TF32 kernels already take a tenth of the
time, because there the library chose FP32; where FP16 or BF16 is advised, the same with those.

Change: torch.set_float32_matmul_precision("high") and torch.backends.cudnn.allow_tf32 = True; or
mixed precision with torch.autocast (bfloat16 from capability 8.0, float16 with GradScaler on V100
and T4).

May be wrong: when the host cannot launch fast enough, a faster kernel only makes the GPU wait
longer: published runs with small batches got slower with autocast (0.49 to 0.87 times). Products
that move more bytes than they compute gain little. FP32 may be wanted for accuracy.

Sources: NVIDIA A100 and V100 data sheets; PyTorch notes on CUDA semantics, TensorFloat-32; cases
tensorpix/benchmarking-cv-models#8, huggingface/transformers#15026,
sdatkinson/neural-amp-modeler#316.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from whyidle.diagnosis import Finding, Remedy
from whyidle.stories import Story
from whyidle.views.kernels import kernel_claims

if TYPE_CHECKING:
    from whyidle.model import DeviceInfo, Evidence, Facts
    from whyidle.views import Views

TITLE = "FP32 arithmetic while tensor cores stand idle"
STATUS = "preview"
NEEDS = ("device", "tensor_cores")
LEAST_NS = 20_000
ALREADY = 0.1
_WITHOUT = re.compile(r"GTX 16|MX450|T[46]00\b|T1000|T1200", re.IGNORECASE)


def advice_for(info: DeviceInfo) -> tuple[float, str, str] | None:
    """(weight, level, what to use) for a device; None without tensor cores or when unknown."""
    name = info.name or ""
    if info.vendor == "amd":
        return (0.4, "suspected", "bf16") if re.search(r"MI[1-9]\d\d", name) else None
    if info.capability is None or info.capability < (7, 0) or _WITHOUT.search(name):
        return None
    if info.capability < (8, 0):
        return 0.4, "suspected", "fp16"
    if "GeForce" in name and info.capability >= (8, 6):
        return 0.3, "suspected", "bf16"
    return 0.5, "deduced", "tf32"


def claims(views: Views) -> pl.DataFrame:
    """FP32 matrix kernels on devices that have tensor cores."""
    kernels = views.kernels.filter(pl.col("family").is_in(["gemm", "conv"]))
    pairs = kernels.select("rank", "device").unique(maintain_order=True).iter_rows()
    rows = [(r, d, advice_for(views.facts.device(r, d))) for r, d in pairs]
    known = [(r, d, *found) for r, d, found in rows if found]
    schema: dict[str, type[pl.DataType]] = {
        "rank": pl.Int32,
        "device": pl.Int32,
        "weight": pl.Float64,
        "level": pl.String,
        "use": pl.String,
    }
    able = pl.DataFrame(known, schema=schema, orient="row")
    joined = kernels.join(able, on=["rank", "device"], nulls_equal=True, maintain_order="left")
    took = pl.col("end_ns") - pl.col("start_ns")
    full = pl.col("fill").is_null() | (pl.col("fill") >= 1)
    slow = _in_fp32() & (took >= LEAST_NS) & full & (_already(took) < ALREADY)
    return kernel_claims(joined.filter(slow), views)


def _in_fp32() -> pl.Expr:
    """FP32 on ordinary units; on AMD FP32 operands, whatever the units."""
    simt = (pl.col("cores") == "simt") | (pl.col("use") == "bf16") & pl.col("cores").is_not_null()
    return (simt & (pl.col("precision") == "fp32")).fill_null(value=False)


def _already(took: pl.Expr) -> pl.Expr:
    """Share of the family's time on its device that uses what would be advised."""
    half = pl.col("precision").is_in(["fp16", "bf16"])
    other = pl.when(pl.col("use") == "tf32").then(pl.col("precision") == "tf32").otherwise(half)
    uses = other & (pl.col("cores") == "tensor")
    group = ["rank", "device", "family"]
    return (took.filter(uses.fill_null(value=False)).sum() / took.sum()).over(group).fill_nan(0.0)


def remedies(finding: Finding, facts: Facts) -> list[Remedy]:
    """TF32 where the GPU has it, else mixed precision."""
    advised = {found[2] for info in facts.devices.values() if (found := advice_for(info))}
    mixed = _mixed("float16" if advised == {"fp16"} else "bfloat16")
    return [_tf32(), mixed] if "tf32" in advised else [mixed]


def _tf32() -> Remedy:
    return Remedy(
        what="Allow TF32 for FP32 products and convolutions",
        how='At the start of the script: torch.set_float32_matmul_precision("high"); '
        "torch.backends.cudnn.allow_tf32 = True.",
        safe=False,
        why_safe="Inputs of products are rounded to 10 bits of mantissa; training rarely notices, "
        "solvers and metrics may. Compare the loss over some hundred steps.",
        effect={"kind": "kernels_scaled", "factor": 0.5, "only": "claimed"},
        prove="Record the same steps: kernel names must show tensorop, s1688 or tf32.",
    )


def _mixed(dtype: str) -> Remedy:
    scaler = " and torch.amp.GradScaler around the backward pass" if dtype == "float16" else ""
    return Remedy(
        what=f"Train in mixed precision ({dtype})",
        how=f'with torch.autocast("cuda", dtype=torch.{dtype}): around forward and loss{scaler}.',
        safe=False,
        why_safe="Fewer bits: loss curves must be compared. It also adds casts, which slow down "
        "runs that the host cannot launch fast enough.",
        effect={"kind": "kernels_scaled", "factor": 0.4},
        prove="Record the same steps: kernel names must show s16816, h884 or bf16, and the step "
        "must be shorter.",
    )


def example() -> tuple[Evidence, float]:
    """Three steps of 4 ms on an A100: an FP32 product of 3 ms, 1 ms of elementwise work.

    TF32 is available: half of the product's time is lost, 3 x 0.5 x 3 ms = 4.5 ms.
    """
    story = Story()
    for number in range(3):
        at = number * 4000
        story.step(number, at, at + 4000)
        story.op("aten::mm", at, at + 10)
        story.launch("ampere_sgemm_128x64_tn", (at, at + 5), (at + 5, at + 3005))
        story.op("aten::add", at + 1000, at + 1010)
        story.launch(
            "vectorized_elementwise_kernel", (at + 1000, at + 1005), (at + 3005, at + 4005)
        )
    return story.evidence(), 3 * 0.5 * 3e-3
