"""What to tell of the whole run as hooks timed it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from whyidle.views.sampled_patterns import in_words

if TYPE_CHECKING:
    from whyidle.views import Views

LEAST_TOLD_NS = 10**7
MOST_STALLS = 3
WORTH_SAYING = 0.05
"""Share of the time of the training processes from which on their last stretch is told."""


def moment_notes(views: Views) -> list[str]:
    """What a reader should know of the timed run as a whole."""
    if not views.evidence.has("moments"):
        return []
    found = []
    took = views.moments.recording_ns
    if took >= LEAST_TOLD_NS:
        found.append(
            f"Starting and ending whyidle's own profiles took {took / 1e9:.2g} s beside the steps. "
            "It counts as unknown in the ledger of the whole run, not as lost; a run without "
            "profiles does not have it."
        )
    found += _tails(views)
    found += _stalls(views)
    if views.moments.without_gpu:
        found.append(
            "Which training process ran on which sampled GPU is not known, so what the processes "
            "waited for puts no seconds on the GPUs' idle time. Sample only the GPUs of the job."
        )
    return found


def _stalls(views: Views) -> list[str]:
    """Where steps were overdue: the longest one of each process, at most MOST_STALLS of them."""
    found = []
    for t in views.moments.trainers:
        mine = t.pauses.filter(pl.col("kind") == "stalled")
        if not mine.height:
            continue
        row = mine.sort(pl.col("end_ns") - pl.col("start_ns"), descending=True).row(0, named=True)
        who = "The training process" if t.rank is None else f"Rank {t.rank}"
        place = f" and stood at {row['file']}:{row['line']}" if row["file"] else ""
        lasted = in_words(row["end_ns"] - row["start_ns"])
        found.append(
            f"{who} ended no step for {lasted}{place}. That time is idle in the ledger of the "
            "whole run, and no cause is known; the bundle's event 'stacks' holds where all "
            "threads stood."
        )
    return found[:MOST_STALLS]


def _tails(views: Views) -> list[str]:
    """What came after the last step, where that is much of the run."""
    trainers = views.moments.trainers
    whole = sum(t.end_ns - t.start_ns for t in trainers)
    after = sum(t.end_ns - t.last_ns for t in trainers)
    if not whole or after < WORTH_SAYING * whole:
        return []
    who = "The training process" if len(trainers) == 1 else "The training processes"
    return [
        f"{who} went on for {in_words(after)} after the last step"
        + (" (together)." if len(trainers) > 1 else ".")
    ]
