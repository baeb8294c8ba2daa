"""The statistics of a proof against printed tables, arithmetic by hand, and simulated truth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from whyidle.trial.pairs import order
from whyidle.trial.ratio import mean_of, speed_ratio, t_quantile, t_within


@pytest.mark.parametrize(
    ("freedom", "printed"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (9, 2.262), (30, 2.042)],
)
def test_the_quantiles_are_those_of_the_printed_table(freedom: int, printed: float) -> None:
    assert t_quantile(freedom) == pytest.approx(printed, abs=6e-4)


def test_the_distribution_meets_its_closed_forms() -> None:
    assert t_within(1.0, 1) == pytest.approx(0.5)  # Cauchy: 2/pi * atan(1)
    assert t_within(1.7, 2) == pytest.approx(1.7 / math.sqrt(2 + 1.7**2))
    x = 2.3 / math.sqrt(3)
    assert t_within(2.3, 3) == pytest.approx(2 / math.pi * (x / (1 + x * x) + math.atan(x)))


def test_a_ratio_worked_out_by_hand_is_found() -> None:
    # log ratios: ln 2, ln 2, ln 2 + 0.3, ln 2 - 0.3; mean ln 2, variance 0.06, t(3) = 3.1824
    after = [1.0, 1.0, math.exp(-0.3), math.exp(0.3)]
    found = speed_ratio([2.0, 2.0, 2.0, 2.0], after)
    half = 3.182446 * math.sqrt(0.06 / 4)
    assert found is not None
    assert found.mid == pytest.approx(2.0)
    assert found.low == pytest.approx(2.0 * math.exp(-half), rel=1e-6)
    assert found.high == pytest.approx(2.0 * math.exp(half), rel=1e-6)


def test_turning_the_sides_round_turns_the_interval_round() -> None:
    before, after = [1.0, 1.2, 1.1], [0.7, 0.8, 0.9]
    forth, back = speed_ratio(before, after), speed_ratio(after, before)
    assert forth is not None and back is not None
    assert forth.low == pytest.approx(1 / back.high)
    assert forth.mid == pytest.approx(1 / back.mid)


def test_one_pair_says_nothing_of_its_certainty() -> None:
    assert speed_ratio([1.0], [2.0]) is None
    assert mean_of([]) is None


@pytest.mark.parametrize("pairs", [2, 5, 10])
def test_the_interval_holds_the_truth_nineteen_times_in_twenty(pairs: int) -> None:
    dice = np.random.default_rng(7 + pairs)
    tries, held = 3000, 0
    for _ in range(tries):
        shared = dice.normal(0, 0.1, pairs)  # what both runs of a pair meet alike
        before = np.exp(math.log(1.5) + shared + dice.normal(0, 0.05, pairs))
        after = np.exp(shared + dice.normal(0, 0.05, pairs))
        found = speed_ratio(before.tolist(), after.tolist())
        assert found is not None
        held += found.low <= 1.5 <= found.high
    # 3 standard errors of a share of 0.95 over 3,000 tries are 0.012
    assert held / tries == pytest.approx(0.95, abs=0.012)


def test_a_machine_that_slows_down_steadily_favours_neither_side() -> None:
    sides = order(6)
    assert sides[:8] == ["before", "after", "after", "before"] * 2
    took = {"before": list[float](), "after": list[float]()}
    for number, side in enumerate(sides):
        took[side].append(math.exp(0.02 * number))
    found = speed_ratio(took["before"], took["after"])
    assert found is not None
    assert found.mid == pytest.approx(1.0)
    assert found.low < 1 < found.high
