"""The batch is too small to fill the GPU: whole multiprocessors have nothing to do.

Looks like: the GPU is rarely empty, utilisation reads high, and yet twice the batch takes hardly
longer; a faster GPU does not help.

How we tell: a kernel cannot use more multiprocessors (SMs) than it has thread blocks. Kernels
that ran alone with blocks for at most 75 % of the SMs are under-filled, and lose 1 - blocks / SMs
of their time: 27 blocks on 108 SMs lose 75 %. When under-filled kernels make up at least half of
the time of the matrix kernels (matrix products, convolutions, attention), the batch is the
reason, and every under-filled kernel outside Optimizer.step is counted here. Otherwise, and
always for the optimizer's kernels, they belong to small_work.underfilled_kernels; no kernel is
counted twice.

Change: raise the batch per GPU until the step takes nearly twice as long for twice the batch; use
fewer GPUs for the same batch; or let several small jobs share the GPU.

May be wrong: kernels that stay on the device launch few blocks by design. A full grid can still
leave an SM half empty; that is not counted. A larger batch needs memory, may need another
learning rate, and is slower close to the memory limit. Decoding one token at a time has small
kernels by nature.

Sources: CUDA C++ Best Practices Guide, execution configuration; cases ThilinaRajapakse/
simpletransformers#1027, araffin/sbx#35, araffin/rl-baselines-zoo#72.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from whyidle.diagnosis import Finding, Remedy
from whyidle.stories import Story
from whyidle.views.kernels import kernel_claims
from whyidle.views.underfilled import underfilled

if TYPE_CHECKING:
    from whyidle.model import Evidence, Facts
    from whyidle.views import Views

TITLE = "Batch too small to fill the GPU"
STATUS = "preview"
NEEDS = ("blocks", "sms")


def claims(views: Views) -> pl.DataFrame:
    """Kernels that a larger batch would fill."""
    return kernel_claims(underfilled(views.kernels).filter("batch"), views)


def remedies(finding: Finding, facts: Facts) -> list[Remedy]:
    """A larger batch per GPU; how far is for a measurement to say."""
    return [
        Remedy(
            what="Raise the batch per GPU",
            how="Double batch_size in the DataLoader while samples per second still grow, and stop "
            "before torch.cuda.max_memory_allocated() passes 90 % of the memory. With gradient "
            "accumulation, merge micro-batches first: the result is the same and nothing else "
            "changes.",
            safe=False,
            why_safe="A larger batch changes training: the learning rate and the number of steps "
            "may have to follow. Merging accumulated micro-batches does not, save for layers that "
            "look across the batch, such as BatchNorm.",
            effect={"kind": "batch_scaled", "factor": 2.0},
            prove="Record the same steps with the larger batch: samples per second must rise.",
        )
    ]


def example() -> tuple[Evidence, float]:
    """Three steps of 4 ms; in each one product of 2 ms has 27 blocks for 108 SMs.

    It loses 1 - 27/108 = 0.75 of 2 ms. The other 2 ms are an elementwise kernel that fills the
    device, so all matrix time is under-filled. Lost: 3 x 0.75 x 2 ms = 4.5 ms.
    """
    story = Story()
    for number in range(3):
        at = number * 4000
        story.step(number, at, at + 4000)
        story.op("aten::mm", at, at + 10)
        story.launch(
            "ampere_bf16_s16816gemm_bf16_128x64_tn", (at, at + 5), (at + 5, at + 2005), blocks=27
        )
        story.op("aten::add", at + 1000, at + 1010)
        story.launch(
            "vectorized_elementwise_kernel", (at + 1000, at + 1005), (at + 2005, at + 4005)
        )
    return story.evidence(), 3 * 0.75 * 2e-3
