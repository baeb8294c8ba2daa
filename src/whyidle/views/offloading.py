"""Which time in the optimizer is work on the processor rather than preparation of device work."""

from __future__ import annotations

import numpy as np
import polars as pl

from whyidle.views.host import Flags, Host
from whyidle.views.nest import holding, inside

LEAST_NS = 1_000_000
"""An operator that launches nothing and takes this long computes on the processor."""


def in_optimizer(blame: pl.DataFrame, host: Host, *, offloaded: bool) -> pl.DataFrame:
    """Rows of the blame view in the optimizer: those on the processor, or all others."""
    rows = blame.filter(pl.col("activity") == "optimizer")
    return rows.filter(pl.Series(_computing(rows, host) == offloaded))


def _computing(rows: pl.DataFrame, host: Host) -> Flags:
    """Per row, whether it lies in a long operator that has no runtime call inside."""
    nest = host.nest
    span = rows["span"].to_numpy().astype(np.intp)
    if not nest.start.size:
        return np.zeros(span.size, dtype=bool)
    lasting = nest.end - nest.start >= LEAST_NS
    long = (nest.spans["kind"] == "op").to_numpy() & lasting
    if not span.size or not long.any():
        return np.zeros(span.size, dtype=bool)
    long &= ~holding(nest, (nest.spans["kind"] == "runtime").to_numpy())
    found: Flags = (span >= 0) & inside(nest, long)[np.maximum(span, 0)]
    return found
