"""How sure blame is of an instant: seen in the record, deduced from it, or only suspected.

Each function takes rows of the blame view and the host, and gives one level per row.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from whyidle.intervals import Index
from whyidle.model import LEVELS
from whyidle.views.host import Host


def waiting(rows: pl.DataFrame, host: Host) -> pl.Series:
    """Seen inside the call that waits; deduced after it, where only the lost lead is charged."""
    span, known = _spans(rows)
    nest = host.nest
    if not nest.start.size:
        return _levels(np.full(span.size, "deduced"))
    thread = nest.thread[span]
    begin, end = nest.axis.take(nest.start[span], thread), nest.axis.take(nest.end[span], thread)
    inside = known & (rows["start_ns"].to_numpy() >= begin) & (rows["end_ns"].to_numpy() <= end)
    return _levels(np.where(inside, "seen", "deduced"))


def recorded_as(rows: pl.DataFrame, host: Host, *kinds: str, otherwise: str) -> pl.Series:
    """Seen where the blamed span is of one of these kinds, ``otherwise`` elsewhere."""
    span, known = _spans(rows)
    if not host.nest.start.size:
        return _levels(np.full(span.size, otherwise))
    hit = host.nest.spans["kind"].is_in(kinds).to_numpy()[span]
    return _levels(np.where(known & hit, "seen", otherwise))


def python(rows: pl.DataFrame, host: Host) -> pl.Series:
    """Seen with a recorded frame, deduced inside a recorded range, suspected outside all."""
    framed = recorded_as(rows, host, "python", otherwise="deduced")
    bare = (rows["span"] < 0).to_numpy()
    return _levels(np.where(bare, "suspected", framed.cast(pl.String).to_numpy()))


def _spans(rows: pl.DataFrame) -> tuple[Index, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    span = rows["span"].to_numpy().astype(np.intp)
    return np.maximum(span, 0), span >= 0


def _levels(values: np.ndarray[tuple[int], np.dtype[np.str_]]) -> pl.Series:
    return pl.Series("level", values.tolist(), dtype=pl.String).cast(LEVELS)
