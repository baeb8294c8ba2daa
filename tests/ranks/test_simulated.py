"""The delay of the job that a cause is said to cost is what the simulator takes without it."""

from __future__ import annotations

from pathlib import Path

import pytest

import whyidle
from examples.simulate.scenarios import all_scenarios


@pytest.mark.parametrize("name", ["straggler", "garbage", "slow_network"])
def test_the_delay_of_the_job_is_that_of_the_run_without_the_cause(
    name: str, tmp_path: Path
) -> None:
    scenario = all_scenarios()[name]
    paths = []
    for one in scenario.simulate():
        paths.append(tmp_path / f"rank{one.recorder.rank}.pt.trace.json.gz")
        one.recorder.write(paths[-1])
    found = whyidle.diagnose(whyidle.read(*paths))
    ((cause, saved_s),) = scenario.true_seconds().items()
    told = next(f for f in found.findings if f.cause == cause)
    # the truth is summed over ranks, all of which end together
    assert told.job_cost_s == pytest.approx(saved_s / len(paths), rel=0.10)
