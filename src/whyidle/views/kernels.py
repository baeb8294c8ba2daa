"""Compute kernels inside their window: what each multiplies or moves, and how much of the device.

One row of ``kernels``: one kernel in the compute state, cut to its window, in order of rank,
device and start.

============= ======= ====================================================================
row           UInt32  of the span
rank, device  Int32
lane          Int64   stream
start_ns      Int64   end_ns likewise; cut to the window
name          Categorical
family        String  see views.kernel_names; gemm becomes conv when a convolution launched it
cores         String  "tensor", "simt"; null when the name does not tell
precision     String  of a matrix kernel's inputs; null likewise
align         Int64   elements per aligned access of a CUTLASS kernel; null likewise
fused         Boolean the name says that neighbours were merged already
blocks        Int64   thread blocks; null when not recorded
sms           Int64   multiprocessors of its device; null when not known
fill          Float64 blocks / sms: below 1, multiprocessors had no block; null likewise
waves         Float64 blocks / (sms x blocks resident on one); the residents come from the
                      recorded occupancy and count as 1 when that is not known
alone         Boolean no other kernel ran on the device meanwhile
op            String  innermost operator that launched it; null when not known
op_row        UInt32  row of that operator
shapes, types Categorical of the innermost operator around it that recorded any, as JSON text
optimizer     Boolean launched inside Optimizer.step
call          Int64   index in the nest of the launch call, else of the operator; -1 for none
call          Int64   index in the nest of the launch call, or of the operator; -1 for none
caller        UInt32  host thread that launched it; null when not known
============= ======= ====================================================================
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from whyidle.intervals import Index
from whyidle.model import CLAIMS, frame
from whyidle.views import names
from whyidle.views.activities import CODE
from whyidle.views.activity import COMPUTE, COPY
from whyidle.views.kernel_names import read_name, short_name
from whyidle.views.nest import nearest
from whyidle.views.places import place
from whyidle.views.states import States

if TYPE_CHECKING:
    from whyidle.model import Facts
    from whyidle.views import Views

_NAME_SCHEMA = {
    "name": pl.Categorical, "family": pl.String, "cores": pl.String, "precision": pl.String,
    "align": pl.Int64, "fused": pl.Boolean,
}  # fmt: skip


def kernels(views: Views) -> pl.DataFrame:
    """The frame that the module describes."""
    states = views.states
    at = np.flatnonzero(
        (states.work["state"].to_numpy() == COMPUTE) & (states.work["kind"] == "kernel").to_numpy()
    )
    work = states.work[at].with_columns(pl.Series("alone", _alone(states)[at]))
    found = work.select(
        "row", "source", "rank", "device", "lane", "start_ns", "end_ns", "name", "blocks",
        "block_threads", "occupancy", "launch", "caller", "external", "alone",
    )  # fmt: skip
    found = found.join(_told(found["name"]), on="name", how="left", maintain_order="left")
    found = _filled(found, views.facts)
    found = _launched_by(found, views)
    return found.with_columns(
        pl.when((pl.col("family") == "gemm") & pl.col("op").str.contains("(?i)conv"))
        .then(pl.lit("conv"))
        .otherwise("family")
        .alias("family")
    ).drop("source", "launch", "external", "block_threads", "occupancy")


def _told(column: pl.Series) -> pl.DataFrame:
    """What the distinct names tell; see views.kernel_names."""
    distinct = column.unique().drop_nulls().cast(pl.String).to_list()
    rows = [{"name": name, **asdict(read_name(name))} for name in distinct]
    return pl.DataFrame(rows, schema=_NAME_SCHEMA)


def _alone(states: States) -> npt.NDArray[np.bool_]:
    """Per device work, whether it overlaps no kernel; copies do not count, they need no block."""
    alone = np.zeros(states.start.size, dtype=bool)
    at = np.flatnonzero(states.work["state"].to_numpy() != COPY)
    start, end = states.start[at], states.end[at]
    if not at.size:
        return alone
    reach = np.maximum.accumulate(end)
    before = np.concatenate([[-1], reach[:-1]])
    after = np.concatenate([start[1:], [np.iinfo(np.int64).max]])
    alone[at] = (start >= before) & (end <= after)
    return alone


def _filled(found: pl.DataFrame, facts: Facts) -> pl.DataFrame:
    """Adds sms, fill and waves."""
    pairs = found.select("rank", "device").unique()
    known = [(r, d, facts.device(r, d)) for r, d in pairs.iter_rows()]
    sizes = pl.DataFrame(
        [
            {"rank": r, "device": d, "sms": i.sms or None, "per_sm": i.threads_per_sm or None}
            for r, d, i in known
        ],
        schema={"rank": pl.Int32, "device": pl.Int32, "sms": pl.Int64, "per_sm": pl.Int64},
    )
    joined = found.join(
        sizes, on=["rank", "device"], how="left", nulls_equal=True, maintain_order="left"
    )
    blocks = pl.when(pl.col("blocks") > 0).then("blocks")
    resident = (pl.col("occupancy") * pl.col("per_sm") / pl.col("block_threads")).floor()
    return joined.with_columns(
        blocks.alias("blocks"), (blocks / pl.col("sms")).alias("fill")
    ).with_columns(
        (pl.col("fill") / pl.max_horizontal(resident.fill_nan(None), 1.0)).alias("waves")
    ).drop("per_sm")  # fmt: skip


def _launched_by(found: pl.DataFrame, views: Views) -> pl.DataFrame:
    """Adds op, op_row, shapes, types, optimizer: by the launch call, else by External id."""
    host = views.host
    spans = host.nest.spans
    call = host.nest.index_of(found["launch"].fill_null(2**32 - 1).to_numpy())
    call = np.where(found["launch"].is_null().to_numpy(), -1, call).astype(np.intp)
    own = nearest(host.nest, (spans["kind"] == "op").to_numpy())
    op = np.where(call >= 0, own[np.maximum(call, 0)], -1) if own.size else call * 0 - 1
    loose = np.flatnonzero(op < 0)
    if loose.size:
        op[loose] = _by_external(found[loose], views)
    table = views.evidence.table("spans").select("shapes", "types")
    shaped = table[spans["row"]]  # row N of the evidence stands at N
    bearing = nearest(host.nest, shaped["shapes"].is_not_null().to_numpy())
    shape = np.where(op >= 0, bearing[np.maximum(op, 0)], -1) if bearing.size else op
    stepping = host.activity == CODE["optimizer"]
    return found.with_columns(
        _take(spans["name"], op).cast(pl.String).alias("op"),
        _take(spans["row"], op).alias("op_row"),
        _take(shaped["shapes"], shape).alias("shapes"),
        _take(shaped["types"], shape).alias("types"),
        pl.Series("call", np.where(call >= 0, call, op).astype(np.int64)),
        pl.Series(
            "optimizer", (call >= 0) & stepping[np.maximum(call, 0)] if own.size else call > 0
        ),
    )


def _by_external(found: pl.DataFrame, views: Views) -> Index:
    """Index in the nest of the operator that carries the same External id; -1 for none."""
    nowhere = np.full(found.height, -1, dtype=np.intp)
    if found["external"].null_count() == found.height:
        return nowhere
    spans = views.evidence.table("spans")
    ops = spans.filter(
        (pl.col("kind") == "op") & pl.col("external").is_not_null() & (pl.col("external") != 0)
    )
    ops = ops.select("source", "external", pl.col("row").alias("op_row")).unique(
        ["source", "external"], keep="first", maintain_order=True
    )
    joined = found.select("source", "external").join(
        ops, on=["source", "external"], how="left", maintain_order="left"
    )
    at = views.host.nest.index_of(joined["op_row"].fill_null(2**32 - 1).to_numpy())
    return np.where(joined["op_row"].is_null().to_numpy(), -1, at).astype(np.intp)


def kernel_claims(rows: pl.DataFrame, views: Views) -> pl.DataFrame:
    """Claims for kernels, one each.

    ``rows`` has the columns above, weight, level and, if the operator does not say it best,
    ``told``: what to name.
    """
    placed = rows.with_columns(
        pl.col("call").alias("span"),
        pl.lit("op").alias("activity"),
        pl.col("caller").alias("thread"),
    )
    where = {column.name: column for column in place(placed, views.host)}
    named = rows["told"] if "told" in rows.columns else rows["op"]
    kernel = names.told(rows["name"], short_name)
    nowhere = pl.repeat(None, rows.height, dtype=pl.String, eager=True)
    return frame(
        CLAIMS,
        rows.select("rank", "device", "start_ns", "end_ns", "weight", "level", "row").with_columns(
            placed["thread"],
            named.fill_null(kernel).alias("op") if "told" in rows.columns
            else pl.select(
                pl.when(named.is_null()).then(kernel).otherwise(named + " (" + kernel + ")")
            ).to_series().alias("op"),
            where.get("file", nowhere).alias("file"),
            where.get("line", nowhere).alias("line"),
        ),
    )  # fmt: skip


def _take(values: pl.Series, index: Index) -> pl.Series:
    """values[index], null where index is -1."""
    if not len(values):
        return pl.Series(values.name, [None] * index.size, dtype=values.dtype)
    found = values.gather(np.maximum(index, 0))
    return pl.select(pl.when(pl.Series(index >= 0)).then(found)).to_series()
