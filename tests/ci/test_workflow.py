"""The workflow and the test that the documentation shows are real: they parse, and they run."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.observe.jobs import needs_torch
from tests.trial.repositories import git
from whyidle.cli import build_parser
from whyidle.trial.proof import verify

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / "examples" / "ci" / "whyidle.yml"
PAGE = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")

TRAIN = """
import argparse, time, torch
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=30)
STEPS = parser.parse_args().steps


class Pictures(Dataset):
    def __len__(self):
        return STEPS * 8

    def __getitem__(self, index):
        time.sleep(SLEEP_S)
        return torch.ones(256)


torch.manual_seed(1)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.Linear(1024, 1024))
optimizer = torch.optim.SGD(model.parameters(), 1e-4)
for batch in DataLoader(Pictures(), batch_size=8):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
"""


def train(seconds: float) -> str:
    return TRAIN.replace("SLEEP_S", str(seconds))


def commands() -> dict[str, str]:
    """The shell text of every step that runs one, by the name of the step."""
    workflow: dict[Any, Any] = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
    return {
        step.get("name", step["run"]): step["run"]
        for job in workflow["jobs"].values()
        for step in job["steps"]
        if "run" in step
    }


def shell(text: str, place: Path) -> subprocess.CompletedProcess[str]:
    """Run one step as the runner does, with ``whyidle`` and ``python`` on the path."""
    programs = place.parent / "programs"
    programs.mkdir(exist_ok=True)
    for name, module in (("whyidle", "-m whyidle"), ("python", "")):
        path = programs / name
        path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {module} "$@"\n')
        path.chmod(0o755)
    told = {
        "PATH": os.pathsep.join([str(programs), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT / "src"),
        "GITHUB_STEP_SUMMARY": str(place.parent / "summary.md"),
    }
    return subprocess.run(
        ["bash", "-e", "-c", text],
        cwd=place,
        env={**os.environ, **told},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_every_whyidle_line_of_the_workflow_is_one_that_the_parser_takes() -> None:
    found = [text for text in commands().values() if text.startswith("whyidle ")]
    assert len(found) == 3
    for text in found:
        words = shlex.split(text.partition(" >> ")[0])[1:]
        assert callable(build_parser().parse_args(words).act)


def test_the_workflow_asks_for_pull_requests_and_sets_time_limits() -> None:
    workflow = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
    assert "pull_request" in workflow[True]  # YAML reads the key on as true
    assert all(job["timeout-minutes"] <= 30 for job in workflow["jobs"].values())
    assert "examples/ci/whyidle.yml" in PAGE


@needs_torch
@pytest.mark.parametrize(("sleep_s", "code"), [(0, 0), (0.01, 1)])
def test_observing_in_ci_fails_for_a_job_that_waits_for_its_data(
    sleep_s: float, code: int, tmp_path: Path
) -> None:
    place = tmp_path / "repo"
    place.mkdir()
    (place / "train.py").write_text(train(sleep_s))
    done = shell(commands()["Observe 30 steps"], place)
    assert done.returncode == code, done.stderr
    assert ("data_loading" in done.stderr and "40%" in done.stderr) == bool(code)
    assert shell(commands()["Show the report"], place).returncode == 0
    assert (
        "GPU" in (tmp_path / "summary.md").read_text()
        or "CPU" in (tmp_path / "summary.md").read_text()
    )
    again = shell("whyidle diagnose bundle --fail-on 'data_loading>40%' -o idle.html", place)
    assert again.returncode == code, again.stderr
    assert (place / "idle.html").is_file()


@needs_torch
def test_the_test_that_the_page_shows_passes_and_fails_as_it_should(tmp_path: Path) -> None:
    shown = [b for b in re.findall(r"^```python\n(.*?)^```", PAGE, re.S | re.M) if "def test" in b]
    place = tmp_path / "repo"
    place.mkdir()
    (place / "test_idle.py").write_text(shown[0])
    (place / "train.py").write_text(train(0.01))
    done = shell("python -m pytest -q -p no:cacheprovider test_idle.py", place)
    assert done.returncode == 1, done.stdout
    assert "assert 0." in done.stdout


@needs_torch
@pytest.mark.slow
def test_proving_in_ci_writes_a_proof_and_a_summary(tmp_path: Path) -> None:
    place = tmp_path / "repo"
    place.mkdir()
    git(place, "init", "--quiet", "-b", "main")
    for seconds in (0.01, 0):
        (place / "train.py").write_text(train(seconds))
        git(place, "add", "-A")
        git(place, "commit", "--quiet", "-m", f"sleep {seconds}")
    text = commands()["Prove it"].replace("whyidle prove", "whyidle prove --pairs 3")
    done = shell(text, place)
    assert done.returncode == 0, done.stderr
    assert "Proven: faster" in (tmp_path / "summary.md").read_text()
    proof = (place / "proof.json").read_text()
    assert verify(proof)
    script = [b for b in re.findall(r"^```python\n(.*?)^```", PAGE, re.S | re.M) if "sys.exit" in b]
    judged = subprocess.run([sys.executable, "-c", script[0]], cwd=place, check=False)
    assert judged.returncode == 0
    told = {**json.loads(proof), "findings": [{"cause": "prove.slower"}]}
    (place / "proof.json").write_text(json.dumps(told))
    judged = subprocess.run([sys.executable, "-c", script[0]], cwd=place, check=False)
    assert judged.returncode == 1
