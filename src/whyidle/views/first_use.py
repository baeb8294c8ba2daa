"""What is slow once, the first time: modules loaded, handles created, kernels compiled."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import polars as pl

from whyidle.intervals import Index, Ints
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
    count = scene.states.windows.height
    window, _, ends = scene.mark_positions
    steps, first = np.bincount(window, minlength=count), _first(window, ends, count)
    optimizer, stepping = scene.in_windows(scene.spans_named("annotation", _STEP))
    finished = scene.host_positions(optimizer, stepping)[1]
    unmarked = steps < MANY_ITERATIONS
    steps = np.where(unmarked, np.bincount(stepping, minlength=count), steps)
    first = np.where(unmarked, _least(stepping, finished, count), first)
    group = scene.pieces.group[found.piece]
    mine = (found.activity == CODE["allocator"]) & (steps >= MANY_ITERATIONS)[group]
    early = mine & (found.start < first[group])
    took = np.where(mine, found.end - found.start, 0)
    total, before = np.zeros((2, count), dtype=np.int64)
    np.add.at(total, group, took)
    np.add.at(before, group[early], took[early])
    grows = (total > 0) & (before >= GROWTH_SHARE * total)
    return np.asarray(early & grows[group])


def _first(group: Index, values: Ints, count: int) -> Ints:
    """Per group the first of its values; the largest integer for a group without any."""
    found = np.full(count, np.iinfo(np.int64).max)
    found[group[::-1]] = values[::-1]
    return found


def _least(group: Index, values: Ints, count: int) -> Ints:
    """Per group the smallest of its values; the largest integer for a group without any."""
    found = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(found, group, values)
    return found


def _may_wait(name: str) -> bool:
    return bool(names.SYNCHRONISATIONS.search(name) or names.BLOCKING_COPIES.search(name))


def _by_name(hosts: pl.DataFrame) -> Index:
    """First calls and operators of a name that outlast the later ones by far.

    An operator seen only once proves nothing; a runtime call seen only once is set-up.
    """
    keys = ["rank", "kind", "name"]
    used = hosts.filter(pl.col("kind").is_in(["op", "runtime"]))
    slow = used.filter(pl.col("took") > SLOW_NS).select(keys).unique()
    used = used.join(slow, on=keys, how="semi", nulls_equal=True).sort("begin")
    firsts = used.group_by(keys, maintain_order=True).agg(
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
    kernels = scene.activity.filter(pl.col("kind") == "kernel").select(
        pl.col("launch").alias("row"), pl.col("name").alias("kernel")
    )
    first = (
        calls.join(kernels.drop_nulls(), on="row")
        .sort("begin")
        .unique(["rank", "kernel"], keep="first", maintain_order=True)
        .filter(pl.col("took") > SLOW_NS)
    )
    keys = ["rank", "name"]
    alike = calls.join(first, on=keys, how="semi", nulls_equal=True)
    usual = alike.group_by(keys).agg(pl.col("took").median().alias("usual"))
    first = first.join(usual, on=keys, nulls_equal=True, maintain_order="left")
    return first.filter(pl.col("took") > SLOW_RATIO * pl.col("usual"))["index"].to_numpy()
