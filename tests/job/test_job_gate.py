"""``--fail-on`` over a job ledger, and several batches of samples as one."""

from __future__ import annotations

import pytest

from whyidle.causes import all_causes
from whyidle.diagnose import diagnose
from whyidle.diagnosis import Diagnosis
from whyidle.errors import UsageError
from whyidle.gate import check_judged, exceeded, parse_limits
from whyidle.job import jobs_together, judged_job
from whyidle.model import Evidence
from whyidle.sampled_stories import GIB, Sampling
from whyidle.views import Views

CAUSES = list(all_causes())
HELD = {"memory_used": 20 * GIB, "memory_total": 80 * GIB}


def held_for(hours: float, *, host: str = "node1", unknown_hours: float = 0) -> Evidence:
    """An hour of work, then hours at 0 % with memory held, then hours without a reading."""
    story = Sampling(period_s=60, host=host).runs(3600, gpu_utilization=1.0, **HELD)
    story.runs(hours * 3600, gpu_utilization=0.0, **HELD)
    if unknown_hours:
        story.skips(unknown_hours * 3600).runs(60, gpu_utilization=1.0, **HELD)
    return story.evidence()


def above(diagnosis: Diagnosis, limit: str) -> list[str]:
    limits = parse_limits([limit], CAUSES)
    check_judged(diagnosis, limits, CAUSES)
    return exceeded(diagnosis, limits)


def test_a_limit_holds_for_samples_alone() -> None:
    found = diagnose(held_for(3))  # 3 of 4 hours are lost
    assert above(found, "lost>74%") == [
        "lost is 75.0% of the recorded time, over the limit of 74%."
    ]
    assert above(found, "scheduling>74%") != []
    assert above(found, "scheduling.idle_reservation>76%") == []


def test_time_without_readings_is_not_part_of_the_base() -> None:
    # 3 hours lost of 4 hours and a minute that are known; 20 hours more are not.
    found = diagnose(held_for(3, unknown_hours=20))
    assert found.job is not None
    assert found.job.unknown_s > 19 * 3600
    assert found.share_lost() == pytest.approx(3 / (4 + 1 / 60))


def test_a_limit_on_what_samples_cannot_show_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot show small_work.launch_bound_small_kernels"):
        above(diagnose(held_for(3)), "small_work.launch_bound_small_kernels>1%")


def test_a_limit_over_nothing_known_is_refused_and_does_not_hold() -> None:
    story = Sampling(period_s=10).runs(600, gpu_utilization=None)
    with pytest.raises(UsageError, match="no known seconds"):
        above(diagnose(story.evidence()), "lost>30%")


def test_batches_of_samples_add_up_to_one_job() -> None:
    one, two = (judged_job(Views(held_for(h, host=f"node{h}"))) for h in (3, 5))
    together = jobs_together([one, two])
    assert together is not None
    assert together.ledger is not None
    assert together.ledger.wall_s == (1 + 3 + 1 + 5) * 3600.0
    assert together.ledger.lost_s == 8 * 3600.0
    (finding,) = together.findings
    assert (finding.lost_s, finding.share) == (8 * 3600.0, 0.8)
    assert [(w.host, w.lost_s) for w in finding.where] == [
        ("node5", 5 * 3600.0),
        ("node3", 3 * 3600.0),
    ]


def test_a_diagnosis_of_samples_survives_json() -> None:
    found = diagnose(held_for(3))
    assert Diagnosis.from_json(found.to_json()) == found
