"""Memory that one line asks for in every step is kept, so that less is left from step to step.

Looks like: allocated bytes rise from step to step until memory runs out after minutes or hours;
losses or outputs kept in a list with their graph; a metric that is added up on the device.

How we tell: in the history of the CUDA allocator, what one call stack asks for stays allocated to
the end, in at least half of ten equal parts of the history; the lowest level of allocated bytes
rises along, by half of what is kept or more; and the level falls again and again in between, as it
does from step to step (by a quarter of its range three times: *deduced*; by less, five times:
*suspected*). Parameters, optimizer state and the activations of one step come in one burst and do
not count.

Change: keep numbers, not tensors with their graph: total += loss.detach(), or loss.item() once in a
while; detach() what goes into a list; delete references at the end of the step.

May be wrong: a cache that is meant to grow, such as a replay buffer or the keys and values of a
generation, looks the same. A short history may end before memory comes back.

Sources: Frequently asked questions, "My model reports out of memory", in the PyTorch documentation;
huggingface/transformers#6999.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from whyidle.diagnosis import Remedy, Sign
from whyidle.memory_stories import MemoryStory
from whyidle.views.memory_words import device_text, event_row, place_of, size_text, stack_text

if TYPE_CHECKING:
    from whyidle.model import Evidence
    from whyidle.views import Views
    from whyidle.views.allocator import DeviceMemory

TITLE = "Memory kept from step to step"
STATUS = "preview"
OBSERVES = ("allocations",)
LEAST_BYTES = 1 << 20
MOST_SIGNS = 3


def observations(views: Views) -> list[Sign]:
    """Per device, the stacks that keep most."""
    signs = []
    for memory in views.memories:
        if not memory.events.height:
            continue
        level = _level(memory)
        if level is None:
            continue
        for row in memory.kept.head(MOST_SIGNS).iter_rows(named=True):
            if row["bytes"] >= LEAST_BYTES and 2 * memory.baseline_growth >= row["bytes"]:
                signs.append(_sign(views.evidence, memory, row, level))
    return signs


def _level(memory: DeviceMemory) -> Any:
    """How sure it is that the history holds several steps; None when it may hold only one."""
    levels = memory.allocated
    span = int(levels.max() - levels.min())
    if memory.falls(max(span / 4, 1)) >= 3:
        return "deduced"
    kept = memory.kept
    largest = int((kept["bytes"] // kept["count"]).to_numpy().max()) if kept.height else 0
    return "suspected" if memory.falls(max(span / 20, 3 * largest, 1)) >= 5 else None


def _sign(evidence: Evidence, memory: DeviceMemory, row: dict[str, Any], level: Any) -> Sign:
    times = memory.events["t_ns"]
    first, last = times[row["first"]], times[row["last"]]
    rate = ""
    if first is not None and last is not None and last > first:
        rate = f" over {(last - first) / 1e9:.3g} s"
    return Sign(
        level=level,
        what=f"{stack_text(row['stack'])} keeps {size_text(row['bytes'])} on "
        f"{device_text(memory)}: {row['count']} of its {row['total']} allocations{rate} are still "
        f"held at the end, of {size_text(row['bytes'] / row['count'])} each, while the lowest "
        f"level of allocated memory rose by {size_text(memory.baseline_growth)}.",
        where=[place_of(memory, row["stack"])],
        evidence=[
            event_row(evidence, memory, row["first"], "the first of them"),
            event_row(evidence, memory, row["last"], "the last of them"),
        ],
        remedies=[_let_go()],
    )


def _let_go() -> Remedy:
    return Remedy(
        what="Keep numbers instead of tensors that hold their graph",
        how="At that line and where its result is stored: total += loss.detach() instead of "
        "total += loss; outputs.append(x.detach().cpu()) instead of outputs.append(x); clear lists "
        "at the end of the step or epoch. Hooks and global lists count too.",
        safe=False,
        why_safe="Code that later calls backward() through what was kept would break.",
        effect={"kind": "none"},
        prove="torch.cuda.memory_allocated() right after optimizer.step() must be the same in "
        "every step after the second.",
    )


def observed_example() -> tuple[Evidence, str]:
    """Twelve steps; each takes 400 MiB and gives it back, and line 31 keeps 16 MiB of each."""
    story = MemoryStory().grow(0, 2048).alloc(0, 512, line=12)
    for step in range(12):
        story.alloc(1024, 400, line=25)
        story.alloc(512 + 16 * step, 16, line=31)
        story.free(1024)
    return story.evidence(), "keeps 192 MiB"
