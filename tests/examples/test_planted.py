"""A diagnosis of a simulated run names the planted cause first, with about its true seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

import whyidle
from examples.simulate.scenarios import Scenario, all_scenarios
from whyidle.diagnosis import Diagnosis, matches_cause

SCENARIOS = all_scenarios()
FUSIBLE = "model_design.memory_bound_ops"
PLANTED = [name for name, scenario in SCENARIOS.items() if scenario.planted]
HEALTHY = [n for n, s in SCENARIOS.items() if not s.planted and not s.unrecorded]


def diagnosed(scenario: Scenario, folder: Path) -> Diagnosis:
    """Write the scenario's files and diagnose them as a user would."""
    paths = []
    for one in scenario.simulate():
        paths.append(folder / f"rank{one.recorder.rank}.pt.trace.json.gz")
        one.recorder.write(paths[-1])
    return whyidle.diagnose(whyidle.read(*paths))


def lost_to(diagnosis: Diagnosis, cause: str) -> float:
    """Seconds of the ledger that went to a cause (or, ending in a dot, to a folder)."""
    rows = diagnosis.ledger
    return sum(r.lost_s for r in rows if matches_cause(r.cause, cause.rstrip(".")))


@pytest.mark.parametrize("name", PLANTED)
def test_the_planted_cause_is_named_first_with_about_its_seconds(name: str, tmp_path: Path) -> None:
    scenario = SCENARIOS[name]
    diagnosis = diagnosed(scenario, tmp_path)
    planted = scenario.planted[0]
    assert not diagnosis.crashed
    found = [finding.cause for finding in diagnosis.findings]
    assert found, "no finding at all"
    assert matches_cause(found[0], planted.cause.rstrip(".")), found
    truth = scenario.true_seconds()[planted.cause]
    ratio = lost_to(diagnosis, planted.cause) / truth
    low, high = planted.band
    assert low <= ratio <= high, f"reported / true = {ratio:.2f} of {truth:.4f} s"


@pytest.mark.parametrize("name", [n for n in PLANTED if len(SCENARIOS[n].planted) > 1])
def test_smaller_planted_causes_are_found_as_well(name: str, tmp_path: Path) -> None:
    scenario = SCENARIOS[name]
    diagnosis = diagnosed(scenario, tmp_path)
    truth = scenario.true_seconds()
    for planted in scenario.planted[1:]:
        ratio = lost_to(diagnosis, planted.cause) / truth[planted.cause]
        low, high = planted.band
        assert low <= ratio <= high, f"{planted.cause}: reported / true = {ratio:.2f}"


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_is_not_accused(name: str, tmp_path: Path) -> None:
    diagnosis = diagnosed(SCENARIOS[name], tmp_path)
    assert not diagnosis.crashed
    # kernels that could be fused are there in any eager run; everything else must be small
    accused = {
        f.cause: f.share for f in diagnosis.findings if f.cause != FUSIBLE and f.share > 0.02
    }
    assert not accused
    assert diagnosis.share_lost() < 0.1


def test_kernels_that_were_not_recorded_are_not_called_lost(tmp_path: Path) -> None:
    scenario = SCENARIOS["graph_unrecorded"]
    diagnosis = diagnosed(scenario, tmp_path)
    assert diagnosis.unrecorded_s > 0.5 * diagnosis.wall_s
    assert diagnosis.lost_s < 0.2 * diagnosis.wall_s


def test_of_four_ranks_the_late_one_is_named(tmp_path: Path) -> None:
    diagnosis = diagnosed(SCENARIOS["straggler"], tmp_path)
    worst = max(diagnosis.findings[0].where, key=lambda where: where.lost_s)
    assert worst.rank == SCENARIOS["straggler"].plan.slow_rank
