"""Decoding and augmenting a sample takes longer than the device takes to use it.

Looks like: loader workers at 100 % CPU; the step waits for a batch every ``num_workers`` steps;
(seconds per sample x batch) / workers is above the step time.

How we tell: in time the device spent waiting for the loader, the innermost recorded frame that
tells what loading was doing is a transform, a decoder, collation, or the data set's own
``__getitem__``. It has no seconds of its own: they stand under the wait for the loader.

Change: more workers while there are cores; a faster decoder (libjpeg-turbo, decoding at the size
that is used); fewer or cheaper transforms; transforms on the batch and on the GPU; work that is the
same every epoch done once, offline.

May be wrong: frames are recorded only in the process that was profiled, so with worker processes
this stays silent; record with ``num_workers=0`` to see it. Recording Python frames slows pure
Python down more than a decoder in C, so the shares are biased towards Python.

Sources: DataLoader and torchvision.transforms.v2 documentation; reports of faster decoders (1.0 to
3.4x) and of DALI (5x), and of GPU augmentation that was slower once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whyidle.diagnosis import Remedy, Sign
from whyidle.stories import loader_run
from whyidle.views.loading import told

if TYPE_CHECKING:
    from whyidle.model import Evidence
    from whyidle.views import Views

TITLE = "Heavy work per sample"
STATUS = "preview"
OBSERVES = ("blame", "frames")


def observations(views: Views) -> list[Sign]:
    """How much of the wait for the loader went by in making samples."""
    return told(views, "sample", "decoding, transforming and collating samples", _remedies())


def _remedies() -> list[Remedy]:
    return [
        Remedy(
            what="Make a sample cheaper",
            how="Start with the line named here: decode at the size you use, crop before you "
            "resize, replace per-sample Python by one operation on the batch, and use "
            "torchvision.transforms.v2 on uint8 tensors.",
            safe=False,
            why_safe="Another resampling or order of transforms changes pixels a little; check "
            "accuracy.",
            effect={"kind": "loader_wait_removed", "share_removed": 0.5},
            prove="Time dataset[i] alone for 100 samples before and after, then record again.",
        ),
        Remedy(
            what="Do once what is the same every epoch",
            how="Store decoded, resized samples (uint8 arrays in HDF5 or memory-mapped files) and "
            "keep only random transforms in __getitem__.",
            safe=True,
            why_safe="The same samples reach the model. It needs disk space, often several times "
            "that of compressed files.",
            effect={"kind": "loader_wait_removed", "share_removed": 0.8},
            prove="As above.",
        ),
    ]


def observed_example() -> tuple[Evidence, str]:
    """Three steps; in each, 4 of 5 ms of the wait pass in a transform."""
    slow = "torchvision/transforms/functional.py(470): resize"
    return loader_run(slow, 4000), "12 ms of the"
