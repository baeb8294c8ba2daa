"""The allocator gives cached memory back to the driver in order to meet a request.

Looks like: random slow steps near full memory; ``num_alloc_retries`` above zero.

How we tell: in the history of the CUDA allocator, segments are freed and the next event is a new
segment: the driver had no memory left, so cached blocks went back and the request was tried again.
Each time the device is synchronised and cudaFree and cudaMalloc run. Segments that ``empty_cache``
gave back are not counted. *Deduced*: the history does not say why segments went back.

Change: segments that can grow (expandable_segments:True), a little less memory, inputs of few
sizes.

May be wrong: a library that frees segments by itself just before it asks for memory looks the same.
A trace of the same steps gives the seconds.

Sources: CUDA memory management in the PyTorch documentation (num_alloc_retries).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whyidle.diagnosis import Remedy, Sign
from whyidle.memory_stories import MemoryStory
from whyidle.views.memory_words import (
    device_text,
    event_row,
    growing_segments,
    place_of,
    size_text,
)

if TYPE_CHECKING:
    from whyidle.model import Evidence
    from whyidle.views import Views
    from whyidle.views.allocator import DeviceMemory

TITLE = "Cached memory given back to meet a request"
STATUS = "preview"
OBSERVES = ("allocations",)
MOST_PLACES = 5


def observations(views: Views) -> list[Sign]:
    """One sign per device on which it happened."""
    return [_sign(views.evidence, memory) for memory in views.memories if memory.retries]


def _sign(evidence: Evidence, memory: DeviceMemory) -> Sign:
    retries = memory.retries
    given = sum(count for _, count in retries)
    often = "once" if len(retries) == 1 else f"{len(retries)} times"
    stacks = list(dict.fromkeys(memory.events["stack"][at] for at, _ in retries))
    largest = max(retries, key=lambda pair: pair[1])
    full = int(memory.reserved[largest[0]])
    return Sign(
        level="deduced",
        what=f"On {device_text(memory)} cached segments went back to the driver {often} so that a "
        f"request could be met ({size_text(given)} in all), with {size_text(full)} reserved at the "
        "largest of them.",
        where=[place_of(memory, stack) for stack in stacks[:MOST_PLACES] if stack],
        evidence=[
            event_row(
                evidence, memory, at, f"a new segment after {size_text(count)} were given back"
            )
            for at, count in retries[:5]
        ],
        remedies=[growing_segments("allocator_calls_removed", _PROVE), _less()],
    )


_PROVE = "torch.cuda.memory_stats()['num_alloc_retries'] must not rise over the same steps."


def _less() -> Remedy:
    return Remedy(
        what="Stay below about 90 % of the memory",
        how="Lower the batch a little, checkpoint activations, or pad varying inputs to a few "
        "sizes so that cached blocks fit again.",
        safe=False,
        why_safe="A smaller batch changes training; checkpointing computes the forward twice.",
        effect={"kind": "allocator_calls_removed"},
        prove=_PROVE,
    )


def observed_example() -> tuple[Evidence, str]:
    """Twice, 512 MiB go back to the driver and 768 MiB come in one piece."""
    story = MemoryStory().grow(0, 1024).alloc(0, 1024, line=12)
    for turn in range(2):
        base = 2048 + turn * 4096
        story.grow(base, 512).alloc(base, 512, line=25).free(base)
        story.shrink(base).grow(base + 1024, 768, line=27).alloc(base + 1024, 768, line=27)
        story.free(base + 1024)
    return story.evidence(), "went back to the driver 2 times"
