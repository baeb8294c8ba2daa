"""The device waits during evaluation inside the recorded run.

Looks like: utilisation drops for a while every epoch or every K steps; metrics are computed with
NumPy on one core; the evaluation loader has batch size 1.

How we tell: the device is empty, and the thread that launches the next work is inside a range or
function named as an evaluation (evaluate, validation, validate, eval, test_step, ...). The name is
the program's own, so the level is *deduced*. Loader waits, reads and allocator calls inside keep
their own cause. In readings of the GPU: a stretch at exactly 0 % at whose end the training logged a
value such as ``val/loss`` (*deduced*); pauses that only come back at regular times are told without
seconds, since checkpoints and restarting workers look the same. Over a whole run that whyidle
observed: every evaluation, timed (seen). On a GPU that was sampled meanwhile only its idle part
counts (deduced).

Change: evaluate less often or on fewer samples; use a larger batch without gradients
(``torch.inference_mode()``); compute metrics on the device and read them once.

May be wrong: a training function that happens to be called evaluate is counted here. Evaluation
that keeps the device busy is not a loss and does not appear.

Sources: torch.inference_mode in the PyTorch documentation; reports of 29 minutes of evaluation per
6 minutes of training (confusion matrix on the CPU), evaluation with batch size 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from whyidle.diagnosis import Finding, Remedy, Sign
from whyidle.sampled_stories import Sampling
from whyidle.stories import Story
from whyidle.views.moment_claims import pauses, seconds
from whyidle.views.sampled_pauses import evaluation_claims, recurring_signs

if TYPE_CHECKING:
    from whyidle.model import Evidence, Facts
    from whyidle.views import Views

TITLE = "Training stands still during evaluation"
STATUS = "preview"
NEEDS = ("blame",)
JOB_NEEDS = ("series_or_run",)
OBSERVES = ("series",)


def claims(views: Views) -> pl.DataFrame:
    """Empty time inside what the program calls an evaluation."""
    return views.blamed("evaluation", level="deduced")


def job_claims(views: Views) -> pl.DataFrame:
    """Evaluations that were timed, and pauses at whose end the training logged a value of one."""
    lasted = pl.col("end_ns") - pl.col("start_ns")
    words = pl.format("an evaluation of {}", seconds(lasted))
    timed = pauses(views, pl.col("kind") == "evaluation", words)
    logged = evaluation_claims(views).filter(~pl.col("number").is_in(timed["number"].implode()))
    return pl.concat([timed, logged])


def observations(views: Views) -> list[Sign]:
    """Pauses that come back at regular times."""
    return recurring_signs(views, _remedies())


def remedies(finding: Finding, facts: Facts) -> list[Remedy]:
    """Cheaper, then rarer."""
    return _remedies()


def _remedies() -> list[Remedy]:
    prove = "Record across an evaluation again: its range is shorter and the device busier in it."
    return [
        Remedy(
            what="Keep metrics on the device",
            how="Accumulate counts and sums as device tensors under torch.inference_mode(), read "
            "them once after the last batch; larger evaluation batch; the same loader workers as "
            "in training.",
            safe=False,
            why_safe="Training is untouched; metrics in another order of summation differ in the "
            "last digits.",
            effect={"kind": "spans_scaled", "factor": 0.5},
            prove=prove,
        ),
        Remedy(
            what="Evaluate less often",
            how="Every N epochs or K steps, or on a fixed subset in between, in full at the end.",
            safe=False,
            why_safe="Early stopping and the choice of the best checkpoint see fewer points.",
            effect={"kind": "spans_scaled", "factor": 0.5},
            prove=prove,
        ),
    ]


def example() -> tuple[Evidence, float]:
    """Two steps of 1 ms, then 500 us of evaluation in Python inside the third, device empty."""
    story = Story()
    for number in range(3):
        begin = number * 1000
        story.step(number, begin, begin + 1000)
        late = 500 if number == 2 else 0
        if late:
            story.annotate("validation", begin, begin + late)
        story.op("aten::mm", begin + late, begin + late + 10)
        call = (begin + late + 2, begin + late + 8)
        story.launch("gemm", call, (begin + late + 8, begin + 1000))
    return story.evidence(), 500e-6


def job_example() -> tuple[Evidence, float]:
    """Three rounds of five minutes of work and one at 0 % that ends with ``val/loss``: 180 s."""
    story = Sampling(period_s=10)
    for _ in range(3):
        story.runs(300, gpu_utilization=0.97).runs(60, gpu_utilization=0.0).logs("val/loss", 0.5)
    return story.runs(300, gpu_utilization=0.97).evidence(), 180.0


def observed_example() -> tuple[Evidence, str]:
    """Five pauses of one minute, six minutes apart, of which nothing was logged."""
    story = Sampling(period_s=10)
    for _ in range(5):
        story.runs(300, gpu_utilization=0.97).runs(60, gpu_utilization=0.0)
    return story.runs(300, gpu_utilization=0.97).evidence(), "for about 60 s every 6 min"
