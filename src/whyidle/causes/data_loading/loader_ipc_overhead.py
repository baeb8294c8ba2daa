"""Batches are handed from worker processes to training by slow means.

Looks like: an in-memory data set that is slower with workers than without; objects (dicts of lists,
strings, arrays) instead of tensors; fewer workers are faster.

How we tell: in time the device spent waiting for the loader, the innermost recorded frame that
tells what loading was doing unpickles a batch, rebuilds shared tensors or pins memory. It has no
seconds of its own: they stand under the wait for the loader.

Change: return tensors, few and large, from ``__getitem__`` and ``collate_fn``; index whole batches
at once (``BatchSampler`` as ``sampler`` with ``batch_size=None``); let a thread pin memory
(``pin_memory=True``); for data in memory, no workers at all.

May be wrong: unpickling needs the worker's message to have come, so part of it may be waiting.

Sources: documentation of torch.multiprocessing (sharing strategies) and DataLoader; reports of 3 to
124x overhead against slicing a tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whyidle.diagnosis import Remedy, Sign
from whyidle.stories import loader_run
from whyidle.views.loading import told

if TYPE_CHECKING:
    from whyidle.model import Evidence
    from whyidle.views import Views

TITLE = "Slow hand-over from loader workers"
STATUS = "preview"
OBSERVES = ("blame", "frames")


def observations(views: Views) -> list[Sign]:
    """How much of the wait for the loader went by in the hand-over."""
    return told(views, "handover", "unpickling, rebuilding and pinning batches", _remedies())


def _remedies() -> list[Remedy]:
    return [
        Remedy(
            what="Hand over few large tensors",
            how="Let collate_fn return one tensor per field, not lists or dicts per sample; with "
            "data in memory use DataLoader(dataset, sampler=BatchSampler(RandomSampler(dataset), "
            "batch_size, drop_last=True), batch_size=None, num_workers=0).",
            safe=True,
            why_safe="The same samples reach the model in the same order.",
            effect={"kind": "loader_wait_removed", "share_removed": 0.5},
            prove="Record the same steps again: frames that rebuild or unpickle must shrink.",
        )
    ]


def observed_example() -> tuple[Evidence, str]:
    """Three steps; in each, 2.4 of 5 ms of the wait pass in rebuilding tensors."""
    slow = "torch/multiprocessing/reductions.py(300): rebuild_storage_fd"
    return loader_run(slow, 2400), "7.2 ms of the"
