"""Overlapping claims -> seconds that add up.

At each instant of a device at most one claim wins: the largest weight; ties go to the better
level (seen before deduced before suspected), then the shorter claim, then the smaller cause id.
A win costs its length times its weight; what the losers wanted there is contested.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from whyidle.intervals import Index, Ints, expand, pairs
from whyidle.model import CLAIMS, STATES
from whyidle.views.activity import STATE_NAMES
from whyidle.views.states import States

PARTS_PER_NS = 100
PARTS_PER_S = PARTS_PER_NS * 10**9
"""Losses are summed as integers of this unit, so that seconds add up exactly."""


@dataclass(frozen=True)
class Ledger:
    """Who won what.

    ``won``: one row per interval that a claim won, in one state: the claim's columns, ``cause``,
    ``window`` (row of states.windows), ``state``, start_ns, end_ns, ``lost_s``, and ``lost`` in
    whole parts of PARTS_PER_S, whose sums do not depend on the order of adding.
    ``wanted_s``: per cause, seconds all its claims asked for inside the windows.
    """

    won: pl.DataFrame
    wanted_s: dict[str, float]

    def contested_s(self, cause: str) -> float:
        """Seconds that a cause asked for and another one won."""
        own = int(self.won.filter(pl.col("cause") == cause)["lost"].sum()) / PARTS_PER_S
        return max(self.wanted_s.get(cause, 0.0) - own, 0.0)


def settle(claims: dict[str, pl.DataFrame], states: States) -> Ledger:
    """Decide every claim of every cause on every device."""
    kinds = pl.Enum(sorted(claims))
    told = [f.with_columns(pl.lit(cause, kinds).alias("cause")) for cause, f in claims.items()]
    asked = pl.concat(told) if told else _nothing()
    window, start, end = _placed(asked, states)
    weight = np.clip(asked["weight"].to_numpy(), 0.0, 1.0)
    level = asked["level"].to_physical().to_numpy()
    cause = asked["cause"].to_physical().to_numpy()
    order = np.lexsort((start, cause, end - start, level, -weight))
    best = order[(end > start)[order] & (weight > 0)[order]]
    wanted = np.bincount(cause[best], weights=(end - start)[best] * weight[best] / 1e9)
    wanted_s = dict(zip(kinds.categories.to_list(), wanted.tolist(), strict=False))
    claim, low, high = winners(start[best], end[best])
    won = _by_state(best[claim], low, high, states)
    return Ledger(_told(asked, won, window, weight, states), wanted_s)


def _nothing() -> pl.DataFrame:
    return pl.DataFrame(schema={**CLAIMS, "cause": pl.Enum([])})


def _placed(asked: pl.DataFrame, states: States) -> tuple[Index, Ints, Ints]:
    """Window and positions of each claim, cut to its window; empty where it has none."""
    start, end = asked["start_ns"].to_numpy(), asked["end_ns"].to_numpy()
    found = _window_of(asked, states)
    window = np.maximum(found, 0)
    if not states.windows.height:
        return window, start, start
    low = states.windows["start_ns"].to_numpy()[window]
    high = states.windows["end_ns"].to_numpy()[window]
    outside = found < 0
    start = np.where(outside, 0, states.axis.put(window, np.clip(start, low, high)))
    return window, start, np.where(outside, 0, states.axis.put(window, np.clip(end, low, high)))


def _window_of(asked: pl.DataFrame, states: States) -> Index:
    """The window of each claim, -1 for none; the first it touches where a device has several."""
    windows = states.windows.select("rank", "device", "start_ns", "end_ns")
    numbered = windows.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias("window"))
    first = numbered.unique(["rank", "device"], keep="first")
    keys = asked.select("rank", "device", "start_ns", "end_ns")
    joined = keys.join(
        first, on=["rank", "device"], how="left", nulls_equal=True, maintain_order="left"
    )
    found = joined["window"].fill_null(-1).to_numpy().copy()
    again = windows.height - first.height
    for row in numbered.iter_rows(named=True) if again else ():
        here = keys.select(
            pl.col("rank").eq_missing(row["rank"])
            & (pl.col("device") == row["device"])
            & (pl.col("start_ns") < row["end_ns"])
            & (pl.col("end_ns") > row["start_ns"])
        )
        found[here.to_series().to_numpy()] = row["window"]
    return np.asarray(found)


def winners(start: Ints, end: Ints) -> tuple[Index, Ints, Ints]:
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


@dataclass(frozen=True)
class _Won:
    """Won intervals, cut where the state changes; ``claim`` is a row of all claims."""

    claim: Index
    start: Ints
    end: Ints
    state: Index


def _by_state(claim: Index, low: Ints, high: Ints, states: States) -> _Won:
    found = []
    for code, area in enumerate(states.sets):
        left, right = pairs((low, high), area)
        begin = np.maximum(low[left], area[0][right])
        finish = np.minimum(high[left], area[1][right])
        found.append((claim[left], begin, finish, np.full(left.size, code)))
    return _Won(*(np.concatenate(column) for column in zip(*found, strict=True)))


def _told(
    asked: pl.DataFrame, won: _Won, window: Index, weight: npt.NDArray[np.float64], states: States
) -> pl.DataFrame:
    """The frame ``won`` of the ledger."""
    group = window[won.claim]
    names = pl.Series("state", STATE_NAMES, dtype=STATES)
    parts = np.rint((won.end - won.start) * weight[won.claim] * PARTS_PER_NS).astype(np.int64)
    return asked[won.claim].with_columns(
        pl.Series("window", group.astype(np.int64)),
        names.gather(won.state.astype(np.uint32)),
        pl.Series("start_ns", states.axis.take(won.start, group)),
        pl.Series("end_ns", states.axis.take(won.end, group)),
        pl.Series("lost", parts),
        pl.Series("lost_s", parts / PARTS_PER_S),
    )
