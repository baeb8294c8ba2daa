"""What a cause owes that claims seconds of sampled GPUs."""

from __future__ import annotations

from functools import cache

import pytest

from tests.contract import runs
from whyidle.causes import Cause, all_causes
from whyidle.diagnose import diagnose
from whyidle.diagnosis import REASONS, Diagnosis, Finding
from whyidle.model import JOB_CLAIMS, Evidence
from whyidle.sampled_stories import GIB, Sampling
from whyidle.views import Views

CAUSES = {name: cause for name, cause in all_causes().items() if cause.can_claim_job}
each_cause = pytest.mark.parametrize("cause", [pytest.param(c, id=c.id) for c in CAUSES.values()])


@cache
def example(cause: str) -> tuple[Evidence, float, Diagnosis]:
    evidence, planted_s = CAUSES[cause].job_example()
    return evidence, planted_s, diagnose(evidence)


def finding(cause: Cause) -> Finding:
    (found,) = (
        f for f in example(cause.id)[2].findings if f.cause == cause.id and f.ledger == "job"
    )
    return found


def healthy() -> Evidence:
    """An hour of one GPU at work, read every ten seconds with all there is to read."""
    story = Sampling(period_s=10)
    story.runs(
        3600, gpu_utilization=0.97, memory_used=60 * GIB, memory_total=80 * GIB, power=620.0,
        power_limit=700.0, sm_clock=1.755e9, sm_clock_max=1.98e9, sm_active=0.9, sm_occupancy=0.4,
        memory_utilization=0.5, pcie_gen=5, pcie_gen_max=5, pcie_width=16, pcie_width_max=16,
    )  # fmt: skip
    return story.evidence()


@each_cause
def test_it_finds_its_planted_seconds_of_sampled_time(cause: Cause) -> None:
    _, planted_s, found = example(cause.id)
    assert [c.error for c in found.crashed if c.cause == cause.id] == []
    assert found.job is not None
    won_s = sum(row.lost_s for row in found.job.ledger if row.cause == cause.id)
    assert planted_s > 0
    assert won_s == pytest.approx(planted_s, rel=0.01)


@each_cause
def test_its_finding_stands_in_the_job_ledger_and_says_what_to_do(cause: Cause) -> None:
    _, planted_s, diagnosis = example(cause.id)
    found = finding(cause)
    assert found.lost_s == pytest.approx(planted_s, rel=0.01)
    assert 0 < found.share <= 1
    assert (found.title, found.status) == (cause.title, cause.status)
    assert found.reason == REASONS[cause.id.partition(".")[0]]
    assert sum(place.lost_s for place in found.where) <= found.lost_s * (1 + 1e-6)
    assert all(row.what.strip() for row in found.evidence)
    for remedy in found.remedies:
        for text in (remedy.what, remedy.how, remedy.why_safe, remedy.prove):
            assert text.strip() != ""
    assert found.remedies != []
    assert Diagnosis.from_json(diagnosis.to_json()) == diagnosis


@each_cause
def test_its_claims_have_the_schema(cause: Cause) -> None:
    claims = cause.job_claims(Views(example(cause.id)[0]))
    assert dict(claims.schema) == JOB_CLAIMS
    assert claims["weight"].is_between(0, 1).all()


@each_cause
def test_it_is_silent_on_a_gpu_at_work(cause: Cause) -> None:
    found = diagnose(healthy())
    assert [c.error for c in found.crashed] == []
    assert [f.cause for f in found.findings if f.cause == cause.id] == []
    assert [o.what for o in found.observations if o.cause == cause.id] == []


@each_cause
def test_without_samples_it_claims_nothing_of_the_job(cause: Cause) -> None:
    found = diagnose(runs.bare(runs.clean()))
    assert [f.cause for f in found.findings if f.cause == cause.id] == []
    if not cause.counts_seconds and not cause.can_observe:
        (line,) = (n for n in found.not_judged if n.cause == cause.id)
        assert line.missing != []
        assert line.record_with.strip() != ""


@each_cause
@pytest.mark.parametrize("by_ns", [-7_000_000_000, 1, 60_000_000_123])
def test_sampled_seconds_are_the_same_on_another_clock(cause: Cause, by_ns: int) -> None:
    evidence, _, before = example(cause.id)
    after = diagnose(runs.shifted(evidence, by_ns))
    assert before.job is not None
    assert after.job == before.job
    assert int(after.window.origin_ns) - int(before.window.origin_ns) == by_ns
