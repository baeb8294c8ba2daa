"""Memory is tidied up in every step: its cache emptied, or the garbage collector called.

Looks like: ``cudaFree`` outside any operator and ``cudaMalloc`` inside the next ones, step after
step; ``torch.cuda.empty_cache()`` (often with ``gc.collect()``) in the loop, or in a library's own
training loop. ``gc.collect()`` walks every container of Python that is alive.

How we tell: memory is freed outside operators, or inside a recorded ``empty_cache``, in at least
half of the recorded steps and in two at least. Then all empty time in the driver's memory calls
counts here, the new allocations included (deduced). A single call is an allocator call, no loop.
Calls of ``gc.collect()`` are recorded as Python frames; when they come in as many steps, the empty
time inside them counts (seen). In the history of a memory snapshot: segments went back to the
driver under a call of ``empty_cache`` three times or more (seen, without seconds).

Change: take ``empty_cache()`` and ``gc.collect()`` out of the loop, or call them every few hundred
steps; the allocator frees its cache by itself before it reports that memory is out, and Python
collects garbage by itself.

May be wrong: a library that manages its own memory with ``cudaFree`` in every step looks the same.
Without the cache emptied, the peak that ``nvidia-smi`` shows rises (one report: 19.3 to 23.5 GB).

Sources: CUDA memory management in the PyTorch documentation; huggingface/peft (108 to 45 s without
it), huggingface/transformers (removed from Trainer).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whyidle.diagnosis import Finding, Remedy, Sign
from whyidle.memory_stories import MemoryStory
from whyidle.stories import Story
from whyidle.views.certainty import recorded_as
from whyidle.views.memory_words import device_text, event_row, place_of, size_text

if TYPE_CHECKING:
    import polars as pl

    from whyidle.model import Evidence, Facts
    from whyidle.views import Views
    from whyidle.views.host import Host

TITLE = "Memory tidied up in the loop"
STATUS = "preview"
NEEDS = ("blame", "steps")
OBSERVES = ("allocations",)
LEAST_TIMES = 3


def claims(views: Views) -> pl.DataFrame:
    """Empty time in memory calls of a run that empties its cache again and again."""
    return views.blamed("empty_cache", level=_level)


def _level(rows: pl.DataFrame, host: Host) -> pl.Series:
    """Seen inside a recorded collection; what the driver's calls are for is deduced."""
    return recorded_as(rows, host, "python", otherwise="deduced")


def observations(views: Views) -> list[Sign]:
    """Devices of whose history ``empty_cache`` gave segments back again and again."""
    signs = []
    for memory in views.memories:
        emptied = memory.emptied
        if len(emptied) < LEAST_TIMES:
            continue
        given = sum(count for _, count in emptied)
        stacks = list(dict.fromkeys(memory.events["stack"][at] for at, _ in emptied))
        signs.append(
            Sign(
                level="seen",
                what=f"empty_cache gave memory of {device_text(memory)} back to the driver "
                f"{len(emptied)} times, {size_text(given)} in all.",
                where=[place_of(memory, stack) for stack in stacks[:5]],
                evidence=[
                    event_row(views.evidence, memory, at, f"{size_text(count)} given back")
                    for at, count in emptied[:5]
                ],
                remedies=_remedies(),
            )
        )
    return signs


def remedies(finding: Finding, facts: Facts) -> list[Remedy]:
    """Take it out."""
    collects = ["collect" in (place.op or "") for place in finding.where]
    found = _remedies() if not collects or not all(collects) else []
    return [*found, _no_collection()] if any(collects) else found


def _no_collection() -> Remedy:
    return Remedy(
        what="Take gc.collect() out of the loop",
        how="Delete the call, or make it every few hundred steps: Python collects by itself. If "
        "memory then grows, find the reference cycle that holds it.",
        safe=True,
        why_safe="Results stay the same; memory held by reference cycles is freed later.",
        effect={"kind": "spans_removed", "name": "collect"},
        prove="Record the same steps again: no collection inside them, and memory stays level.",
    )


def _remedies() -> list[Remedy]:
    return [
        Remedy(
            what="Take empty_cache() out of the loop",
            how="Search the training code and its libraries for torch.cuda.empty_cache and "
            "gc.collect; delete the calls, or do them every few hundred steps or before "
            "evaluation only (transformers: torch_empty_cache_steps=None).",
            safe=True,
            why_safe="The cache changes no result, and the allocator frees it by itself before it "
            "raises out of memory. Other processes on the same device see less free memory.",
            effect={"kind": "allocator_calls_removed"},
            prove="Record the same steps again: no cudaFree and no cudaMalloc after the first "
            "step; watch torch.cuda.max_memory_reserved().",
        )
    ]


def example() -> tuple[Evidence, float]:
    """Four steps; in each 200 us of cudaFree outside operators and 170 us of cudaMalloc after."""
    story = Story()
    for number in range(4):
        begin = number * 1000
        story.step(number, begin, begin + 1000)
        story.op("aten::mm", begin, begin + 12)
        story.launch("gemm", (begin + 5, begin + 10), (begin + 10, begin + 100))
        story.call("cudaFree", begin + 100, begin + 220)
        story.call("cudaFree", begin + 220, begin + 300)
        story.op("aten::mm", begin + 310, begin + 500)
        story.call("cudaMalloc", begin + 315, begin + 485)
        story.launch("gemm", (begin + 490, begin + 495), (begin + 495, begin + 1000))
    return story.evidence(), 4 * (200 + 170) * 1e-6


def observed_example() -> tuple[Evidence, str]:
    """Four steps; empty_cache on line 40 gives 512 MiB back after each."""
    stack = "torch/cuda/memory.py(170): empty_cache\ntrain.py(40): step"
    story = MemoryStory()
    for _ in range(4):
        story.grow(0, 512, line=25).alloc(0, 400, line=25).free(0).shrink(0, stack)
    return story.evidence(), "back to the driver 4 times"
