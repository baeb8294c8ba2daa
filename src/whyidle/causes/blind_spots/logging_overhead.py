"""The device waits while values are logged: TensorBoard, W&B, MLflow, print, progress bars.

Looks like: a pause every N steps, with histograms or images drawn on the CPU, or a little of it in
every step.

How we tell: the device is empty, and the thread that launches the next work is inside a frame of
TensorBoard, wandb, mlflow, ``logging``, tqdm or ``print``, or a range named as logging. A read of a
device value inside such a frame counts here, since the logging asked for it.

Change: log every N steps; histograms and images far less often (``wandb.watch`` with its default
``log_freq=1000``); build them on the device; hand writing to a thread.

May be wrong: recorded stacks make Python, and so the logging, several times slower than it is.
Without stacks logging is seen only where the program names a range for it.

Sources: torch.utils.tensorboard and wandb.watch documentation; a report of 207 to 45 s per epoch
with fewer histograms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whyidle.diagnosis import Finding, Remedy
from whyidle.stories import Story

if TYPE_CHECKING:
    import polars as pl

    from whyidle.model import Evidence, Facts
    from whyidle.views import Views

TITLE = "Training stands still while values are logged"
STATUS = "preview"
NEEDS = ("blame",)


def claims(views: Views) -> pl.DataFrame:
    """Empty time inside logging."""
    return views.blamed("logging")


def remedies(finding: Finding, facts: Facts) -> list[Remedy]:
    """Less often."""
    return [
        Remedy(
            what="Log every N steps",
            how="if step % 50 == 0: around add_scalar, wandb.log and print; tqdm(..., "
            "mininterval=5); add_histogram and wandb.watch every 1,000 steps or not at all; keep "
            "values as detached device tensors until then.",
            safe=True,
            why_safe="Training computes the same; the log has fewer points.",
            effect={"kind": "spans_scaled", "factor": 0.05, "every": 20},
            prove="Record the same steps again: logging frames only in the logged steps.",
        )
    ]


def example() -> tuple[Evidence, float]:
    """Three steps of 1 ms; each begins with 150 us of add_scalar, device empty."""
    story = Story()
    for number in range(3):
        begin = number * 1000
        story.step(number, begin, begin + 1000)
        story.frame("torch/utils/tensorboard/writer.py(358): add_scalar", begin, begin + 150)
        story.op("aten::mm", begin + 150, begin + 160)
        story.launch("gemm", (begin + 152, begin + 158), (begin + 158, begin + 1000))
    return story.evidence(), 3 * 150e-6
