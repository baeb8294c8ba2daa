"""The device waits while the model is written to a file.

Looks like: utilisation falls to zero every K steps; the disk or the network is busy; the pause
grows with the model.

How we tell: the device is empty, and the thread that launches the next work is inside
``torch.save``, ``torch.distributed.checkpoint``, or a range or function named as saving a model,
state or checkpoint. Everything inside counts, the copies of the weights to the host included.

Over a whole run that whyidle observed: every ``torch.save``, timed (seen; deduced for a GPU that
was sampled meanwhile).

Change: copy the weights to the host, go on training, and write in the background:
``torch.distributed.checkpoint.async_save``. Save less often, to a local disk first.

May be wrong: a trace of a few steps seldom holds a checkpoint, and if it does, its share is far
above that of the whole run. Saving in the background can slow the next steps (one report: 10x
until the staging copy was waited for).

Sources: torch.distributed.checkpoint documentation; pytorch/torchtitan (27.3 s blocked to 0.54 s
with async_save).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from whyidle.diagnosis import Finding, Remedy
from whyidle.moment_stories import TimedRun
from whyidle.stories import Story
from whyidle.views.moment_claims import pauses, seconds

if TYPE_CHECKING:
    from whyidle.model import Evidence, Facts
    from whyidle.views import Views

TITLE = "Training stands still while a checkpoint is written"
STATUS = "preview"
NEEDS = ("blame",)
JOB_NEEDS = ("timed_run",)


def claims(views: Views) -> pl.DataFrame:
    """Empty and copy-only time inside the saving of a checkpoint."""
    return views.blamed("checkpoint")


def job_claims(views: Views) -> pl.DataFrame:
    """Every save over the whole run."""
    lasted = pl.col("end_ns") - pl.col("start_ns")
    words = pl.format("a checkpoint was written for {}", seconds(lasted))
    return pauses(views, pl.col("kind") == "checkpoint", words)


def remedies(finding: Finding, facts: Facts) -> list[Remedy]:
    """In the background; then less often."""
    prove = (
        "Record across a save again: the pause must be about the copy to the host. Time the steps "
        "after it, and load the checkpoint once."
    )
    return [
        Remedy(
            what="Write checkpoints in the background",
            how="future = torch.distributed.checkpoint.async_save(state_dict, "
            "checkpoint_id=path) (needs an initialised process group), and future.result() before "
            "the next save; on one device: copy state_dict() to host memory, then torch.save in a "
            "thread.",
            safe=False,
            why_safe="It needs host memory for a copy of the state; weights must not change "
            "before the copy is made; a crash while writing loses that file.",
            effect={"kind": "spans_scaled", "factor": 0.1},
            prove=prove,
        ),
        Remedy(
            what="Save less often",
            how="Choose the interval by what a restart costs: about sqrt(2 x pause x time between "
            "failures).",
            safe=False,
            why_safe="More work is lost when the job stops.",
            effect={"kind": "spans_scaled", "factor": 0.5},
            prove=prove,
        ),
    ]


def example() -> tuple[Evidence, float]:
    """Three steps of 1 ms; the second begins with 600 us of torch.save, device empty."""
    story = Story()
    for number in range(3):
        begin = number * 1000
        story.step(number, begin, begin + 1000)
        late = 600 if number == 1 else 0
        if late:
            story.frame("torch/serialization.py(941): save", begin, begin + late)
            story.frame("<built-in method write of _io.BufferedWriter>", begin + 50, begin + 550)
        story.op("aten::mm", begin + late, begin + late + 10)
        call = (begin + late + 2, begin + late + 8)
        story.launch("gemm", call, (begin + late + 8, begin + 1000))
    return story.evidence(), 600e-6


def job_example() -> tuple[Evidence, float]:
    """Thirty steps of 100 ms, with 500 ms of torch.save after every ten: 1.5 s."""
    story = TimedRun()
    for _ in range(3):
        story.steps(10, 100).pause("checkpoint", 500, "train.py", 31)
    return story.steps(1, 100).evidence(), 1.5
