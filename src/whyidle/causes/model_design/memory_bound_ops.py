"""Kernels that only move bytes follow one another, where one kernel could read and write once.

Looks like: the GPU is busy all the time, tensor cores are not; between the matrix products run
many elementwise, normalisation, softmax and copy kernels.

How we tell: outside Optimizer.step, and for kernels of 5 us or longer that fill the GPU, one of
four.
Attention: a softmax between two batched matrix products, with at most 6 scaling, masking or
copying kernels around it. All of it works on the full score matrix, which fused attention never
writes. Weight 0.8: the published FlashAttention figures are 41.7 ms against 7.3 ms, and 1 -
7.3/41.7 = 0.82.
Chain: three or more streaming kernels in a row on one stream, on inputs of one size where shapes
were recorded. On one tensor a fused kernel would read and write once where n kernels do so n
times and spare (n-1)/n. Half of that is claimed, because other operands are still read and what
backward needs is still written: 0.33 for three, 0.44 for nine. Published: 1.6 to 1.8 times faster
with fusion. Kernels that a compiler or a library already fused end a chain.
Layout: conversions between NCHW and NHWC around convolutions. Weight 0.5, only suspected: another
memory format spares all of them but may slow other kernels.
Copies inside the device while nothing else runs, with the operator that asked for them: weight 1,
because the device does nothing else.

Change: torch.nn.functional.scaled_dot_product_attention; torch.compile; channels_last; write into
place instead of cat, contiguous and clone.

May be wrong: attention scores that are returned, or biases that fused attention does not support,
keep it from being used. Statistics of a whole batch cannot be fused with what follows. Depthwise
convolutions are memory-bound too but no time is claimed for them: a dense one takes as long. CUDA
graphs do not help here.

Sources: Dao et al., FlashAttention, NeurIPS 2022; cases fangwei123456/spikingjelly#740,
pytorch/pytorch#18631, pytorch/pytorch#50036, lm-sys/FastChat#458.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from whyidle.diagnosis import Finding, Remedy
from whyidle.stories import Story
from whyidle.views.kernels import kernel_claims
from whyidle.views.streaming import avoidable, device_copies

if TYPE_CHECKING:
    from whyidle.model import Evidence, Facts
    from whyidle.views import Views

TITLE = "Memory-bound operators that could be fused"
STATUS = "preview"
NEEDS = ("device",)
_TOLD = {
    "attention": "unfused attention",
    "layout": "NCHW/NHWC conversion",
    "chain": "a chain of memory-bound kernels",
}


def claims(views: Views) -> pl.DataFrame:
    """Streaming kernels by what they could be spared, and copies alone on the device."""
    rows = avoidable(views.kernels)
    kind = pl.col("kind").replace_strict(_TOLD, return_dtype=pl.String)
    told = pl.when(pl.col("op").is_null()).then(kind).otherwise(pl.col("op") + " in " + kind)
    return pl.concat(
        [kernel_claims(rows.with_columns(told.alias("told")), views), device_copies(views)]
    )


def remedies(finding: Finding, facts: Facts) -> list[Remedy]:
    """One remedy for each kind among the places, largest first."""
    found: list[Remedy] = []
    for place in finding.where:
        kind = next((k for k, text in _TOLD.items() if text in (place.op or "")), "copy")
        remedy = _REMEDIES[kind]
        if remedy not in found:
            found.append(remedy)
    return found


_REMEDIES = {
    "attention": Remedy(
        what="Use fused attention",
        how="Replace softmax(q @ k.transpose(-2, -1) * scale + mask) @ v by "
        "torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale); "
        'with Hugging Face models: from_pretrained(..., attn_implementation="sdpa").',
        safe=False,
        why_safe="The same function summed in another order: results differ in the last bits. The "
        "attention weights themselves are not returned.",
        effect={"kind": "kernels_scaled", "factor": 0.2, "only": "claimed"},
        prove="Record the same steps: flash or efficient attention kernels must replace the "
        "softmax and the two products.",
    ),
    "chain": Remedy(
        what="Fuse chains of elementwise operators",
        how="model = torch.compile(model); for one function: @torch.compile on it.",
        safe=False,
        why_safe="Fused kernels may round differently in the last bits, and changing shapes "
        "recompile; compare the loss of a few steps.",
        effect={"kind": "kernels_scaled", "factor": 0.6, "only": "claimed"},
        prove="Record the same steps: triton_ kernels must replace the chain and take less time.",
    ),
    "layout": Remedy(
        what="Keep tensors in the memory format that convolutions use",
        how="model = model.to(memory_format=torch.channels_last) and the input batch likewise; on "
        "AMD set PYTORCH_MIOPEN_SUGGEST_NHWC=1 as well.",
        safe=False,
        why_safe="Values stay the same up to rounding, but other kernels may be chosen, and some "
        "models were slower: measure both.",
        effect={"kind": "kernels_scaled", "factor": 0.5, "only": "claimed"},
        prove="Record the same steps: nchwToNhwc or batched_transpose kernels must be gone and the "
        "step be shorter.",
    ),
    "copy": Remedy(
        what="Spare copies inside the device",
        how="Allocate the result once and let operators write into its slices (out=, views) "
        "in place of torch.cat, .contiguous() and .clone() on large tensors.",
        safe=False,
        why_safe="Views share memory with their base: in-place changes become visible in both.",
        effect={"kind": "spans_removed", "only": "claimed"},
        prove="Record the same steps: Memcpy DtoD must be fewer.",
    ),
}


def example() -> tuple[Evidence, float]:
    """Three steps of 10 ms: 4 ms of products, then a softmax of 3 ms, then a chain of three x 1 ms.

    The softmax stands between two bmm: 0.8 x 3 ms. The chain follows the second bmm and spares
    0.5 x 2/3 of 3 ms = 1 ms. Lost: 3 x (2.4 + 1.0) ms.
    """
    story = Story()
    product, elementwise = "ampere_bf16_s16816gemm_bf16_128x128_tn", "vectorized_elementwise_kernel"
    work = [
        ("aten::bmm", product, 2000), ("aten::softmax", "cunn_SoftMaxForward", 3000),
        ("aten::bmm", product, 2000), ("aten::mul", elementwise, 1000),
        ("aten::add", elementwise, 1000), ("aten::gelu", elementwise, 1000),
    ]  # fmt: skip
    for number in range(3):
        at = number * 10_000
        story.step(number, at, at + 10_000)
        ready = at + 5
        for index, (op, kernel, took) in enumerate(work):
            call = at + index * 20
            story.op(op, call, call + 10)
            story.launch(kernel, (call, call + 5), (ready, ready + took))
            ready += took
    return story.evidence(), 3 * (0.8 * 3e-3 + 0.5 * 2 / 3 * 3e-3)
