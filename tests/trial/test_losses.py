"""Two sides of losses with a planted difference, and what the guard says."""

from __future__ import annotations

import math
import random

import pytest

from whyidle.trial.losses import Curve, beside_seeds, compare


def curve(factor: float = 1.0, steps: int = 40) -> Curve:
    return {n: factor * 3.0 / (1 + n) for n in range(steps)}


def unseeded(count: int, seed: int, factor: float = 1.0, spread: float = 0.05) -> list[Curve]:
    dice = random.Random(seed)
    return [curve(factor * (1 + spread * dice.gauss(0, 1))) for _ in range(count)]


def test_the_same_seed_and_the_same_training_differ_by_nothing() -> None:
    found = compare([curve()] * 3, [curve()] * 3, 0.02)
    assert (found.verdict, found.largest) == ("within tolerance", 0.0)


def test_a_planted_difference_of_a_tenth_changes_training() -> None:
    found = compare([curve()] * 3, [curve(1.1)] * 3, 0.02)
    assert found.verdict == "changes training"
    assert found.largest == pytest.approx(0.1)


def test_a_difference_within_the_tolerance_is_let_through_with_its_size() -> None:
    found = compare([curve()] * 3, [curve(1.015)] * 3, 0.02)
    assert found.verdict == "within tolerance"
    assert found.largest == pytest.approx(0.015)


def test_a_difference_that_starts_in_the_last_tenth_is_seen() -> None:
    bent = {n: loss * (1.5 if n >= 36 else 1.0) for n, loss in curve().items()}
    found = compare([curve()] * 2, [bent] * 2, 0.02)
    assert found.verdict == "changes training"
    assert found.largest == pytest.approx(0.5)


def test_a_loss_that_becomes_nan_changes_training() -> None:
    broken = {**curve(), 39: math.nan}
    assert compare([curve()] * 2, [curve(), broken], 0.02).verdict == "changes training"
    assert compare([broken] * 2, [curve()] * 2, 0.02).verdict == "cannot tell"


def test_steps_at_which_no_run_has_a_loss_are_left_out() -> None:
    sparse = {n: loss if n % 2 else math.nan for n, loss in curve().items()}
    found = compare([sparse] * 2, [sparse] * 2, 0.02)
    assert (found.verdict, found.largest) == ("within tolerance", 0.0)


def test_runs_without_a_seed_are_compared_at_their_end() -> None:
    before, same = unseeded(6, seed=1), unseeded(6, seed=2)
    noisy = compare(before, same, 0.02)
    assert noisy.verdict == "cannot tell"
    assert "fix the seed" in noisy.why
    assert compare(before, same, 0.2).verdict == "within tolerance"
    assert compare(before, unseeded(6, seed=3, factor=2.0), 0.02).verdict == "changes training"
    assert compare(unseeded(6, 4, spread=0.02), unseeded(6, 5, spread=0.02), 0.04).verdict == (
        "within tolerance"
    )


def test_losses_that_only_some_runs_tell_leave_it_open() -> None:
    assert compare([{}, {}], [{}, {}], 0.02).why == "no run told its loss"
    assert compare([curve(), {}], [curve(), curve()], 0.02).verdict == "cannot tell"
    late = {n + 100: loss for n, loss in curve().items()}
    assert "in common" in compare([curve()] * 2, [late] * 2, 0.02).why


def test_a_loss_around_zero_is_not_all_noise() -> None:
    one = {0: 5.0, 1: 1e-9, 2: 0.0}
    two = {0: 5.0, 1: -1e-9, 2: 1e-8}
    assert compare([one] * 2, [two] * 2, 0.02).verdict == "within tolerance"
    nothing = dict.fromkeys(range(3), 0.0)
    assert compare([nothing] * 2, [nothing] * 2, 0.02).verdict == "within tolerance"
    assert compare([nothing] * 2, [one] * 2, 0.02).verdict == "changes training"


def test_a_change_that_moves_the_loss_as_another_seed_does_is_within_tolerance() -> None:
    """Other seeds move the loss by 10 %: a change may by 15 %, and not by 20 %."""
    seeds = [curve(1.0), curve(1.1), curve(1.0)]
    for factor, verdict in [(1.14, "within tolerance"), (1.2, "changes training")]:
        guard = compare([curve(1.0)] * 3, [curve(factor)] * 3, 0.02)
        assert guard.verdict == "changes training"
        assert beside_seeds(guard, seeds).verdict == verdict
    assert beside_seeds(guard, [curve(1.0)]) == guard
    same = compare([curve(1.0)] * 3, [curve(1.0)] * 3, 0.02)
    assert beside_seeds(same, seeds) == same
