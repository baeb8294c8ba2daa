"""A debugging aid is left on: anomaly mode checks every gradient, or every launch waits.

Looks like: training takes 1.5 to 3 times as long as it should; backward is full of tiny checks; or
no two launches are ever in flight.

How we tell: anomaly mode: ``aten::isnan`` with ``aten::any`` or ``aten::item`` directly below the
backward nodes of the autograd engine; empty time inside these checks counts (seen), and after
them dispatch and launch time up to the launch lead that a waiting check destroyed (deduced).
Blocking launches (``CUDA_LAUNCH_BLOCKING=1``): at least 20 kernels of 20 us or more, of which 95 %
end before the call that launched them returns; then empty time inside those calls after their
kernel, and the dispatch and launch time up to the length of the kernel before, count (deduced).

Change: ``torch.autograd.set_detect_anomaly(True)`` and ``detect_anomaly=True`` out;
``CUDA_LAUNCH_BLOCKING`` out of the environment. Use anomaly mode as a context manager, around the
one step that fails.

May be wrong: a loss that checks for NaN by itself outside the engine is not counted. The time that
anomaly mode spends on recording Python tracebacks in forward is not visible here, so that the gain
is larger than the loss shown.

Sources: anomaly detection and CUDA environment variables in the PyTorch documentation; reports on
the PyTorch forum, Lightning-AI/pytorch-lightning and nerf implementations (1.5x to 3x).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from whyidle.diagnosis import Finding, Remedy
from whyidle.stories import Story
from whyidle.views.certainty import waiting

if TYPE_CHECKING:
    from whyidle.model import Evidence, Facts
    from whyidle.views import Views

TITLE = "A debugging aid left on"
STATUS = "preview"
NEEDS = ("blame", "ops")
_BLOCKING = "blocking launch in "


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
