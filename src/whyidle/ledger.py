"""Overlapping claims -> seconds that add up.

At each instant of a device at most one claim wins: the largest weight; ties go to the better
level (seen before deduced before suspected), then the shorter claim, then the smaller cause id.
A win costs its length times its weight; what the losers wanted there is contested.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from whyidle.intervals import Index, Ints, expand, pairs
from whyidle.model import CLAIMS
from whyidle.views.activity import STATE_NAMES
from whyidle.views.states import States


@dataclass(frozen=True)
class Ledger:
    """Who won what.

    ``won``: one row per interval that a claim won, in one state: the claim's columns, ``cause``,
    ``window`` (row of states.windows), ``state``, start_ns, end_ns, ``lost_s``.
    ``wanted_s``: per cause, seconds all its claims asked for inside the windows.
    """

    won: pl.DataFrame
    wanted_s: dict[str, float]

    def contested_s(self, cause: str) -> float:
        """Seconds that a cause asked for and another one won."""
        own = float(self.won.filter(pl.col("cause") == cause)["lost_s"].sum())
        return max(self.wanted_s.get(cause, 0.0) - own, 0.0)


def settle(claims: dict[str, pl.DataFrame], states: States) -> Ledger:
    """Decide every claim of every cause on every device."""
    told = [frame.with_columns(pl.lit(cause).alias("cause")) for cause, frame in claims.items()]
    if not told:
        return Ledger(_no_wins(), {})
    every = _placed(pl.concat(told), states)
    start, end = every["from"].to_numpy(), every["to"].to_numpy()
    wanted = every.select("cause", asked=(pl.col("to") - pl.col("from")) / 1e9 * pl.col("weight"))
    wanted_s = dict(wanted.group_by("cause").agg(pl.col("asked").sum()).iter_rows())
    claim, low, high = _winners(start, end)
    return Ledger(_by_state(every, claim, low, high, states), wanted_s)


def _no_wins() -> pl.DataFrame:
    extra = {"cause": pl.String, "window": pl.Int64, "state": pl.String, "lost_s": pl.Float64}
    return pl.DataFrame(schema={**CLAIMS, **extra})


def _placed(claims: pl.DataFrame, states: States) -> pl.DataFrame:
    """Claims cut to their window, on the device axis, best first."""
    windows = states.windows.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias("window"))
    bounds = windows.rename({"start_ns": "low_ns", "end_ns": "high_ns"})
    joined = claims.join(bounds, on=["rank", "device"], how="inner", nulls_equal=True).with_columns(
        pl.max_horizontal("start_ns", "low_ns").alias("start_ns"),
        pl.min_horizontal("end_ns", "high_ns").alias("end_ns"),
        pl.col("weight").clip(0.0, 1.0),
    )
    joined = joined.filter((pl.col("end_ns") > pl.col("start_ns")) & (pl.col("weight") > 0))
    joined = joined.drop("low_ns", "high_ns").sort(
        pl.col("weight"), pl.col("level").to_physical(), pl.col("end_ns") - pl.col("start_ns"),
        "cause", "start_ns", descending=[True, False, False, False, False],
    )  # fmt: skip
    group = joined["window"].to_numpy()
    return joined.with_columns(
        pl.Series("from", states.axis.put(group, joined["start_ns"].to_numpy())),
        pl.Series("to", states.axis.put(group, joined["end_ns"].to_numpy())),
    )


def _winners(start: Ints, end: Ints) -> tuple[Index, Ints, Ints]:
    """(claim, from, to) of every won interval; claims are numbered best first."""
    if start.size == 0:
        return np.zeros(0, dtype=np.intp), start, end
    order = np.argsort(start, kind="stable")
    low, high = start[order], end[order]
    apart = np.concatenate([[True], low[1:] >= np.maximum.accumulate(high)[:-1], [True]])
    lone = apart[:-1] & apart[1:]
    alone = order[lone]
    crowd = np.sort(order[~lone])  # ascending: still best first
    claim, begin, finish = _fought(start[crowd], end[crowd])
    return (
        np.concatenate([alone, crowd[claim]]).astype(np.intp),
        np.concatenate([start[alone], begin]),
        np.concatenate([end[alone], finish]),
    )


def _fought(start: Ints, end: Ints) -> tuple[Index, Ints, Ints]:
    """Winners among claims that overlap: the first in number at each instant."""
    edges = np.unique(np.concatenate([start, end]))
    first = np.searchsorted(edges, start)
    count = np.searchsorted(edges, end) - first
    claim = np.repeat(np.arange(start.size), count)
    cell = expand(first, count)
    best = np.full(edges.size, start.size, dtype=np.intp)
    np.minimum.at(best, cell, claim)
    won = np.flatnonzero(best < start.size)
    # neighbouring cells of one claim become one interval again
    split = np.ones(won.size, dtype=bool)
    split[1:] = (best[won[1:]] != best[won[:-1]]) | (won[1:] != won[:-1] + 1)
    head = np.flatnonzero(split)
    tail = np.concatenate([head[1:], [won.size]]) - 1 if won.size else head
    return best[won[head]], edges[won[head]], edges[won[tail] + 1] if won.size else edges[:0]


def _by_state(
    every: pl.DataFrame, claim: Index, low: Ints, high: Ints, states: States
) -> pl.DataFrame:
    found = []
    for code, area in enumerate(states.sets):
        left, right = pairs((low, high), area)
        begin = np.maximum(low[left], area[0][right])
        finish = np.minimum(high[left], area[1][right])
        rows = every[claim[left]].drop("from", "to")
        group = rows["window"].to_numpy()
        found.append(
            rows.with_columns(
                pl.lit(STATE_NAMES[code]).alias("state"),
                pl.Series("start_ns", states.axis.take(begin, group), dtype=pl.Int64),
                pl.Series("end_ns", states.axis.take(finish, group), dtype=pl.Int64),
            )
        )
    won = pl.concat(found)
    lost = (pl.col("end_ns") - pl.col("start_ns")) / 1e9 * pl.col("weight")
    return won.with_columns(lost.alias("lost_s"))
