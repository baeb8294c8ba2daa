"""Reserved memory lies in pieces: enough in all, and no piece is large enough.

Looks like: out of memory although much is "reserved by PyTorch but unallocated"; memory that
nvidia-smi shows grows while the allocated bytes do not.

How we tell: in a snapshot of the CUDA allocator, a request failed while at least as many bytes were
reserved and not allocated, *seen* when the snapshot was taken right then and its largest free block
is too small, else *deduced*; or, without a failed request, blocks that are free inside segments
that others keep in use make up 15 % of the reserved bytes and 256 MiB at least (*seen*). Segments
that are free as a whole do not count: the allocator can give them back. Nor do private pools of
CUDA graphs.

Change: segments that can grow (expandable_segments:True); inputs padded to few sizes; no splitting
of large blocks for small requests (max_split_size_mb); long-lived tensors made before the others.

May be wrong: free pieces at the moment of the snapshot may be used a moment later; a snapshot at
the peak of a step tells most.

Sources: CUDA memory management (PYTORCH_CUDA_ALLOC_CONF) and Understanding CUDA Memory Usage in the
PyTorch documentation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from whyidle.diagnosis import EvidenceRow, Remedy, Sign
from whyidle.memory_stories import MemoryStory
from whyidle.views.memory_words import (
    device_text,
    event_row,
    growing_segments,
    place_of,
    size_text,
    source_of,
)

if TYPE_CHECKING:
    from whyidle.model import Evidence
    from whyidle.views import Views
    from whyidle.views.allocator import DeviceMemory, Shortage

TITLE = "Reserved memory in pieces too small to use"
STATUS = "preview"
OBSERVES = ("memory_blocks",)
LEAST_SHARE = 0.15
LEAST_BYTES = 256 << 20


def observations(views: Views) -> list[Sign]:
    """Per device, the failed request that pieces explain best, else the pieces themselves."""
    signs = []
    for memory in views.memories:
        failed = [s for s in memory.shortages if s.reserved - s.allocated >= s.bytes > 0]
        if failed:
            signs.append(_failed(views.evidence, memory, max(failed, key=lambda s: s.bytes)))
        elif (sign := _pieces(views.evidence, memory)) is not None:
            signs.append(sign)
    return signs


def _failed(evidence: Evidence, memory: DeviceMemory, shortage: Shortage) -> Sign:
    unused = shortage.reserved - shortage.allocated
    largest = _largest(memory)
    at_once = not memory.action[shortage.at + 1 :].is_in(["alloc", "free_completed"]).any()
    told = ""
    if at_once and largest is not None and largest < shortage.bytes:
        told = f"; the largest free block is {size_text(largest)}"
    free = shortage.device_free
    left = "" if free is None else f", with {size_text(free)} left on the device"
    return Sign(
        level="seen" if told else "deduced",
        what=f"A request of {size_text(shortage.bytes)} failed on {device_text(memory)}{left}, "
        f"while {size_text(unused)} were reserved and not allocated{told}.",
        where=[place_of(memory, shortage.stack)],
        evidence=[
            event_row(
                evidence, memory, shortage.at,
                f"out of memory: {size_text(shortage.reserved)} reserved, "
                f"{size_text(shortage.allocated)} allocated",
            )
        ],
        remedies=_remedies(memory),
    )  # fmt: skip


def _common(memory: DeviceMemory) -> pl.DataFrame:
    return memory.segments.filter(pl.col("pool").is_null())


def _largest(memory: DeviceMemory) -> int | None:
    found = _common(memory)["largest"].to_list()
    return max(found) if found else None


def _pieces(evidence: Evidence, memory: DeviceMemory) -> Sign | None:
    split = _common(memory).filter((pl.col("held") > 0) & (pl.col("free") > 0))
    stuck = int(split["free"].sum())
    if stuck < LEAST_BYTES or stuck < LEAST_SHARE * memory.segment_bytes:
        return None
    share = stuck / memory.segment_bytes
    largest = int(split["largest"].to_numpy().max())
    return Sign(
        level="seen",
        what=f"{size_text(stuck)} of {size_text(memory.segment_bytes)} reserved on "
        f"{device_text(memory)} ({share:.0%}) are free pieces of {split.height} segments that are "
        f"otherwise in use; the largest piece is {size_text(largest)}.",
        where=[],
        evidence=[
            EvidenceRow(
                source=source_of(evidence, memory),
                row=None,
                what=f"{memory.segments.height} segments, {memory.blocks.height} blocks",
            )
        ],
        remedies=_remedies(memory),
    )


def _remedies(memory: DeviceMemory) -> list[Remedy]:
    prove = (
        "Take a snapshot at the same step: reserved less allocated bytes "
        "(torch.cuda.memory_reserved() - torch.cuda.memory_allocated()) must be smaller."
    )
    sizes = Remedy(
        what="Ask for few sizes",
        how="Pad varying inputs to a few lengths, or bucket them; make long-lived tensors "
        "(parameters, optimizer state, caches) before the first step. Else try "
        "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:512.",
        safe=False,
        why_safe="Padding changes what a batch holds; max_split_size_mb may cost speed.",
        effect={"kind": "none"},
        prove=prove,
    )
    expandable = memory.blocks["expandable"].fill_null(value=False).any()
    return [sizes] if expandable else [growing_segments("none", prove), sizes]


def observed_example() -> tuple[Evidence, str]:
    """4 x 512 MiB reserved, every other quarter free: 1 GiB free, and 512 MiB cannot be had."""
    story = MemoryStory()
    for segment in range(4):
        base = segment * 1024
        story.grow(base, 512)
        for quarter in range(4):
            story.alloc(base + quarter * 128, 128, line=20)
        story.free(base).free(base + 256)
    story.oom(512, 100, line=33)
    return story.evidence(), "1 GiB were reserved and not allocated; the largest free block is 128"
