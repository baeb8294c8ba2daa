"""Which stretch of time is judged, per device, and the steps inside it.

``marks``: one row per recorded step: rank, source, number, thread, start_ns, end_ns, row.
``windows``: one row per device and source: rank, device, source, start_ns, end_ns (half open).
Several recordings of one rank are several windows; the time between them is nobody's.
"""

from __future__ import annotations

import re

import polars as pl

from whyidle.errors import StepsNotRecorded
from whyidle.model import HOST_KINDS, Evidence
from whyidle.views import names
from whyidle.views.flight_words import ranks_text
from whyidle.views.step_ranges import step_ranges

_MARK = re.compile(r"^ProfilerStep#(\d+)$")
Steps = tuple[int | None, int | None]
WITHOUT_STEPS = "Left out, since none of the steps asked for was recorded there: {}."


def marks(evidence: Evidence, steps: Steps | None = None) -> pl.DataFrame:
    """Host events named ProfilerStep#N, first occurrence of each; ``steps`` keeps [A, B).

    Where a source has none, ranges that the user named after steps; see views.step_ranges.
    """
    spans = evidence.table("spans")
    host = spans.filter(
        pl.col("kind").is_in(HOST_KINDS) & names.matching(spans["name"], _MARK.match)
    )
    found = host.select(
        "rank",
        "source",
        pl.col("name")
        .cast(pl.String)
        .str.slice(len("ProfilerStep#"))
        .cast(pl.Int64, strict=False)
        .alias("number"),
        "thread",
        "start_ns",
        "end_ns",
        "row",
    )
    found = found.drop_nulls("number").unique(
        ["rank", "number", "start_ns"], keep="first", maintain_order=True
    )
    found = pl.concat([found, step_ranges(evidence, found)]).sort("rank", "start_ns")
    return found if steps is None else _narrowed(found, steps)


def _narrowed(found: pl.DataFrame, steps: Steps) -> pl.DataFrame:
    first, stop = steps
    kept = found
    if first is not None:
        kept = kept.filter(pl.col("number") >= first)
    if stop is not None:
        kept = kept.filter(pl.col("number") < stop)
    if kept.height == 0:
        recorded = found["number"].unique().sort().to_list()
        text = f"{recorded[0]} to {recorded[-1]}" if recorded else "none"
        asked = ":".join("" if number is None else str(number) for number in steps)
        raise StepsNotRecorded(
            f"--steps {asked} leaves no step; steps recorded: {text}.\n"
            "Give A:B with A the first step to keep and B the first to leave out."
        )
    return kept


def with_steps(found: pl.DataFrame, marks: pl.DataFrame) -> pl.DataFrame:
    """Those windows in whose recording any of the steps to be judged lies."""
    places = marks.select("rank", "source").unique()
    kept = found.join(places, on=["rank", "source"], how="semi", nulls_equal=True)
    return kept.sort("rank", "device", "start_ns")


def left_out(every: pl.DataFrame, kept: pl.DataFrame) -> list[str]:
    """A note on the ranks of which no window was kept, if any."""
    judged = {None, *kept["rank"].unique().to_list()}
    ranks = [rank for rank in every["rank"].unique().sort().to_list() if rank not in judged]
    return [WITHOUT_STEPS.format(ranks_text(ranks))] if ranks else []


def windows(activity: pl.DataFrame, marks: pl.DataFrame) -> pl.DataFrame:
    """The judged windows of every device that did anything.

    With marks: from the first mark's start, or the end of device work known to be launched
    before it if later, to the end of the last mark or of the last device work not known to be
    launched after it, whichever is later. Without: from first to last device activity.
    """
    bounds = marks.group_by("rank", "source").agg(
        pl.col("start_ns").min().alias("first_ns"), pl.col("end_ns").max().alias("last_ns")
    )
    work = activity.join(bounds, on=["rank", "source"], how="left", nulls_equal=True)
    early = pl.col("launch_ns") < pl.col("first_ns")
    late = (pl.col("launch_ns") >= pl.col("last_ns")).fill_null(value=False)
    per_device = work.group_by("rank", "device", "source").agg(
        pl.col("first_ns").first(),
        pl.col("last_ns").first(),
        pl.col("start_ns").min().alias("begin_ns"),
        pl.col("end_ns").max().alias("finish_ns"),
        pl.col("end_ns").filter(early).max().alias("drained_ns"),
        pl.col("end_ns").filter(~late).max().alias("done_ns"),
    )
    marked = per_device.with_columns(
        pl.coalesce(pl.max_horizontal("first_ns", "drained_ns"), "begin_ns").alias("start_ns"),
        pl.when(pl.col("first_ns").is_null())
        .then(pl.col("finish_ns"))
        .otherwise(pl.max_horizontal("last_ns", "done_ns"))
        .alias("end_ns"),
    )
    sound = pl.col("start_ns") < pl.col("end_ns")
    return marked.select(
        "rank",
        "device",
        "source",
        pl.when(pl.col("first_ns").is_null())
        .then(pl.col("begin_ns"))
        .when(sound)
        .then("start_ns")
        .otherwise("begin_ns")
        .alias("start_ns"),
        pl.when(sound).then("end_ns").otherwise("finish_ns").alias("end_ns"),
    ).sort("rank", "device", "start_ns")
