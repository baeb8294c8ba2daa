"""Text is tokenised again in every epoch while the device waits.

Looks like: one Python thread at 100 %; the step takes as long on a faster GPU.

How we tell: in time the device spent waiting for the loader, the innermost recorded frame that
tells what loading was doing belongs to a tokeniser. It has no seconds of its own: they stand under
the wait for the loader.

Change: tokenise once, offline, and store token ids (``datasets.map(batched=True)`` with a cache, or
a memory-mapped array); until then a fast (Rust) tokeniser, called with batches.

May be wrong: frames are recorded only in the process that was profiled, so with worker processes
this stays silent. A function of the user's that has "tokeniz" in its name counts.

Sources: report of a 3.3x faster run once tokens were stored; documentation of Hugging Face datasets
and tokenizers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whyidle.diagnosis import Remedy, Sign
from whyidle.stories import loader_run
from whyidle.views.loading import told

if TYPE_CHECKING:
    from whyidle.model import Evidence
    from whyidle.views import Views

TITLE = "Tokenising during training"
STATUS = "preview"
OBSERVES = ("blame", "frames")


def observations(views: Views) -> list[Sign]:
    """How much of the wait for the loader went by in a tokeniser."""
    return told(views, "tokens", "a tokeniser", _remedies())


def _remedies() -> list[Remedy]:
    return [
        Remedy(
            what="Tokenise once, before training",
            how="ds = ds.map(tokenise, batched=True, num_proc=8) and save_to_disk, or write the "
            "ids into one memory-mapped array (numpy.memmap, uint16 or uint32) and slice it.",
            safe=True,
            why_safe="The same ids reach the model, unless tokenisation is random on purpose "
            "(BPE dropout).",
            effect={"kind": "loader_wait_removed", "share_removed": 0.8},
            prove="Record the same steps again: no tokeniser frame in __next__.",
        )
    ]


def observed_example() -> tuple[Evidence, str]:
    """Three steps; in each, 3 of 5 ms of the wait pass in a tokeniser."""
    slow = "transformers/tokenization_utils_fast.py(500): _batch_encode_plus"
    return loader_run(slow, 3000), "9 ms of the"
