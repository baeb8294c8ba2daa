"""The loader's worker processes are started again at every epoch, and the device waits for them.

Looks like: a plateau of zero utilisation with the period of an epoch, before its first step; worker
process ids change; worse on Windows and macOS and with large data sets, which are sent to every new
worker.

How we tell: with recorded stacks, empty time inside the loader's frames that make an iterator
(``_get_iterator``) or shut the workers down (``_shutdown_workers``), after a first batch was asked
for (seen), and the first ``__next__`` after them when it takes more than 5 times the median one.
Without stacks, a ``_MultiProcessingDataLoaderIter.__next__`` that takes more than 20 ms and more
than 5 times the median one, before which its thread recorded nothing for more than 5 ms (the
workers are created in that pause), and which is not the first of the recording (suspected).
Over a whole run that whyidle observed: every start of a loader that its line had started before,
timed in ``iter(loader)`` (seen); the slow first batch after it counts as a wait for the loader.

Change: ``DataLoader(persistent_workers=True)``; longer epochs; a data set object that is cheap to
send (paths and offsets, not loaded samples).

May be wrong: evaluation or a checkpoint between two epochs followed by one slow batch looks alike.
With the fork start method (Linux) workers start in milliseconds and the gain may be none.

Sources: DataLoader documentation of PyTorch (persistent_workers, multiprocessing_context);
open-mmlab/mmpose and mmclassification, Lightning-AI/pytorch-lightning (1.29x on Windows, none on
Linux).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whyidle.diagnosis import Finding, Remedy
from whyidle.moment_stories import TimedRun
from whyidle.stories import Story
from whyidle.views.certainty import recorded_as
from whyidle.views.moment_claims import starts_again

if TYPE_CHECKING:
    import polars as pl

    from whyidle.model import Evidence, Facts
    from whyidle.views import Views
    from whyidle.views.host import Host

TITLE = "Loader workers started again"
STATUS = "preview"
NEEDS = ("blame",)
JOB_NEEDS = ("timed_run",)
SITES = ("loader",)


def claims(views: Views) -> pl.DataFrame:
    """Empty time while workers start again, and in the first, slow batch after that."""
    return views.blamed("loader_restart", level=_sure)


def job_claims(views: Views) -> pl.DataFrame:
    """Starts of a loader that had been started before, over the whole run."""
    return starts_again(views)


def _sure(rows: pl.DataFrame, host: Host) -> pl.Series:
    return recorded_as(rows, host, "python", otherwise="suspected")


def remedies(finding: Finding, facts: Facts) -> list[Remedy]:
    """Keep the workers."""
    return [
        Remedy(
            what="Keep loader workers between epochs",
            how="DataLoader(..., num_workers=N, persistent_workers=True), and create the loader "
            "once, outside the epoch loop.",
            safe=False,
            why_safe="Batches come in the same order, but the workers keep their copy of the data "
            "set: changes made to it between epochs (set_epoch on the data set itself, "
            "curriculum) no longer reach them, and their random state goes on.",
            effect={"kind": "spans_removed"},
            prove="Record across the end of an epoch: its first __next__ takes as long as the "
            "others, and the worker process ids stay.",
        )
    ]


def example() -> tuple[Evidence, float]:
    """Six steps; before the fourth the workers start again: 30 ms in __next__ instead of 1 ms."""
    story = Story()
    begin = 0
    for number in range(6):
        pause, wait = (8_000, 30_000) if number == 3 else (0, 1_000)
        ready = begin + pause + wait
        story.step(number, begin, ready + 9_000)
        story.annotate(
            "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", begin + pause, ready
        )
        story.op("aten::mm", ready, ready + 20)
        story.launch("gemm", (ready + 5, ready + 10), (ready + 10, ready + 9_000))
        begin = ready + 9_000
    return story.evidence(), 30e-3


def job_example() -> tuple[Evidence, float]:
    """Three epochs of five steps; the workers start in 300 ms before each, twice again: 0.6 s."""
    story = TimedRun()
    for _ in range(3):
        story.pause("loader_start", 300, "train.py", 20, "loader 0").steps(5, 100)
    return story.evidence(), 0.6
