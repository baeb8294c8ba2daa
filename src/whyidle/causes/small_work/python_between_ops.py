"""The device waits while Python runs between operators.

Looks like: holes in the GPU's timeline that no operator covers: preprocessing in the training
loop, module hooks, configuration look-ups, list handling, garbage collection; one CPU core busy.

How we tell: the device is empty, and the thread that launches the next work (or the one that feeds
it) is inside no framework operator. With recorded stacks the Python frame names it (seen);
without, the enclosing ``record_function`` range or step does (deduced), with the operators before
and after. Outside every range it is only suspected: nothing recorded says what the thread did.

Change: move the work out of the loop, into the loader's workers, or onto the device; do it once;
or overlap it by launching the next step's work first. ``gc.disable()`` in the loop with
``gc.collect()`` at a chosen step takes the collector out of it.

May be wrong: ``with_stack=True`` makes Python several times slower while it records, so that the
share is too high; record once more without it. Without stacks, waiting on a file, a lock or
another process looks like Python.

Sources: torch.profiler documentation (with_stack, record_function); gc in the Python library
reference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whyidle.diagnosis import Finding, Remedy
from whyidle.stories import Story
from whyidle.views.certainty import python

if TYPE_CHECKING:
    import polars as pl

    from whyidle.model import Evidence, Facts
    from whyidle.views import Views

TITLE = "Python between operators"
STATUS = "stable"
NEEDS = ("blame",)


def claims(views: Views) -> pl.DataFrame:
    """Empty time while the launching thread, or its feeder, ran Python outside any operator."""
    return views.blamed("python", "nothing", "collector", level=python)


def remedies(finding: Finding, facts: Facts) -> list[Remedy]:
    """First see which lines (when stacks are absent), then move them."""
    known = any(place.file for place in finding.where)
    collects = any("collect" in (place.op or "") for place in finding.where)
    found = [_move()] if known or finding.level == "seen" else [_look(), _move()]
    return [*found, _collector()] if collects else found


def _move() -> Remedy:
    return Remedy(
        what="Move this Python out of the step",
        how="Do it once before the loop, in the data loader's workers (dataset or collate_fn), or "
        "as tensor operations on the device; else launch the next step before it runs, so that "
        "the device works meanwhile.",
        safe=False,
        why_safe="It depends on what the lines do; whyidle sees when they run, not what for.",
        effect={"kind": "spans_removed"},
        prove="Record the same steps again, without with_stack: the empty time between operators "
        "must shrink, and the step by as much.",
    )


def _look() -> Remedy:
    return Remedy(
        what="Record which lines these are",
        how="torch.profiler.profile(..., with_stack=True), or wrap the parts of the step in "
        'with torch.profiler.record_function("name"), and diagnose again.',
        safe=True,
        why_safe="It only records more; the run computes the same, more slowly while it records.",
        effect={"kind": "none"},
        prove="The next diagnosis names files and lines here.",
    )


def _collector() -> Remedy:
    return Remedy(
        what="Collect garbage when the device is busy",
        how="gc.disable() before the loop, gc.collect(1) every few hundred steps just after work "
        "was launched; gc.freeze() after set-up.",
        safe=False,
        why_safe="Results stay the same, but memory held by reference cycles is freed later.",
        effect={"kind": "spans_removed", "name": "collect"},
        prove="Record the same steps again: no collection inside them, and memory stays level.",
    )


def example() -> tuple[Evidence, float]:
    """Three steps; the device waits 300 us for a Python function and 100 us for bare Python."""
    story = Story()
    for number in range(3):
        begin = number * 1000
        story.step(number, begin, begin + 1000)
        story.frame("train.py(42): build_targets", begin, begin + 300)
        story.op("aten::mm", begin + 400, begin + 410)
        story.launch("gemm", (begin + 402, begin + 408), (begin + 408, begin + 1000))
    return story.evidence(), 3 * 400e-6
