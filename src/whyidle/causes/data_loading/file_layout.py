"""The data lie in so many small files that opening them takes longer than reading them.

Looks like: a GPU that drops to 0 % every few seconds; storage that is fast for one large file and
slow for this data set; more so on a network mount, where each open asks a server.

How we tell: at least a fifth of the time that the device waited for the loader went by in opening
files, asking for their size, or listing folders, by the frames recorded: *seen*. It has no seconds
of its own: they stand under the wait for the loader.

Change: pack samples into few large files (WebDataset shards, HDF5, LMDB, Arrow), keep files open in
the worker instead of opening them for each sample, and list folders once.

May be wrong: the first open of a file on a cold mount also waits for its data. A file that is
locked while one chunk is decoded, and chunks larger than what is asked for, lose time in reading
and are not seen here. Frames are recorded only in the process that was profiled: record one epoch
with ``num_workers=0``.

Sources: cases facebookresearch/grounded-video-description#6 (one file per segment),
THU-DA-6D-Pose-Group/GDR-Net#114, tue-bmd/zea#504, mani-skill/ManiSkill#1040.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from whyidle.diagnosis import Place, Remedy, Sign
from whyidle.stories import loader_run
from whyidle.views import names
from whyidle.views.activities import CODE
from whyidle.views.loading import LEAST, MOST_PLACES

if TYPE_CHECKING:
    from whyidle.model import Evidence
    from whyidle.views import Views

TITLE = "Many small files"
STATUS = "preview"
OBSERVES = ("blame", "frames")

_OPENS = re.compile(
    r"<built-in (method|function) (open|open_code|stat|lstat|listdir|scandir)\b"
    r"|(^|/)(pathlib|glob)\.py\("
)


def observations(views: Views) -> list[Sign]:
    """How much of the wait for the loader went by in opening, and how often that was."""
    found = views.loading.filter(pl.col("stage") == "storage")
    found = found.filter(names.matching(found["op"], _OPENS.search))
    opened_ms, all_ms = int(found["waited_ns"].sum()) / 1e6, views.waited_for_loader_ms
    if not found.height or opened_ms < LEAST * all_ms:
        return []
    top = list(found.head(MOST_PLACES).iter_rows(named=True))
    each = _calls_per_batch(views)
    often = f" ({each:.3g} calls a batch)" if each is not None else ""
    return [
        Sign(
            level="seen",
            what=f"{opened_ms:.4g} ms of the {all_ms:.4g} ms that the device waited for the loader "
            f"went by in opening or listing files{often}, most of it in {top[0]['op']}.",
            where=[Place(file=r["file"], line=r["line"], op=r["op"], rank=r["rank"]) for r in top],
            remedies=_remedies(),
        )
    ]


def _calls_per_batch(views: Views) -> float | None:
    """Calls that open, by the stays in the loader that hold them; None when it cannot be told."""
    host = views.host
    loads = host.activity == CODE["loader"]
    calls = names.matching(host.nest.spans["name"], _OPENS.search).to_numpy() & loads
    batches = np.unique(host.scope[loads]).size
    return int(calls.sum()) / batches if batches else None


def _remedies() -> list[Remedy]:
    return [
        Remedy(
            what="Pack samples into few large files",
            how="Shards of 100 MB to 1 GB (WebDataset, Arrow, TFRecord), or HDF5 with chunks of "
            "one access; shuffle shards, and within a buffer.",
            safe=False,
            why_safe="The same samples in another order: shards and a buffer do not shuffle fully.",
            effect={"kind": "loader_wait_removed", "share_removed": 0.8},
            prove="Record the same steps again: opens per batch fall to nearly none.",
        ),
        Remedy(
            what="Open and list once",
            how="Keep the list of files from the first epoch, and open files of many samples in "
            "the worker (worker_init_fn, or on first use), not in __getitem__.",
            safe=True,
            why_safe="The same bytes are read. Files must be opened after workers have started.",
            effect={"kind": "loader_wait_removed", "share_removed": 0.3},
            prove="As above.",
        ),
    ]


def observed_example() -> tuple[Evidence, str]:
    """Three steps; in each, 2 of 5 ms of the wait pass in opening a file."""
    return loader_run("<built-in function open>", 2000), "6 ms of the"
