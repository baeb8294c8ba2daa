"""The loader reads from storage while the device waits.

Looks like: the GPU and the CPU are both idle; worker processes wait for the disk (state D); the
first epoch is slow and the later ones fast (cold cache), or all are (a network or cloud mount).

How we tell: in time the device spent waiting for the loader, the innermost recorded frame that
tells what loading was doing is a read, an open, or a library that reads files or a network (h5py,
fsspec, zipfile, ...). It has no seconds of its own: they stand under the wait for the loader. In
readings of a job's threads: at least as many waited for a disk as wanted to run, and its GPUs ran
something for at most half of the time; *deduced* from three readings on, else *suspected*.

Change: copy the data to a local disk or memory before training; read few large files in order
instead of many small ones (HDF5, WebDataset shards, TFRecord, LMDB); raise ``num_workers`` so that
several reads are under way at once.

May be wrong: frames are recorded only in the process that was profiled, so with worker processes
this stays silent; record one epoch with ``num_workers=0`` to see it. A read that hits the page
cache and then decompresses counts as reading. Threads that write a checkpoint wait for the disk
too. Too few CPUs look the same from afar, but then threads want to run
(scheduling.cpu_allocation).

Sources: Mohan et al., Analyzing and Mitigating Data Stalls in DNN Training, VLDB 2021; reports of
cloud folders mounted into notebooks (240 s against 0.2 s for one small read).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whyidle.diagnosis import EvidenceRow, Place, Remedy, Sign
from whyidle.stories import loader_run
from whyidle.views.cpu_use import gpu_words, waiting_for_disk
from whyidle.views.loading import told

if TYPE_CHECKING:
    from whyidle.model import Evidence
    from whyidle.views import Views

TITLE = "Reading from slow storage"
STATUS = "preview"
OBSERVES = ("reads",)


def observations(views: Views) -> list[Sign]:
    """How much of the wait for the loader went by in reads; then jobs that wait for a disk."""
    return [*told(views, "storage", "reading files", _remedies()), *_on_disk(views)]


def _on_disk(views: Views) -> list[Sign]:
    found = []
    for row in waiting_for_disk(views).iter_rows(named=True):
        where = f" on {row['host']}" if row["host"] else ""
        path = views.evidence.sources[row["source"]].path
        found.append(
            Sign(
                level="deduced" if row["sure"] else "suspected",
                what=f"Job {row['job']}{where} had {row['on_disk']:.3g} threads that waited for a "
                f"disk, and {row['running'] or 0:.3g} that wanted to run"
                f"{gpu_words(row)}.",
                where=[Place(host=row["host"])],
                evidence=[EvidenceRow(source=path, row=None, what="states of the job's threads")],
                remedies=_remedies(),
            )
        )
    return found


def _remedies() -> list[Remedy]:
    return [
        Remedy(
            what="Bring the data closer",
            how="Copy the data set to a local disk (or /dev/shm when it fits) at the start of the "
            "job and read it from there; keep num_workers at 2 to 4 per GPU or more, so that reads "
            "overlap.",
            safe=True,
            why_safe="The same bytes are read, from elsewhere. It needs the space.",
            effect={"kind": "loader_wait_removed", "share_removed": 0.5},
            prove="Record the same steps again: the frames that read must take less of __next__.",
        ),
        Remedy(
            what="Read few large files in order",
            how="Pack samples into shards of 100 MB to 1 GB (WebDataset, HDF5 with chunks of one "
            "access, TFRecord) and shuffle shards plus a buffer.",
            safe=False,
            why_safe="Shuffling by shards and a buffer is not the same order as a full shuffle.",
            effect={"kind": "loader_wait_removed", "share_removed": 0.8},
            prove="As above; opens per step must fall to nearly none.",
        ),
    ]


def observed_example() -> tuple[Evidence, str]:
    """Three steps; in each, 2 of 5 ms of the wait pass in a read."""
    slow = "<built-in method read of _io.BufferedReader object at 0x1>"
    return loader_run(slow, 2000), "6 ms of the"
