"""Two runs of one program: how often does a table of the report show a change all the same?"""

from __future__ import annotations

import pytest

from tests.compare.simulated import ORDINARY, run, skewed
from whyidle.compare import compare
from whyidle.comparison import Comparison
from whyidle.noise import ALPHA

PAIRS = 200


def same_program(pair: int, before: int, after: int) -> Comparison:
    return compare(run(2 * pair, before), run(2 * pair + 1, after), ("before", "after"))


@pytest.mark.parametrize(("before", "after"), [(4, 4), (5, 9), (10, 10), (3, 30)])
def test_no_table_shows_a_change_more_often_than_stated(before: int, after: int) -> None:
    pairs = [same_program(pair, before, after) for pair in range(PAIRS)]
    alarms = {
        "step": sum(c.step is not None and c.step.verdict == "more than noise" for c in pairs),
        "causes": sum(any(x.verdict == "more than noise" for x in c.causes) for c in pairs),
        "states": sum(any(x.verdict == "more than noise" for x in c.states) for c in pairs),
        "kernels": sum(
            any(x.verdict == "more than noise" for x in c.kernels.rows) for c in pairs if c.kernels
        ),
    }
    assert {what: n for what, n in alarms.items() if n / PAIRS > ALPHA} == {}


@pytest.mark.parametrize("steps", [4, 8, 20])
def test_a_planted_change_of_three_times_its_noise_is_found(steps: int) -> None:
    cause = "data_loading.loader_workers_too_few"
    slower = {**ORDINARY, cause: skewed(0.060, 0.1)}
    steady = {**ORDINARY, cause: skewed(0.020, 0.1)}
    found = 0
    for pair in range(20):
        before, after = run(pair, steps, steady), run(100 + pair, steps, slower)
        compared = compare(before, after, ("a", "b"))
        (line,) = [x for x in compared.causes if x.what == cause]
        found += line.verdict == "more than noise" and line.how == "grew"
    assert found >= 18


def test_a_run_against_itself_shows_no_difference_at_all() -> None:
    compared = compare(run(1, 6), run(1, 6), ("a", "a"))
    assert compared.same
    assert all(line.change == 0 and line.verdict == "within noise" for line in compared.causes)
    assert compared.step is not None and compared.step.ratio == 1


def test_three_steps_on_both_sides_are_too_few_to_tell_anything() -> None:
    compared = compare(run(1, 2), run(2, 2), ("a", "b"))
    assert compared.step is not None and compared.step.verdict == "cannot tell"
    assert {line.verdict for line in compared.causes} <= {"cannot tell", "within noise"}
    assert any("too few" in note for note in compared.notes)
