"""Who wins an instant that several causes claim, against a count tick by tick."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.random_runs import STEP_NS, runs
from whyidle.ledger import settle
from whyidle.model import CLAIMS, Evidence, frame
from whyidle.views import Views

LEVELS = ("seen", "deduced", "suspected")
CAUSES = ("data_loading.one", "memory.two", "small_work.three")
Claim = dict[str, Any]


@st.composite
def claims(draw: st.DrawFn) -> list[Claim]:
    """Claims of three causes, here and there, some of them outside every window."""
    found = []
    for _ in range(draw(st.integers(1, 8))):
        start = draw(st.integers(-20, 420))
        found.append(
            {
                "cause": draw(st.sampled_from(CAUSES)),
                "device": draw(st.integers(0, 1)),
                "start": start,
                "end": start + draw(st.integers(0, 120)),
                "weight": draw(st.sampled_from([0.0, 0.25, 0.5, 1.0])),
                "level": draw(st.sampled_from(LEVELS)),
            }
        )
    return found


def as_frames(told: list[Claim], rank: int | None) -> dict[str, Any]:
    rows = [
        {
            "rank": rank, "device": c["device"], "start_ns": c["start"] * STEP_NS,
            "end_ns": c["end"] * STEP_NS, "weight": c["weight"], "level": c["level"],
        }
        for c in told
    ]  # fmt: skip
    return {
        cause: frame(CLAIMS, [r for r, c in zip(rows, told, strict=True) if c["cause"] == cause])
        for cause in CAUSES
        if any(c["cause"] == cause for c in told)
    }


def best_at(tick: int, device: int, told: list[Claim], low: int, high: int) -> Claim | None:
    """The claim that the rule of the design picks: weight, level, shorter, cause id."""
    here = [
        {**c, "length": min(c["end"], high) - max(c["start"], low)}
        for c in told
        if c["device"] == device and c["start"] <= tick < c["end"] and c["weight"] > 0
    ]
    order = [(-c["weight"], LEVELS.index(c["level"]), c["length"], c["cause"]) for c in here]
    return min(zip(order, here, strict=True), key=lambda pair: pair[0])[1] if here else None


@given(runs(), claims())
def test_each_instant_goes_to_the_best_claim(evidence: Evidence, told: list[Claim]) -> None:
    views = Views(evidence)
    rank = views.windows["rank"][0]
    ledger = settle(as_frames(told, rank), views.states)
    expected = dict.fromkeys(CAUSES, 0.0)
    for row in views.windows.iter_rows(named=True):
        if row["rank"] != rank:
            continue
        low, high = row["start_ns"] // STEP_NS, row["end_ns"] // STEP_NS
        for tick in range(low, high):
            best = best_at(tick, row["device"], told, low, high)
            if best:
                expected[best["cause"]] += best["weight"] * STEP_NS / 1e9
    won = dict(ledger.won.group_by("cause").agg(pl.col("lost_s").sum()).iter_rows())
    for cause in CAUSES:
        assert won.get(cause, 0.0) == pytest.approx(expected[cause], rel=1e-9, abs=1e-15)


@given(runs(), claims())
def test_no_more_is_lost_than_there_is_and_losers_keep_what_they_wanted(
    evidence: Evidence, told: list[Claim]
) -> None:
    views = Views(evidence)
    rank = views.windows["rank"][0]
    ledger = settle(as_frames(told, rank), views.states)
    states_s = views.states.seconds()
    sums = ledger.won.group_by("window", "state").agg(pl.col("lost_s").sum())
    names = ["compute", "communication", "copy", "empty"]
    for window, state, lost_s in sums.iter_rows():
        assert 0 <= lost_s <= states_s[window][names.index(state)] + 1e-12
    for cause in CAUSES:
        own_s = ledger.won.filter(ledger.won["cause"] == cause)["lost_s"].sum()
        whole_s = own_s + ledger.contested_s(cause)
        assert whole_s == pytest.approx(ledger.wanted_s.get(cause, 0.0), rel=1e-9, abs=1e-15)
