"""All-gathers of sharded parameters, and which of them fetch again what forward had fetched.

A wrapper that shards parameters (FSDP, DeepSpeed ZeRO-3) marks its own calls, so that an
all-gather launched inside such a call is one of parameters; sequence parallelism, which gathers
activations in forward and backward alike, has no such call around it.

One row of ``regathers``: one all-gather that a device ran in backward for parameters that forward
of the same step had gathered.

========== ======= ====================================================================
rank       Int32
device     Int32
step       Int64   number of the recorded step; -1 where none are marked
unit       String  module the wrapper names; null where the equal size tells it is the same
bytes      Int64   of the whole gathered buffer; null when not said
size       Int32   ranks in the group; null when not said
row        UInt32  the span of the device work
alone_ns   Int64   how long the device did nothing but this
========== ======= ====================================================================
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from whyidle.views import names
from whyidle.views.activities import NODE
from whyidle.views.meetings import entries
from whyidle.views.nest import inside, nearest

if TYPE_CHECKING:
    from whyidle.views import Views

SCHEMA = {
    "rank": pl.Int32, "device": pl.Int32, "step": pl.Int64, "unit": pl.String, "bytes": pl.Int64,
    "size": pl.Int32, "row": pl.UInt32, "alone_ns": pl.Int64,
}  # fmt: skip

_WRAPPER = re.compile(
    r"^FSDP::|^FullyShardedDataParallel\.|(^|/)deepspeed/.*(stage3|partition)|^PartitionedParam"
    r"|^DeepSpeedZeroOptimizer_Stage3\."
)
_UNIT = re.compile(r"^FSDP::all_gather \((.+)\)$")
_BACKWARD = re.compile(r"pre_backward|backward_prefetch|PreBackward")
_KEY = ["rank", "device", "step", "unit", "group", "bytes"]


def regathers(views: Views) -> pl.DataFrame:
    """The frame that the module describes."""
    nest = views.host.nest
    wrapper = names.matching(nest.spans["name"], _WRAPPER.search).to_numpy()
    if not wrapper.any():
        return pl.DataFrame(schema=SCHEMA)
    found = _gathers(views)
    at = nest.index_of(found["launch"].fill_null(2**32 - 1).to_numpy())
    within = nearest(nest, wrapper)[np.maximum(at, 0)]
    ours = (at >= 0) & (within >= 0)
    found, at = found.filter(pl.Series(ours)), at[ours]
    backward = names.matching(
        nest.spans["name"], lambda name: name.startswith(NODE) or _BACKWARD.search(name)
    )
    unit = names.told(nest.spans["name"], lambda name: (m := _UNIT.match(name)) and m[1])
    named = nearest(nest, unit.is_not_null().to_numpy())[at]
    found = found.with_columns(
        pl.Series("backward", inside(nest, backward.to_numpy())[at]),
        unit.gather(np.maximum(named, 0)).set(pl.Series(named < 0), None).alias("unit"),
    )
    known = found.filter(pl.col("unit").is_not_null() | pl.col("bytes").is_not_null())
    return _again(known, views)


def _gathers(views: Views) -> pl.DataFrame:
    """All-gathers of every device, with their launch, message and step."""
    met = entries(views).filter(pl.col("collective") == "all-gather")
    work = views.activity.select("row", "launch", "rank", "device").unique("row")
    found = met.join(work, on="row", how="left", maintain_order="left").sort("order_ns")
    marks = views.marks.select("rank", pl.col("start_ns").alias("mark_ns"), "number")
    marks = marks.with_columns(pl.col("rank").fill_null(-1)).sort("mark_ns")
    found = found.with_columns(pl.col("rank").fill_null(-1)).join_asof(
        marks, left_on="order_ns", right_on="mark_ns", by="rank", check_sortedness=False
    )
    rank = pl.when(pl.col("rank") >= 0).then(pl.col("rank"))
    return found.with_columns(
        pl.col("number").cast(pl.Int64).fill_null(-1).alias("step"), rank.alias("rank")
    )


def _again(gathers: pl.DataFrame, views: Views) -> pl.DataFrame:
    """The gathers of backward, at most as many of each kind as forward had made."""
    forward = gathers.filter(~pl.col("backward")).group_by(_KEY).agg(pl.len().alias("before"))
    later = gathers.filter("backward").join(
        forward, on=_KEY, how="inner", nulls_equal=True, maintain_order="left"
    )
    later = later.filter(pl.int_range(pl.len()).over(_KEY) < pl.col("before"))
    took = (pl.col("end_ns") - pl.col("start_ns")).sum().alias("alone_ns")
    alone = views.exposed.group_by("row").agg(took)
    later = later.join(alone, on="row", how="left", maintain_order="left")
    told = later.with_columns(pl.col("alone_ns").fill_null(0))
    return told.select(pl.col(name).cast(dtype) for name, dtype in SCHEMA.items())
