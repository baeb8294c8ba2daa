"""Matrix dimensions that are no multiple of 16 bytes keep tensor cores waiting for their operands.

Looks like: one product, often the output layer over a vocabulary or attention over an odd
sequence length, is much slower than a slightly larger one; its kernel is called something with
align1 or align2.

How we tell: tensor cores are fed in accesses of 16 bytes: 8 elements of FP16 or BF16, 4 of TF32.
A CUTLASS kernel says in its name how many elements it reads at once; align1, align2 or, for FP16
and BF16, align4 means that the shapes did not allow more. On Volta and Turing, FP16 operands on a
kernel without tensor cores count as well when a recorded dimension is no multiple of 8. When the
recorded input shapes are all multiples, nothing is claimed: then a slice or an offset is
unaligned. Weight 0.29: padding a vocabulary took one published product from 14 to 10 ms, and 1 -
10/14 = 0.29.

Change: pad the dimension with zeros to the next multiple of 8, better 64: vocabulary, hidden
size, number of classes, sequence length (pad_to_multiple_of=8 in tokenizers).

May be wrong: newer libraries read odd shapes almost as fast; one published run gained nothing.
Kernels of AMD, and of libraries that do not state the alignment, are not judged. Dimensions that
come from the data, such as a sequence length, cost padding elsewhere.

Sources: NVIDIA Deep Learning Performance Guide, matrix multiplication background; cases
PaddlePaddle/models#5134, tensorflow/models#7407, RobertRiachi/nanoPALM#6, allenai/allennlp#4929.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from whyidle.diagnosis import Finding, Remedy
from whyidle.stories import Story
from whyidle.views.kernels import kernel_claims
from whyidle.views.shapes import dims

if TYPE_CHECKING:
    from whyidle.model import Evidence, Facts
    from whyidle.views import Views

TITLE = "Matrix shapes not aligned for tensor cores"
STATUS = "preview"
NEEDS = ("device", "alignment")
WEIGHT = 0.29
NEEDED = {"fp16": 8, "bf16": 8, "tf32": 4}
"""Elements in 16 bytes, by precision of the operands."""
_PRODUCTS = re.compile(r"(mm|matmul|linear|conv\w*|convolution|_backward|einsum)(_overrideable)?$")


def claims(views: Views) -> pl.DataFrame:
    """Matrix kernels that read less than 16 bytes at a time because of their shapes."""
    kernels = views.kernels.filter(pl.col("family").is_in(["gemm", "conv"]))
    needed = pl.col("precision").replace_strict(NEEDED, default=None, return_dtype=pl.Int64)
    rows = kernels.with_columns(needed.alias("needed")).filter(pl.col("needed").is_not_null())
    narrow = (pl.col("align") < pl.col("needed")).fill_null(value=False)
    off = (pl.col("cores") == "simt").fill_null(value=False)
    rows = rows.filter(narrow | off)
    found = [
        _judge(*row)
        for row in rows.select("op", "shapes", "needed", "align", "precision").iter_rows()
    ]
    told = pl.Series("told", found, dtype=pl.String)
    rows = rows.with_columns(told, pl.lit(WEIGHT).alias("weight"), pl.lit("deduced").alias("level"))
    return kernel_claims(rows.filter(pl.col("told").is_not_null()), views)


def _judge(
    op: str | None, shapes: str | None, needed: int, align: int | None, precision: str
) -> str | None:
    """What to name; None when the shapes do not explain the narrow access."""
    sides = dims(shapes) if op and _PRODUCTS.search(op) else ()
    tensors = [d for d in sides if len(d) >= 2]
    if tensors and all(side % needed == 0 for d in tensors for side in d[-2:]):
        return None
    if align is None and not tensors:
        return None
    text = " x ".join(str(list(d)) for d in tensors[:2])
    how = f"reads {align} of {needed} elements at a time" if align else "runs without tensor cores"
    return f"{op or 'matrix product'} {text} in {precision} {how}".replace("  ", " ")


def remedies(finding: Finding, facts: Facts) -> list[Remedy]:
    """Pad what the named operator multiplies."""
    return [
        Remedy(
            what="Pad the odd dimension to a multiple of 8 (better 64)",
            how="For a vocabulary: size = (vocab + 63) // 64 * 64 in nn.Embedding and the output "
            "layer; for sequences: pad_to_multiple_of=8 in the collator, and "
            "scaled_dot_product_attention for attention itself; for features or classes: "
            "torch.nn.functional.pad once, or a larger nn.Linear whose extra outputs are ignored.",
            safe=False,
            why_safe="Padded rows must be masked out of loss and argmax; a checkpoint of the "
            "old shape needs its weights padded too.",
            effect={"kind": "kernels_scaled", "factor": 1 - WEIGHT, "only": "claimed"},
            prove="Record the same steps: the kernel's name must say align8 (align4 for TF32) and "
            "its time must fall by more than the padding adds.",
        )
    ]


def example() -> tuple[Evidence, float]:
    """Three steps of 4 ms: a product over 50257 words of 2 ms, read one element at a time.

    Lost: 3 x 0.29 x 2 ms = 1.74 ms. The aligned product beside it loses nothing.
    """
    story = Story()
    for number in range(3):
        at = number * 4000
        story.step(number, at, at + 4000)
        shapes, types = "[[8192, 768], [768, 50257]]", '["c10::Half", "c10::Half"]'
        story.op("aten::mm", at, at + 10, shapes=shapes, types=types)
        odd = (
            "void cutlass::Kernel<cutlass_75_tensorop_f16_s1688gemm_f16_128x128_nn_align1>(Params)"
        )
        story.launch(odd, (at, at + 5), (at + 5, at + 2005))
        shapes = "[[8192, 768], [768, 3072]]"
        story.op("aten::mm", at + 1000, at + 1010, shapes=shapes, types=types)
        even = (
            "void cutlass::Kernel<cutlass_80_tensorop_f16_s16816gemm_f16_256x128_nn_align8>(Params)"
        )
        story.launch(even, (at + 1000, at + 1005), (at + 2005, at + 4005))
    return story.evidence(), 3 * WEIGHT * 2e-3
