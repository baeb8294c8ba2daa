"""What is slow once, the first time: modules loaded, handles created, kernels compiled."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import polars as pl

from whyidle.intervals import Index
from whyidle.views import names
from whyidle.views.activities import CODE
from whyidle.views.blame import Segments
from whyidle.views.nest import inside
from whyidle.views.scene import Scene

SLOW_NS, SLOW_RATIO = 1_000_000, 20
"""A first use this long, and this many times the median of the later ones."""
MANY_ITERATIONS, GROWTH_SHARE = 3, 0.8
"""With this many iterations, this share of all allocator time in the first is growth, once."""
_STEP = re.compile(r"^Optimizer\.step#")
_SOFT = ("op", "launch", "allocator", "optimizer", "python_loop")


def first_use(found: Segments, scene: Scene) -> Segments:
    """Give the slow first call of its name, operator or kernel to ``warm_up``."""
    nest = scene.host.nest
    if not nest.start.size:
        return found
    hosts = nest.spans.select("row", "rank", "kind", "name").with_columns(
        pl.Series("begin", nest.axis.take(nest.start, nest.thread)),
        pl.Series("took", nest.end - nest.start),
        pl.int_range(pl.len()).alias("index"),
    )
    waits = names.matching(hosts["name"], _may_wait)
    copies = scene.activity.filter(pl.col("kind") == "copy")["launch"].drop_nulls()
    hosts = hosts.filter(~waits & ~pl.col("row").is_in(copies.implode()))
    slow = np.union1d(_by_name(hosts), _by_kernel(hosts, scene)).astype(np.intp)
    once = np.isin(found.span, slow) & np.isin(found.activity, [CODE[name] for name in _SOFT])
    grown = found.activity == CODE["allocator"]
    late = np.zeros(nest.start.size, dtype=bool)
    late[slow] = True
    below = inside(nest, late)[np.maximum(found.span, 0)] & (found.span >= 0)
    grown &= below | _first_iteration_only(found, scene)
    return found.with_activity(once | grown, "warm_up")


def _first_iteration_only(found: Segments, scene: Scene) -> npt.NDArray[np.bool_]:
    """Allocator time before the first iteration ended, when later ones have almost none.

    Iterations end at step marks, else at the optimizer's steps.
    """
    none = np.zeros(found.start.size, dtype=bool)
    optimizer = scene.spans_named("annotation", _STEP)
    for window in range(scene.states.windows.height):
        ends = scene.mark_positions(window)[1]
        if ends.size < MANY_ITERATIONS:
            ends = np.sort(scene.host_positions(scene.of_rank(optimizer, window), window)[1])
        mine = (found.activity == CODE["allocator"]) & (scene.pieces.group[found.piece] == window)
        took = np.where(mine, found.end - found.start, 0)
        if ends.size < MANY_ITERATIONS or not took.any():
            continue
        early = mine & (found.start < ends[0])
        if took[early].sum() >= GROWTH_SHARE * took.sum():
            none |= early
    return none


def _may_wait(name: str) -> bool:
    return bool(names.SYNCHRONISATIONS.search(name) or names.BLOCKING_COPIES.search(name))


def _by_name(hosts: pl.DataFrame) -> Index:
    """First calls and operators of a name that outlast the later ones by far.

    An operator seen only once proves nothing; a runtime call seen only once is set-up.
    """
    used = hosts.filter(pl.col("kind").is_in(["op", "runtime"])).sort("begin")
    firsts = used.group_by("rank", "kind", "name", maintain_order=True).agg(
        pl.col("index").first(),
        pl.col("took").first(),
        pl.col("took").slice(1).median().alias("later"),
    )
    ratio = pl.col("took") > SLOW_RATIO * pl.col("later")
    reserves = pl.col("name").cast(pl.String).str.starts_with("aten::empty")
    alone = pl.col("later").is_null() & ((pl.col("kind") == "runtime") | reserves)
    return firsts.filter((pl.col("took") > SLOW_NS) & (ratio | alone))["index"].to_numpy()


def _by_kernel(hosts: pl.DataFrame, scene: Scene) -> Index:
    """First launches of a kernel that outlast the median call of their name by far."""
    calls = hosts.filter(pl.col("kind") == "runtime")
    calls = calls.with_columns(pl.col("took").median().over("rank", "name").alias("usual"))
    kernels = scene.activity.filter(pl.col("kind") == "kernel").select(
        pl.col("launch").alias("row"), pl.col("name").alias("kernel")
    )
    first = (
        calls.join(kernels.drop_nulls(), on="row")
        .sort("begin")
        .unique(["rank", "kernel"], keep="first", maintain_order=True)
    )
    slow = (pl.col("took") > SLOW_NS) & (pl.col("took") > SLOW_RATIO * pl.col("usual"))
    return first.filter(slow)["index"].to_numpy()
