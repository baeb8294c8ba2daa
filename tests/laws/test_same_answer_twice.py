"""The same evidence gives the same bytes, whatever order threads add things up in."""

from __future__ import annotations

from pathlib import Path

import pytest

import whyidle
from whyidle.causes import all_causes
from whyidle.diagnose import diagnose

TRACES = Path(__file__).parents[2] / "examples" / "traces"


@pytest.mark.parametrize(
    "name", ["slow_loader_gpu_simulated.pt.trace.json.gz", "slow_loader_cpu.pt.trace.json.gz"]
)
def test_a_trace_diagnosed_again_gives_the_same_bytes(name: str) -> None:
    first, *others = (whyidle.diagnose(whyidle.read(TRACES / name)).to_json() for _ in range(5))
    assert all(other == first for other in others)


@pytest.mark.parametrize("kind", ["example", "observed_example", "job_example"])
def test_every_example_diagnosed_again_gives_the_same_bytes(kind: str) -> None:
    asked = {name: cause.module for name, cause in all_causes().items()}
    evidence = {n: getattr(m, kind)()[0] for n, m in asked.items() if hasattr(m, kind)}
    assert evidence != {}
    first = {name: diagnose(found).to_json() for name, found in evidence.items()}
    for _ in range(2):
        again = {name: diagnose(found).to_json() for name, found in evidence.items()}
        assert [name for name in first if again[name] != first[name]] == []


def test_seconds_that_all_have_a_cause_leave_exactly_nothing_unexplained() -> None:
    read = whyidle.read(TRACES / "slow_loader_gpu_simulated.pt.trace.json.gz")
    device = whyidle.diagnose(read).devices[0]
    idle = device.communication_s + device.copy_s + device.empty_s
    assert device.unexplained_s == pytest.approx(0, abs=1e-12) or device.unexplained_s > 1e-9
    assert idle > 0
