"""The memory allocator asks the driver for memory, or gives it back, in the middle of the work.

Looks like: some steps are slow at random, more so as memory fills up; ``cudaFree`` and
``cudaMalloc`` inside operators; ``num_alloc_retries`` above zero.

How we tell: the device is empty, and the thread that launches the next work is inside
``cudaMalloc``, ``cudaFree``, ``cudaHostAlloc``, ``hipMalloc``, ``hipFree``, a virtual-memory call
or their kin. Growth in the first of at least three iterations (80 % of all allocator time) and the
calls by which a library sets itself up are start-up and counted there; calls next to an
``empty_cache`` in every step are counted there. In readings from outside: memory that is in use to
95 % or more is told without seconds, *suspected*, since a framework may keep memory in reserve.

Change: less memory pressure (smaller batch, activation checkpointing), one block size that can
grow (``expandable_segments:True``), inputs of a constant size; pinned buffers made once.

May be wrong: a run recorded from its first step on still grows its memory: record later steps.
``cudaFree`` waits for the device, which works during part of the call; only empty time counts.

Sources: CUDA memory management (PYTORCH_CUDA_ALLOC_CONF) in the PyTorch documentation;
pytorch/pytorch FSDP report (98 % reserved: batch 12 slower than 8); LLaVA with DeepSpeed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whyidle.diagnosis import Finding, Remedy, Sign
from whyidle.sampled_stories import GIB, Sampling
from whyidle.stories import Story
from whyidle.views.memory_words import growing_segments, with_lines
from whyidle.views.sampled_pauses import full_memory_signs

if TYPE_CHECKING:
    import polars as pl

    from whyidle.model import Evidence, Facts
    from whyidle.views import Views

TITLE = "Memory allocated and freed during the work"
STATUS = "preview"
NEEDS = ("device", "calls")
OBSERVES = ("samples",)


def claims(views: Views) -> pl.DataFrame:
    """Empty time while the launching thread was in the driver's memory calls."""
    return with_lines(views.blamed("allocator"), views.memories)


def observations(views: Views) -> list[Sign]:
    """Sampled GPUs whose memory is nearly full."""
    return full_memory_signs(views, _remedies())


def remedies(finding: Finding, facts: Facts) -> list[Remedy]:
    """Segments that grow; then less memory."""
    return _remedies()


def _remedies() -> list[Remedy]:
    prove = (
        "torch.cuda.memory_stats(): num_alloc_retries must stay the same and num_device_alloc "
        "must not grow after the first steps. Record the same steps again: no cudaMalloc or "
        "cudaFree in them."
    )
    return [
        growing_segments("allocator_calls_removed", prove),
        Remedy(
            what="Stay below about 90 % of the memory",
            how="Compare torch.cuda.memory_reserved() with the device's memory. Lower the batch a "
            "little, checkpoint activations (torch.utils.checkpoint.checkpoint(f, x, "
            "use_reentrant=False)), or pad varying inputs to a few sizes so that blocks fit again.",
            safe=False,
            why_safe="A smaller batch changes training; checkpointing computes the forward twice.",
            effect={"kind": "allocator_calls_removed"},
            prove=prove,
        ),
    ]


def example() -> tuple[Evidence, float]:
    """Four steps; in each an operator frees for 190 us and allocates for 180 us, device empty."""
    story = Story()
    for number in range(4):
        begin = number * 1000
        story.step(number, begin, begin + 1000)
        story.op("aten::mm", begin, begin + 12)
        story.launch("gemm", (begin + 5, begin + 10), (begin + 10, begin + 100))
        story.op("aten::cat", begin + 50, begin + 500)
        story.call("cudaFree", begin + 110, begin + 300)
        story.call("cudaMalloc", begin + 300, begin + 480)
        story.launch("CatArrayBatchedCopy", (begin + 490, begin + 495), (begin + 495, begin + 1000))
    return story.evidence(), 4 * 370e-6


def observed_example() -> tuple[Evidence, str]:
    """78 of 80 GiB in use."""
    story = Sampling(period_s=10)
    story.runs(300, gpu_utilization=0.9, memory_used=78 * GIB, memory_total=80 * GIB)
    return story.evidence(), "78 GiB of 80 GiB"
