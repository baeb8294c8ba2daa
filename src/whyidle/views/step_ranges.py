"""Steps deduced from ranges that the user named, where the profiler marked none.

Scripts name their steps in many ways: ``step 3``, ``iteration#12``, ``train_step`` once per step.
Ranges that differ in their number only are one family. A family of at least ``ENOUGH`` ranges, one
after the other on one thread, can be the steps; of several the one that covers most is taken, so
that micro-batches inside a step do not pass for steps. A step lasts until the next one begins: what
a script does between its ranges, such as waiting for the loader, belongs to the step before.
"""

from __future__ import annotations

import re

import polars as pl

from whyidle.model import Evidence
from whyidle.views import names

ENOUGH = 3

STEP_NAME = (
    r"(?i)^ProfilerStep#\d+$"
    r"|^(.*[^a-z0-9])?(train(ing)?[ _-]?)?(step|iteration|iter|batch)"
    r"[ _#:=/.(\[-]*\d{1,12}[)\]]?$"
)
"""A name that numbers a step."""
_NUMBERED = re.compile(STEP_NAME)
_PLAIN = re.compile(
    r"^(.*[^a-z0-9])?(train(ing)?[ _-]?(step|iteration|iter|batch)|step|iteration)$", re.I
)
_NOT_STEPS = re.compile(r"eval|valid|test|warm|optimi[sz]er|scheduler", re.I)


def family(name: str) -> str | None:
    """What all ranges of a step's kind share: the name without its numbers; None for others."""
    if _NOT_STEPS.search(name) or not (_NUMBERED.match(name) or _PLAIN.match(name)):
        return None
    return re.sub(r"\d+", "#", name)


def step_ranges(evidence: Evidence, marked: pl.DataFrame) -> pl.DataFrame:
    """Steps of every source without marks: rank, source, number, thread, start_ns, end_ns, row.

    ``number`` is the one in the name where those count upwards, else 0, 1, 2, ...
    """
    ranges = evidence.table("spans").filter(pl.col("kind") == "annotation")
    found = ranges.select("rank", "source", "thread", "start_ns", "end_ns", "row", "name")
    kinds = names.told(found["name"], family)
    found = found.with_columns(kinds.alias("family")).drop_nulls("family")
    found = found.join(marked.select("source").unique(), on="source", how="anti")
    place = ["rank", "source", "thread", "family"]
    found = found.sort(*place, "start_ns")
    after = pl.col("start_ns").shift(-1).over(place)
    found = found.with_columns(after.alias("next_ns"))
    apart = (pl.col("next_ns").is_null() | (pl.col("end_ns") <= pl.col("next_ns"))).all()
    families = found.group_by(place).agg(
        pl.len().alias("count"),
        apart.alias("apart"),
        (pl.col("end_ns") - pl.col("start_ns")).sum().alias("covered_ns"),
    )
    families = families.filter(pl.col("apart") & (pl.col("count") >= ENOUGH))
    families = families.sort(-pl.col("covered_ns"), "count", "family")
    best = families.unique(["rank", "source"], keep="first", maintain_order=True)
    found = found.join(best.select(place), on=place, how="semi", nulls_equal=True)
    found = found.sort("rank", "source", "start_ns")
    written = pl.col("name").cast(pl.String).str.extract(r"(\d{1,12})\D*$").cast(pl.Int64)
    source = ["rank", "source"]
    rises = (written.diff().over(source).fill_null(1) > 0).all().over(source) & (
        written.is_not_null().all().over(source)
    )
    return found.select(
        "rank",
        "source",
        pl.when(rises)
        .then(written)
        .otherwise(pl.int_range(pl.len(), dtype=pl.Int64).over(source))
        .alias("number"),
        "thread",
        "start_ns",
        pl.coalesce("next_ns", "end_ns").alias("end_ns"),
        "row",
    )


def said(evidence: Evidence, marks: pl.DataFrame) -> list[str]:
    """Which ranges were taken for steps, in a sentence; nothing when the profiler marked them."""
    rows = marks["row"].implode()
    shown = evidence.table("spans").filter(pl.col("row").is_in(rows)).select("name")
    kinds = shown["name"].cast(pl.String).unique().sort()
    families = {family(name) for name in kinds if not name.startswith("ProfilerStep#")} - {None}
    if not families:
        return []
    some = ", ".join(f"'{name}'" for name in sorted(map(str, families))[:3])
    return [
        f"Steps are deduced from the recorded ranges named {some} (# stands for a number); each "
        "is taken to last until the next begins."
    ]
