"""Which lines hold the memory at its peak, and so decide how large a batch fits.

Looks like: out of memory, or a batch that had to be made small.

How we tell: the history of the CUDA allocator is added up event by event, back from the blocks of
the snapshot; at the highest level of allocated bytes, what was alive is counted by the call stack
that asked for it. Without a history, the blocks of the snapshot itself are counted.

Change: what the largest line keeps: recompute activations (torch.utils.checkpoint), use a fused
loss or attention that does not write the large tensor out, shard parameters and optimizer state,
or take a smaller micro-batch with accumulation.

May be wrong: it is no fault to use memory. Stacks of backward lie in C++ and name the line that
called backward(). What was taken before the recording began has no stack.

Sources: Understanding CUDA Memory Usage in the PyTorch documentation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from whyidle.diagnosis import Remedy, Sign
from whyidle.memory_stories import MemoryStory
from whyidle.views.memory_words import (
    device_text,
    event_row,
    holders_text,
    place_of,
    size_text,
)

if TYPE_CHECKING:
    from whyidle.model import Evidence
    from whyidle.views import Views
    from whyidle.views.allocator import DeviceMemory

TITLE = "What holds the memory at its peak"
STATUS = "preview"
OBSERVES = ("memory_blocks",)
MOST_PLACES = 5


def observations(views: Views) -> list[Sign]:
    """One sign per device that holds anything."""
    found = [_sign(views, memory) for memory in views.memories]
    return [sign for sign in found if sign is not None]


def _sign(views: Views, memory: DeviceMemory) -> Sign | None:
    allocated, reserved = memory.peak(memory.allocated), memory.peak(memory.reserved)
    if allocated is not None and reserved is not None:
        at, when = allocated.at, _when(memory, allocated.t_ns)
        holders = memory.held_by(at)
        most, taken = allocated.bytes, reserved.bytes
        said = f"The peak on {device_text(memory)}{when} is {size_text(most)} allocated"
    else:
        at = -1
        holders = memory.held_by(at)
        most, taken = int(holders["bytes"].sum()), memory.segment_bytes
        said = f"{size_text(most)} are allocated on {device_text(memory)} at the snapshot"
    if not most or not holders.height:
        return None
    places = holders.filter(pl.col("stack").is_not_null()).head(MOST_PLACES)["stack"].to_list()
    return Sign(
        level="seen",
        what=f"{said}, {size_text(taken)} reserved at most; most of it: {holders_text(holders)}.",
        where=[place_of(memory, stack) for stack in places],
        evidence=[event_row(views.evidence, memory, at, f"{size_text(most)} allocated")],
        remedies=[_shrink()],
    )


def _when(memory: DeviceMemory, t_ns: int | None) -> str:
    first = memory.events["t_ns"][0]
    if t_ns is None or first is None:
        return ""
    return f", {(t_ns - first) / 1e9:.3g} s after the history begins,"


def _shrink() -> Remedy:
    return Remedy(
        what="Shrink what the largest line keeps",
        how="Activations: torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) around "
        "large blocks. Logits and attention scores: a fused or chunked loss, "
        "scaled_dot_product_attention. Parameters and optimizer state: FSDP, or an optimizer of "
        "fewer bytes. The room allows a larger batch.",
        safe=False,
        why_safe="Checkpointing computes the forward twice; the rest changes code or precision.",
        effect={"kind": "none"},
        prove="torch.cuda.max_memory_allocated() over the same steps must be lower.",
    )


def observed_example() -> tuple[Evidence, str]:
    """512 MiB of parameters, and twice 300 MiB of activations at once."""
    story = MemoryStory().grow(0, 2048).alloc(0, 512, line=12)
    story.alloc(512, 300, line=25).alloc(812, 300, line=26).free(812).free(512)
    return story.evidence(), "1.086 GiB allocated, 2 GiB reserved at most"
