"""The same evidence gives the same bytes, whatever order threads add things up in."""

from __future__ import annotations

from pathlib import Path

import pytest

import whyidle

TRACES = Path(__file__).parents[2] / "examples" / "traces"


@pytest.mark.parametrize(
    "name", ["slow_loader_gpu_simulated.pt.trace.json.gz", "slow_loader_cpu.pt.trace.json.gz"]
)
def test_a_trace_diagnosed_again_gives_the_same_bytes(name: str) -> None:
    first, *others = (whyidle.diagnose(whyidle.read(TRACES / name)).to_json() for _ in range(5))
    assert all(other == first for other in others)


def test_seconds_that_all_have_a_cause_leave_exactly_nothing_unexplained() -> None:
    read = whyidle.read(TRACES / "slow_loader_gpu_simulated.pt.trace.json.gz")
    device = whyidle.diagnose(read).devices[0]
    idle = device.communication_s + device.copy_s + device.empty_s
    assert device.unexplained_s == pytest.approx(0, abs=1e-12) or device.unexplained_s > 1e-9
    assert idle > 0
