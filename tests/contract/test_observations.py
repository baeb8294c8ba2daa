"""What a cause owes that tells of signs without seconds."""

from __future__ import annotations

from functools import cache

import pytest

from tests.contract import runs
from whyidle.causes import Cause, all_causes
from whyidle.diagnose import diagnose
from whyidle.diagnosis import REASONS, Diagnosis, Observation
from whyidle.model import Evidence

OBSERVERS = {name: cause for name, cause in all_causes().items() if cause.can_observe}
each_observer = pytest.mark.parametrize(
    "cause", [pytest.param(c, id=c.id) for c in OBSERVERS.values()]
)


@cache
def example(cause: str) -> tuple[Evidence, str, Diagnosis]:
    evidence, words = OBSERVERS[cause].observed_example()
    return evidence, words, diagnose(evidence)


def told(diagnosis: Diagnosis, cause: Cause) -> list[Observation]:
    assert [c.error for c in diagnosis.crashed if c.cause == cause.id] == []
    return [o for o in diagnosis.observations if o.cause == cause.id]


@each_observer
def test_it_tells_of_its_planted_sign(cause: Cause) -> None:
    _, words, found = example(cause.id)
    assert any(words in observation.what for observation in told(found, cause))


@each_observer
def test_its_observations_say_how_sure_and_what_to_do(cause: Cause) -> None:
    for seen in told(example(cause.id)[2], cause):
        assert (seen.title, seen.status) == (cause.title, cause.status)
        assert seen.reason == REASONS[cause.id.partition(".")[0]]
        assert seen.what.endswith(".")
        assert seen.remedies != []


@each_observer
def test_it_tells_nothing_of_a_clean_run(cause: Cause) -> None:
    assert told(diagnose(runs.clean()), cause) == []


@each_observer
def test_it_says_what_was_not_recorded(cause: Cause) -> None:
    found = diagnose(runs.bare(runs.clean()))
    assert told(found, cause) == []
    if not cause.can_claim:
        (line,) = (n for n in found.not_judged if n.cause == cause.id)
        assert line.missing != []
        assert line.record_with.strip() != ""


@each_observer
def test_what_it_tells_survives_json(cause: Cause) -> None:
    found = example(cause.id)[2]
    assert Diagnosis.from_json(found.to_json()) == found
