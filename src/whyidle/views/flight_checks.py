"""Whether ranks called the same thing, and whether one of them always comes late.

One row of ``mismatches``: one way in which ranks called the first collective of a group on which
they disagree; the way of the fewest ranks comes first.

========= ============= ==================================================================
key       String        the group, as in ``Flights.groups``
sequence  Int64         number of the collective in the group
rank      List[Int32]   ranks that called it so
what      List[String]  name, element types and sizes, one per rank
row       List[UInt32]  row in ``Flights.operations``, one per rank
========= ============= ==================================================================

One row of ``lateness``: one rank in one group over at least ten collectives that all ranks ended.

========= ======= =========================================================================
key       String
rank      Int64
count     UInt32  collectives compared
late_ns   Float64 median of how much later than the median rank it came
error_ns  Float64 how far off that may be (clocks, and how seldom the recorder looked)
by        String  "duration" (timed on the devices) or "clock" (moments of enqueueing)
========= ======= =========================================================================
"""

from __future__ import annotations

import polars as pl

from whyidle.views.flights import Flights

SAME_SIZE = (
    r"(?i)all_?reduce|broadcast|_all_gather_base|_reduce_scatter_base|barrier|:reduce$"
    r"|all_gather_into_tensor|reduce_scatter_tensor"
)
"""Operations whose tensors are of one size on all ranks; others may differ by rank."""

LEAST_COMPARED = 10


def mismatches(found: Flights) -> pl.DataFrame:
    """Per group, the first collective that its ranks called differently."""
    calls = found.operations.filter(~pl.col("p2p") & pl.col("sequence").is_not_null())
    name = pl.col("name").cast(pl.String)
    types = pl.col("types").cast(pl.String).fill_null("")
    shapes = pl.col("shapes").cast(pl.String).fill_null("")
    size = pl.coalesce(
        pl.concat_str(pl.col("bytes_in"), pl.lit("/"), pl.col("bytes_out"), pl.lit(" bytes")),
        shapes,
    )
    sized = pl.when(name.str.contains(SAME_SIZE)).then(size).otherwise(pl.lit(""))
    calls = calls.with_columns(
        pl.concat_str(name, pl.lit("|"), types, pl.lit("|"), sized).alias("sign"),
        pl.concat_str(name, pl.lit(" of "), types, pl.lit(" "), shapes).alias("what"),
        pl.int_range(pl.len(), dtype=pl.UInt32).alias("row"),
    )
    keys = ["key", "sequence"]
    per_rank = calls.group_by([*keys, "rank"], maintain_order=True).agg(
        pl.col("sign").str.join("+"), pl.col("what").str.join(", "), pl.col("row").first()
    )
    differing = per_rank.group_by(keys).agg(pl.col("sign").n_unique().alias("signs"))
    first = differing.filter(pl.col("signs") > 1).group_by("key").agg(pl.col("sequence").min())
    rows = per_rank.join(first, on=keys, how="semi").sort("key", "rank")
    return (
        rows.group_by([*keys, "sign"], maintain_order=True)
        .agg("rank", "what", "row")
        .drop("sign")
        .sort("key", pl.col("rank").list.len(), pl.col("rank").list.first())
    )


def lateness(found: Flights) -> pl.DataFrame:
    """How late each rank comes, by how long the others' kernels wait, or else by the clocks.

    A kernel that arrives last is the shortest of its collective: durations need no common clock.
    Without them, moments of enqueueing are compared, after the clocks were brought together by
    the moments at which the collectives were seen to end.
    """
    calls = found.operations.filter(
        ~pl.col("p2p") & (pl.col("state") == "completed") & pl.col("sequence").is_not_null()
    ).unique(["key", "sequence", "rank"], keep="first", maintain_order=True)
    timed = _spread(calls.filter(pl.col("duration_ns").is_not_null()), -pl.col("duration_ns"))
    by_duration = timed.group_by("key", "rank").agg(
        pl.len().alias("count"),
        pl.col("late").median().alias("late_ns"),
        (1.5 * (pl.col("late") - pl.col("late").median()).abs().median() / pl.len().sqrt()).alias(
            "error_ns"
        ),
        pl.lit("duration").alias("by"),
    )
    rest = calls.join(by_duration.select("key").unique(), on="key", how="anti")
    clocked = rest.filter(pl.col("created_ns").is_not_null() & pl.col("completed_ns").is_not_null())
    ended = _spread(clocked, pl.col("completed_ns"))
    ahead = ended.group_by("key", "rank").agg(
        pl.col("late").median().round().cast(pl.Int64).alias("ahead"),
        (3 * (pl.col("late") - pl.col("late").median()).abs().median()).alias("error_ns"),
    )
    begun = clocked.join(ahead, on=["key", "rank"])
    by_clock = (
        _spread(begun, pl.col("created_ns") - pl.col("ahead"))
        .group_by("key", "rank")
        .agg(pl.len().alias("count"), pl.col("late").median().alias("late_ns"))
        .join(ahead.drop("ahead"), on=["key", "rank"])
        .with_columns(pl.lit("clock").alias("by"))
    )
    return (
        pl.concat([by_duration, by_clock])
        .filter(pl.col("count") >= LEAST_COMPARED)
        .sort("key", "rank")
    )


def _spread(calls: pl.DataFrame, value: pl.Expr) -> pl.DataFrame:
    """key, sequence, rank and ``late``: the value less its lower median over the ranks."""
    together = pl.len().over("key", "sequence") > 1
    rows = calls.filter(together).with_columns(value.cast(pl.Int64).alias("value"))
    # integers since 1970 do not fit a float to the nanosecond
    base = pl.col("value").min().over("key", "sequence")
    rows = rows.with_columns((pl.col("value") - base).cast(pl.Float64).alias("value"))
    middle = pl.col("value").quantile(0.5, interpolation="lower").over("key", "sequence")
    late = pl.col("value") - middle
    return rows.select("key", "sequence", "rank", late.alias("late"))
