"""A debugging aid is left on: anomaly mode checks every gradient, or every launch waits.

Looks like: training takes 1.5 to 3 times as long as it should; backward is full of tiny checks; or
no two launches are ever in flight.

How we tell: anomaly mode: ``aten::isnan`` with ``aten::any`` or ``aten::item`` directly below the
backward nodes of the autograd engine, and, with recorded stacks, ``format_stack``, which keeps the
traceback of every operator of forward; empty time inside these counts (seen), and after
the checks dispatch and launch time up to the launch lead that a waiting one destroyed (deduced).
Blocking launches (``CUDA_LAUNCH_BLOCKING=1``): at least 20 kernels of 20 us or more, of which 95 %
end before the call that launched them returns; then empty time inside those calls after their
kernel, and the dispatch and launch time up to the length of the kernel before, count (deduced).
A debugger whose own frames were recorded (pydevd, debugpy, bdb) is told without seconds (seen): it
slows Python wherever Python runs.

Change: ``torch.autograd.set_detect_anomaly(True)`` and ``detect_anomaly=True`` out;
``CUDA_LAUNCH_BLOCKING`` out of the environment. Use anomaly mode as a context manager, around the
one step that fails. Start the job without the debugger.

May be wrong: a loss that checks for NaN by itself outside the engine is not counted. Without
recorded stacks the time that anomaly mode spends on Python tracebacks in forward is not visible, so
that the gain is larger than the loss shown; with them, recording makes that time longer.

Sources: anomaly detection and CUDA environment variables in the PyTorch documentation; reports on
the PyTorch forum, Lightning-AI/pytorch-lightning and nerf implementations (1.5x to 3x); case
pytorch/pytorch#134191 (a debugger made an optimizer's dispatch 30 times slower).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from whyidle.diagnosis import Finding, Place, Remedy, Sign
from whyidle.stories import Story
from whyidle.views import names
from whyidle.views.certainty import waiting

if TYPE_CHECKING:
    from whyidle.model import Evidence, Facts
    from whyidle.views import Views

TITLE = "A debugging aid left on"
STATUS = "preview"
NEEDS = ("blame", "ops")
OBSERVES = ("frames",)
SITES = ("anomaly_mode",)
_BLOCKING = "blocking launch in "
_DEBUGGER = re.compile(
    r"(^|/)(_pydevd_bundle|_pydevd_frame_eval|_pydev_bundle|debugpy|ptvsd|pudb)/"
    r"|(^|/)(pydevd|bdb|pdb)\.py\("
)


def claims(views: Views) -> pl.DataFrame:
    """Empty time in anomaly mode's checks, and what blocking launches expose."""
    blocking = views.blamed("launch_blocking", level="deduced")
    named = pl.concat_str(pl.lit(_BLOCKING), pl.col("op").fill_null("no operator"))
    return pl.concat(
        [
            views.blamed("anomaly", level=waiting),
            blocking.with_columns(named.cast(pl.Categorical).alias("op")),
        ]
    )


def observations(views: Views) -> list[Sign]:
    """A debugger among the recorded frames."""
    spans = views.evidence.table("spans").filter(pl.col("kind") == "python")
    seen = spans.filter(names.matching(spans["name"], _DEBUGGER.search))
    if not seen.height:
        return []
    first = str(seen["name"][0])
    return [
        Sign(
            level="seen",
            what=f"A debugger is attached: {seen.height} recorded calls are its own, such as "
            f"{first}.",
            where=[Place(op=first, rank=seen["rank"][0])],
            remedies=[_debugger()],
        )
    ]


def _debugger() -> Remedy:
    return Remedy(
        what="Run without the debugger",
        how="Start the job from a shell rather than with an editor's debug button, take "
        "debugpy.listen, breakpoint() and pdb.set_trace() out, and set no breakpoints in code that "
        "runs in every step.",
        safe=True,
        why_safe="The program does the same; it can no longer be stopped at a line.",
        effect={"kind": "spans_removed"},
        prove="Record the same steps again: none of its frames, and shorter operators.",
    )


def remedies(finding: Finding, facts: Facts) -> list[Remedy]:
    """Turn it off."""
    blocking = {(place.op or "").startswith(_BLOCKING) for place in finding.where}
    return [_blocking() if blocks else _anomaly() for blocks in sorted(blocking)]


def _anomaly() -> Remedy:
    return Remedy(
        what="Turn anomaly detection off",
        how="Search for set_detect_anomaly(True) and detect_anomaly=True, also in imported "
        "modules; torch.is_anomaly_enabled() tells. Use `with torch.autograd.detect_anomaly():` "
        "around one failing step only.",
        safe=True,
        why_safe="It only adds checks; gradients are the same. A NaN no longer raises an error.",
        effect={"kind": "spans_removed"},
        prove="Record the same steps again: no aten::isnan below backward nodes.",
    )


def _blocking() -> Remedy:
    return Remedy(
        what="Let launches return at once",
        how="Unset CUDA_LAUNCH_BLOCKING (and AMD_SERIALIZE_KERNEL, HIP_LAUNCH_BLOCKING) in the "
        "environment of the job.",
        safe=True,
        why_safe="The device does the same work in the same order; an error is reported later and "
        "at another line.",
        effect={"kind": "syncs_dropped"},
        prove="Record the same steps again: launch calls take a few microseconds and run ahead of "
        "their kernels.",
    )


def example() -> tuple[Evidence, float]:
    """Three steps; after a backward node's kernel, three checks of 300 us with the device empty."""
    story = Story()
    for number in range(3):
        begin = number * 1000
        story.step(number, begin, begin + 1000)
        node = "autograd::engine::evaluate_function: MulBackward0"
        story.op(node, begin, begin + 700, thread="autograd")
        story.op("aten::mul", begin + 2, begin + 12, thread="autograd")
        call = (begin + 5, begin + 10)
        story.launch("mul_kernel", call, (begin + 10, begin + 300), thread="autograd")
        for at, check in ((300, "isnan"), (400, "any"), (500, "item")):
            story.op(f"aten::{check}", begin + at, begin + at + 100, thread="autograd")
        story.op("aten::mm", begin + 620, begin + 640, thread="autograd")
        call = (begin + 625, begin + 630)
        story.launch("gemm", call, (begin + 630, begin + 1000), thread="autograd")
    return story.evidence(), 3 * 300e-6


def observed_example() -> tuple[Evidence, str]:
    """One step, run by a debugger."""
    story = Story()
    story.frame("debugpy/server/cli.py(430): main", 0, 1200)
    story.step(0, 10, 1010)
    story.frame("train.py(20): step", 12, 1000)
    story.launch("gemm", (20, 30), (30, 1010))
    return story.evidence(), "A debugger is attached"
