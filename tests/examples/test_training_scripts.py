"""The training scripts run, and their faults hurt where this machine can show it (needs torch)."""

from __future__ import annotations

import gzip
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "train"
SCRIPTS = sorted(p for p in FOLDER.glob("*.py") if p.stem not in {"record", "ranks"})
HURTS_ON_A_CPU = ("slow_loader", "worker_restart", "python_loop", "cpu_op", "anomaly_mode")
MEDIAN = re.compile(r"median step ([0-9.]+) ms")

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="torch is not installed here: pip install torch to run the training scripts",
)


def run_script(path: Path, *arguments: str) -> float:
    """Run a script on the CPU; its median step in milliseconds."""
    command = [sys.executable, str(path), "--device", "cpu", "--steps", "3", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = MEDIAN.search(done.stdout)
    assert found, done.stdout
    return float(found.group(1))


def test_every_script_says_what_is_wrong_and_is_in_the_table() -> None:
    told = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert len(SCRIPTS) == 14
    for path in SCRIPTS:
        first = path.read_text(encoding="utf-8").split('"""')[1]
        assert "fixed" in first, path.name
        assert f"`{path.name}`" in told


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.stem)
@pytest.mark.parametrize("which", ["faulty", "fixed"])
def test_a_script_runs(path: Path, which: str) -> None:
    arguments = ["--fixed"] if which == "fixed" else []
    assert run_script(path, *arguments) > 0


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize("name", HURTS_ON_A_CPU)
def test_the_fault_costs_time_on_a_cpu_too(name: str) -> None:
    path = FOLDER / f"{name}.py"
    assert run_script(path) > 1.5 * run_script(path, "--fixed")


@needs_torch
@pytest.mark.slow
def test_a_recording_has_marks_stacks_and_no_folder_of_this_machine(tmp_path: Path) -> None:
    out = tmp_path / "slow.pt.trace.json.gz"
    run_script(FOLDER / "slow_loader.py", "--trace", str(out))
    text = gzip.decompress(out.read_bytes()).decode()
    names = {e.get("name", "") for e in json.loads(text)["traceEvents"]}
    assert {"ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4"} <= names
    assert any(n.startswith("slow_loader.py(") and n.endswith("__getitem__") for n in names)
    assert str(Path.home()) + "/" not in text
    assert str(FOLDER.parents[1]) not in text
    assert sys.prefix not in text
