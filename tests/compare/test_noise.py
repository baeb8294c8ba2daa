"""The tests of difference, against counting every way to deal steps out by hand."""

from __future__ import annotations

from itertools import combinations

import pytest

from whyidle import noise

A, B = [10.0, 11.0, 12.5, 10.5], [14.0, 13.0, 12.5, 19.0]


def ranks(values: list[float]) -> list[float]:
    return [
        sum(other < v for other in values) + (sum(other == v for other in values) + 1) / 2
        for v in values
    ]


def counted_p(before: list[float], after: list[float]) -> float:
    all_ranks = ranks([*before, *after])
    mean = len(before) * sum(all_ranks) / len(all_ranks)
    seen = abs(sum(all_ranks[: len(before)]) - mean)
    ways = list(combinations(all_ranks, len(before)))
    return sum(abs(sum(way) - mean) >= seen - 1e-9 for way in ways) / len(ways)


@pytest.mark.parametrize(
    ("before", "after"),
    [(A, B), ([1.0, 2.0, 3.0], [2.0, 2.0, 2.0, 5.0]), ([1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0])],
)
def test_the_rank_test_counts_every_way_to_deal_the_steps_out(
    before: list[float], after: list[float]
) -> None:
    assert noise.rank_p(before, after) == pytest.approx(counted_p(before, after))


def test_many_steps_give_the_p_that_counting_gives() -> None:
    before = [float((7 * i) % 23) for i in range(17)]
    after = [float((5 * i) % 19) + 4 for i in range(14)]
    assert len(before) + len(after) > noise._EXACT
    exact = noise._exact_p(
        tuple(sorted(noise._doubled_ranks([*before, *after]))),
        len(before),
        sum(noise._doubled_ranks([*before, *after])[: len(before)]),
    )
    assert noise.rank_p(before, after) == pytest.approx(exact, abs=0.01)


@pytest.mark.parametrize(
    ("before", "after", "able"),
    [(4, 4, True), (3, 5, True), (3, 4, True), (3, 3, False), (2, 40, False), (0, 9, False)],
)
def test_so_few_steps_that_no_difference_could_show_are_said_to_be_too_few(
    before: int, after: int, able: bool
) -> None:
    assert noise.enough(before, after) is able


def test_a_table_is_judged_by_the_largest_of_its_lines() -> None:
    alone = [([0.0, 0.1, 0.2, 0.1], [9.0, 9.1, 9.2, 9.1])]
    still = [([float(i % (k + 2)) for i in range(4)], [1.0, 0.5, 0.2, 1.5]) for k in range(30)]
    assert noise.verdicts(alone) == ["more than noise"]
    found = noise.verdicts([*alone, *still])
    assert found[0] == "more than noise"
    assert set(found[1:]) == {"within noise"}


def test_lines_that_do_not_vary_at_all_are_told_apart_by_their_value() -> None:
    same, other = ([5.0] * 4, [5.0] * 4), ([5.0] * 4, [6.0] * 4)
    assert noise.verdicts([same, other]) == ["within noise", "more than noise"]


def test_the_interval_of_a_shift_holds_the_shift() -> None:
    before = [10.0, 10.4, 9.9, 10.1, 10.2, 9.8]
    found = noise.difference(before, [value + 3 for value in before])
    assert found is not None and found.low < 3 < found.high and found.low > 2
    doubled = noise.ratio(before, [value * 2 for value in before])
    assert doubled is not None and doubled.low < 2 < doubled.high


def test_the_interval_leaves_out_zero_just_when_the_rank_test_says_so() -> None:
    for shift in (0.0, 0.2, 0.5, 1.0, 2.0, 4.0):
        before = [1.0, 2.1, 3.3, 4.2, 5.9]
        after = [value + shift for value in (1.3, 2.6, 3.1, 4.9, 5.2)]
        found = noise.difference(before, after)
        assert found is not None
        assert (found.low > 0 or found.high < 0) is (
            noise.verdict(before, after) == "more than noise"
        )


def test_a_ratio_of_figures_that_may_be_zero_has_no_interval() -> None:
    assert noise.ratio([0.0, 1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0]) is None
