"""The traces in the repository are small, say what they are, and tell nothing of a machine."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from examples.simulate.scenarios import all_scenarios
from examples.simulate.training import run

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "traces"
TRACES = sorted(FOLDER.rglob("*.pt.trace.json.gz"))
LARGEST = 300_000
OF_A_MACHINE = re.compile(r'[ "](/(?!/)[A-Za-z0-9_.-]+){2,}|"host_name"|[A-Z]:\\\\')
SIMULATED = {
    "slow_loader_gpu_simulated.pt.trace.json.gz": False,
    "slow_loader_fixed_gpu_simulated.pt.trace.json.gz": True,
}


def document(path: Path) -> dict[str, Any]:
    return json.loads(gzip.decompress(path.read_bytes()))


def short(path: Path) -> str:
    return str(path.relative_to(FOLDER))


def test_there_are_simulated_and_recorded_traces_and_a_job_of_two_ranks() -> None:
    names = {short(path) for path in TRACES}
    assert set(SIMULATED) <= names
    assert "slow_loader_cpu.pt.trace.json.gz" in names
    assert "accumulate_without_no_sync/rank1_cpu.pt.trace.json.gz" in names


@pytest.mark.parametrize("path", TRACES, ids=short)
def test_a_trace_is_small_and_names_no_folder_or_host(path: Path) -> None:
    assert path.stat().st_size < LARGEST
    text = gzip.decompress(path.read_bytes()).decode()
    assert not OF_A_MACHINE.search(text), OF_A_MACHINE.search(text)


@pytest.mark.parametrize("path", TRACES, ids=short)
def test_a_trace_says_whether_it_is_simulated(path: Path) -> None:
    assert document(path).get("whyidle_simulated", False) is ("simulated" in path.name)


@pytest.mark.parametrize("name", SIMULATED)
def test_a_simulated_trace_is_what_the_simulator_makes_today(name: str) -> None:
    scenario = all_scenarios()["slow_loader"]
    fixed = SIMULATED[name]
    label = "slow_loader_fixed" if fixed else "slow_loader"
    (one,) = run(scenario.fixed() if fixed else scenario.plan, f"simulated/{label}")
    made = json.loads(json.dumps(one.recorder.document()))
    assert made == document(FOLDER / name)


def test_the_readme_tells_of_every_trace() -> None:
    told = (FOLDER / "README.md").read_text(encoding="utf-8")
    for path in TRACES:
        top = path.relative_to(FOLDER).parts[0]
        assert f"`{top}`" in told or f"`{top}/`" in told, top
