"""What every cause owes, asked of all that are installed, ours and a stranger's."""

from __future__ import annotations

from functools import cache

import pytest

from tests.contract import runs
from whyidle.causes import HEADS, Cause, all_causes
from whyidle.diagnose import diagnose
from whyidle.diagnosis import REASONS, Diagnosis, Finding
from whyidle.model import CLAIMS, Evidence
from whyidle.views import Views

CAUSES = all_causes()
BARE = {"device", "work"}
"""What even a recording of nothing but names and times of device work can offer."""
each_cause = pytest.mark.parametrize(
    "cause", [pytest.param(c, id=c.id) for c in CAUSES.values() if c.counts_seconds]
)
each_claiming_cause = pytest.mark.parametrize(
    "cause", [pytest.param(c, id=c.id) for c in CAUSES.values() if c.can_claim]
)
every_cause = pytest.mark.parametrize("cause", [pytest.param(c, id=c.id) for c in CAUSES.values()])


@cache
def example(cause: str) -> tuple[Evidence, float, Diagnosis]:
    evidence, planted_s = CAUSES[cause].example()
    return evidence, planted_s, diagnose(evidence)


@cache
def clean() -> Diagnosis:
    return diagnose(runs.clean())


def finding(cause: Cause) -> Finding:
    (found,) = (
        f for f in example(cause.id)[2].findings if f.cause == cause.id and f.ledger == "window"
    )
    return found


def own_crash(diagnosis: Diagnosis, cause: Cause) -> list[str]:
    return [crash.error for crash in diagnosis.crashed if crash.cause == cause.id]


def test_there_are_causes_to_ask() -> None:
    assert len(CAUSES) >= 1


def test_the_clean_run_is_busy_from_end_to_end_and_nobody_claims_it() -> None:
    (device,) = clean().devices
    # By hand: six steps of ten kernels of 1 ms, which begin where the first one ended.
    assert device.wall_s == pytest.approx(0.060, abs=1e-9)
    assert device.compute_s == pytest.approx(0.060, abs=1e-9)
    assert clean().ledger == []
    assert clean().crashed == []


@each_cause
def test_a_cause_finds_its_planted_seconds(cause: Cause) -> None:
    _, planted_s, found = example(cause.id)
    assert own_crash(found, cause) == []
    won_s = sum(row.lost_s for row in found.ledger if row.cause == cause.id)
    assert planted_s > 0
    assert won_s == pytest.approx(planted_s, rel=0.01)


@each_cause
def test_its_finding_says_what_where_how_sure_and_what_to_do(cause: Cause) -> None:
    _, planted_s, _ = example(cause.id)
    found = finding(cause)
    assert found.lost_s == pytest.approx(planted_s, rel=0.01)
    assert 0 < found.share <= 1
    assert found.title == cause.title
    assert found.reason == REASONS[cause.id.partition(".")[0]]
    assert found.status == cause.status
    assert found.where != []
    assert sum(place.lost_s for place in found.where) <= found.lost_s * (1 + 1e-6)
    assert found.remedies != []


@each_cause
def test_a_cause_is_silent_on_a_clean_run(cause: Cause) -> None:
    assert [row for row in clean().ledger if row.cause == cause.id] == []


@each_cause
def test_a_cause_is_not_judged_where_nothing_it_needs_was_recorded(cause: Cause) -> None:
    bare = diagnose(runs.bare(runs.clean()))
    assert own_crash(bare, cause) == []
    if set(cause.needs) - BARE:
        (told,) = (n for n in bare.not_judged if n.cause == cause.id)
        assert told.missing != []
        assert all(text.strip() for text in told.missing)
        assert told.record_with.strip() != ""
        assert cause.id not in {f.cause for f in bare.findings}
    else:
        assert cause.id not in {n.cause for n in bare.not_judged}


@every_cause
def test_its_page_has_every_head(cause: Cause) -> None:
    assert list(cause.heads) == list(HEADS)
    assert all(text.strip() for text in cause.heads.values())
    assert cause.summary.endswith(".")
    assert 0 < len(cause.title) <= 60
    assert cause.status in ("preview", "stable")
    assert (*cause.needs, *cause.observes, *cause.job_needs) != ()


@each_claiming_cause
def test_its_claims_have_the_schema_and_lie_in_the_window(cause: Cause) -> None:
    views = Views(example(cause.id)[0])
    claims = cause.claims(views)
    assert dict(claims.schema) == CLAIMS
    assert claims.height > 0
    assert claims["weight"].is_between(0, 1).all()
    assert (claims["start_ns"] < claims["end_ns"]).all()


@each_cause
def test_its_remedies_have_all_their_fields(cause: Cause) -> None:
    for remedy in finding(cause).remedies:
        for text in (remedy.what, remedy.how, remedy.why_safe, remedy.prove):
            assert text.strip() != ""
        assert isinstance(remedy.effect, dict)


@each_cause
def test_its_gain_is_ordered_and_above_its_loss_by_the_pace_of_the_rest_alone(cause: Cause) -> None:
    found = finding(cause)
    (device, *_) = example(cause.id)[2].devices
    gains = [remedy.gain for remedy in found.remedies if remedy.gain is not None]
    for gain in gains:
        assert 1 <= gain.speedup_low <= gain.speedup_mid <= gain.speedup_high
        steps_s = [gain.step_s_low, gain.step_s_mid, gain.step_s_high]
        assert steps_s in (sorted(steps_s), sorted(steps_s, reverse=True))
        assert device.step_s is not None
        steps = max(len(device.steps), 1)
        rest_s = max(device.step_s * steps - found.lost_s, 0.0)
        assert (device.step_s - min(steps_s)) * steps <= found.lost_s * 1.01 + 0.2 * rest_s
    assert all(isinstance(remedy.safe, bool) for remedy in found.remedies)


@each_cause
@pytest.mark.parametrize("by_ns", [-7_000_000_000, 1, 1_700_000_000_000_000_123])
def test_the_answer_is_the_same_on_another_clock(cause: Cause, by_ns: int) -> None:
    evidence, _, before = example(cause.id)
    after = diagnose(runs.shifted(evidence, by_ns))
    assert runs.seconds(after) == pytest.approx(runs.seconds(before), rel=1e-9, abs=1e-12)
    assert int(after.window.origin_ns) - int(before.window.origin_ns) == by_ns
    assert [d.compute_s for d in after.devices] == [d.compute_s for d in before.devices]


@each_cause
def test_the_answer_is_the_same_under_other_rank_numbers(cause: Cause) -> None:
    evidence, _, before = example(cause.id)
    ranks = runs.other_ranks(evidence)
    after = diagnose(runs.relabelled(evidence, ranks))
    expected = runs.seconds(before, ranks)
    assert runs.seconds(after) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@each_cause
def test_the_ledger_of_its_example_adds_up_and_survives_json(cause: Cause) -> None:
    found = example(cause.id)[2]
    for device in found.devices:
        won_s = sum(
            row.lost_s
            for row in found.ledger
            if (row.rank, row.device) == (device.rank, device.device)
        )
        assert won_s == pytest.approx(device.lost_s, rel=1e-6, abs=1e-12)
        assert device.useful_s + device.lost_s + device.unexplained_s == pytest.approx(
            device.wall_s, rel=1e-6
        )
    assert Diagnosis.from_json(found.to_json()) == found
