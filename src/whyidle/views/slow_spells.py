"""Spells of steps in which the host does everything more slowly: loading and launching alike.

A step's figures are the time its thread spent in the loader, and the median length of its most
frequent launch call. A spell is a run of at least FEWEST steps that are the slowest by both
figures; by both, a gap lies between them and all other steps that is wider than those differ among
themselves, so that drift is no spell. It begins after at least FEWEST other steps: whatever is
slow from the start is warm-up. Steps of a spell launch as much work as the others do.

One row per spell, at most one for each rank and source.

============ ======= ====================================================================
rank         Int32
source       UInt16
first, last  Int64   numbers of its steps
steps        UInt32
loader_ns    Float64 median time in the loader in a step of the spell; usual_loader_ns outside
launch_ns    Float64 median length of a launch call in it; usual_launch_ns outside
============ ======= ====================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from whyidle.views import names
from whyidle.views.activities import CODE
from whyidle.views.host import is_kernel_launch

if TYPE_CHECKING:
    from whyidle.views import Views

FEWEST = 4
"""Steps of a spell, and before it. By chance, 4 of 8 steps are the slowest twice over once in
4,900 times."""

SCHEMA = {
    "rank": pl.Int32, "source": pl.UInt16, "first": pl.Int64, "last": pl.Int64,
    "steps": pl.UInt32, "loader_ns": pl.Float64, "usual_loader_ns": pl.Float64,
    "launch_ns": pl.Float64, "usual_launch_ns": pl.Float64,
}  # fmt: skip

Floats = npt.NDArray[np.float64]


def slow_spells(views: Views) -> pl.DataFrame:
    """The frame that the module describes."""
    steps = views.marks.group_by("rank", "source").len()
    if not (steps["len"] > 2 * FEWEST).any():
        return pl.DataFrame(schema=SCHEMA)
    steps = _steps(views)
    found = []
    for (rank, source), mine in steps.group_by("rank", "source", maintain_order=True):
        if mine.height > 2 * FEWEST:
            spell = _spell(mine.slice(1))  # the first step holds what is done once
            found += [{"rank": rank, "source": source, **spell}] if spell else []
    return pl.DataFrame(found, schema=SCHEMA)


def _steps(views: Views) -> pl.DataFrame:
    """rank, source, number, loader_ns, launch_ns, launches of each step, in order of time."""
    marks = views.marks.select("rank", "source", "number", "start_ns").sort("start_ns")
    marks = marks.filter(pl.len().over("rank", "source") > 2 * FEWEST)
    keys = ["rank", "source", "number"]
    loader = _in_steps(_loader(views), marks).group_by(keys).agg(
        pl.col("took_ns").sum().cast(pl.Float64).alias("loader_ns")
    )  # fmt: skip
    calls = _in_steps(_launches(views), marks).group_by([*keys, "name"]).agg(
        pl.col("took_ns").median().alias("launch_ns"), pl.len().alias("launches")
    )  # fmt: skip
    common = calls.group_by("rank", "source", "name").agg(pl.col("launches").sum().alias("all"))
    best = common.sort("all", "name", descending=[True, False]).unique(
        ["rank", "source"], keep="first", maintain_order=True
    )
    chosen = {"nulls_equal": True, "how": "inner"}
    calls = calls.join(best, on=["rank", "source", "name"], **chosen)  # type: ignore[arg-type]
    both = marks.join(loader, on=keys, **chosen, maintain_order="left")  # type: ignore[arg-type]
    return both.join(calls, on=keys, **chosen, maintain_order="left")  # type: ignore[arg-type]


def _loader(views: Views) -> pl.DataFrame:
    """Outermost stays in the loader of the threads that mark steps."""
    host, nest = views.host, views.host.nest
    mine = (host.activity == CODE["loader"]) & (host.scope == np.arange(host.scope.size))
    at = np.flatnonzero(mine)
    marking = views.marks.select("rank", "source", "thread").unique()
    found = nest.spans[at].select("rank", "source", "thread").with_columns(
        pl.Series("start_ns", nest.axis.take(nest.start[at], nest.thread[at])),
        pl.Series("took_ns", nest.end[at] - nest.start[at]),
    )  # fmt: skip
    return found.join(marking, on=["rank", "source", "thread"], how="semi", nulls_equal=True)


def _launches(views: Views) -> pl.DataFrame:
    calls = views.evidence.table("spans").filter(pl.col("kind") == "runtime")
    calls = calls.filter(names.matching(calls["name"], is_kernel_launch))
    took = (pl.col("end_ns") - pl.col("start_ns")).alias("took_ns")
    return calls.select("rank", "source", "name", "start_ns", took)


def _in_steps(rows: pl.DataFrame, marks: pl.DataFrame) -> pl.DataFrame:
    """The rows with the number of the latest step of their rank and source that had begun."""
    rank = pl.col("rank").fill_null(-1)
    found = rows.with_columns(rank).sort("start_ns").join_asof(
        marks.with_columns(rank), on="start_ns", by=["rank", "source"], check_sortedness=False
    )  # fmt: skip
    back = pl.when(pl.col("rank") >= 0).then(pl.col("rank")).alias("rank")
    return found.filter(pl.col("number").is_not_null()).with_columns(back)


def _spell(steps: pl.DataFrame) -> dict[str, Any] | None:
    """The longest spell of one rank's steps; None when there is none."""
    loader, launch, launches = (
        steps[name].to_numpy().astype(np.float64) for name in ("loader_ns", "launch_ns", "launches")
    )
    (low, high), (other_low, other_high) = _reach(loader), _reach(launch)
    size = np.arange(1, loader.size + 1)
    alike = (low == other_low) & (high == other_high) & (high - low + 1 == size)
    alike &= (low >= FEWEST) & (size >= FEWEST)
    for count in (np.flatnonzero(alike)[::-1] + 1).tolist():
        first = int(low[count - 1])
        inside = np.zeros(loader.size, dtype=bool)
        inside[first : first + count] = True
        usual = launches[~inside]
        same_work = usual.min() <= np.median(launches[inside]) <= usual.max()
        if same_work and _apart(loader, inside) and _apart(launch, inside):
            return {
                "first": steps["number"][first],
                "last": steps["number"][first + count - 1],
                "steps": count,
                "loader_ns": float(np.median(loader[inside])),
                "usual_loader_ns": float(np.median(loader[~inside])),
                "launch_ns": float(np.median(launch[inside])),
                "usual_launch_ns": float(np.median(launch[~inside])),
            }
    return None


def _reach(values: Floats) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """First and last place among the slowest one, two, three, ... steps."""
    order = np.argsort(-values, kind="stable")
    return np.minimum.accumulate(order), np.maximum.accumulate(order)


def _apart(values: Floats, inside: npt.NDArray[np.bool_]) -> bool:
    """Whether the spell lies above the rest, by a gap wider than the rest's own range.

    A figure that drifts or grows step by step leaves no such gap.
    """
    rest = values[~inside]
    return bool(values[inside].min() - rest.max() > rest.max() - rest.min())
