"""Launch calls that return only when their kernel is done: CUDA_LAUNCH_BLOCKING and its kin."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from whyidle.intervals import Index
from whyidle.views.activities import CODE
from whyidle.views.blame import Segments
from whyidle.views.scene import Scene

LONG_NS = 20_000
"""A kernel this long ends after its launch call returns, unless launches block."""
FEWEST, SHARE = 20, 0.95
"""So many long kernels of a rank, and this share of them, must end inside their call."""


def blocking_calls(scene: Scene) -> Index:
    """Kernel launches of ranks whose launches block, as indices into the nest; mostly none."""
    kernels = scene.activity.filter((pl.col("kind") == "kernel") & pl.col("launch").is_not_null())
    kernels = kernels.with_columns(
        (pl.col("called_ns") >= pl.col("end_ns")).alias("inside"),
        (pl.col("end_ns") - pl.col("start_ns") >= LONG_NS).alias("long"),
    )
    long = kernels.filter("long").group_by("rank").agg(pl.len(), pl.col("inside").mean())
    blocked = long.filter((pl.col("len") >= FEWEST) & (pl.col("inside") >= SHARE)).select("rank")
    calls = kernels.filter("inside").join(blocked, on="rank", how="semi", nulls_equal=True)
    found = scene.host.nest.index_of(calls["launch"].to_numpy())
    return np.asarray(np.unique(found[found >= 0]))


def launch_blocking(found: Segments, scene: Scene) -> Segments:
    """Empty time inside a blocking launch call after its kernel ended."""
    blocking = blocking_calls(scene)
    if not blocking.size:
        return found
    return found.with_activity(_after_kernel(found, scene, blocking), "launch_blocking")


def _after_kernel(found: Segments, scene: Scene, blocking: Index) -> npt.NDArray[np.bool_]:
    """Segments in a blocking call that launched something else than what ends the interval."""
    inside = np.isin(found.span, blocking) & (found.activity == CODE["launch"])
    rows = scene.host.nest.spans["row"].to_numpy()[np.maximum(found.span, 0)]
    ender = scene.pieces.ender[found.piece]
    launches = scene.states.work["launch"].cast(pl.Int64).fill_null(-1).to_numpy()
    ended = np.where(ender >= 0, launches[np.maximum(ender, 0)], -1)
    return np.asarray(inside & (rows != ended))
