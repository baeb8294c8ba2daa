"""run names each planted fault and its line, fix removes it, try and prove measure that it pays."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.examples.jobs import FOLDER, JOBS, Job, whyidle

pytestmark = pytest.mark.skipif(
    find_spec("torch") is None or find_spec("libcst") is None,
    reason="torch and libcst are needed: pip install torch==2.13.0 libcst",
)

each_job = pytest.mark.parametrize("job", JOBS, ids=[job.name for job in JOBS])


@dataclass(frozen=True)
class Observed:
    """A job that was run under observation: its folder with the script, and its diagnosis."""

    folder: Path
    diagnosis: Path

    @property
    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.diagnosis.read_text())
        return found


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Job], Observed]:
    """Each faulty job is observed once."""
    known: dict[str, Observed] = {}

    def once(job: Job) -> Observed:
        if job.name not in known:
            known[job.name] = _observe(job, tmp_path_factory.mktemp(job.name))
        return known[job.name]

    return once


def _observe(job: Job, folder: Path) -> Observed:
    shutil.copy(job.path, folder)
    script = folder / job.path.name
    out = ["-o", "bundle", "--report", "diagnosis.json"]
    done = whyidle(folder, "run", *out, "--", *job.command(script))
    assert done.returncode == 0, done.stderr
    assert "loss " in done.stdout
    return Observed(folder, folder / "diagnosis.json")


def patched(job: Job, seen: Observed) -> Path:
    """The script with the change that ``fix`` makes on the strength of the diagnosis."""
    copy = seen.folder / "patched" / job.path.name
    copy.parent.mkdir(exist_ok=True)
    shutil.copy(job.path, copy)
    words = ["--from", str(seen.diagnosis), "--only", job.change, "--unsafe", "--apply"]
    done = whyidle(seen.folder, "fix", str(copy), *words)
    assert done.returncode == 0, done.stderr
    return copy


def test_every_script_has_a_twin_and_a_row() -> None:
    scripts = {path.stem for path in FOLDER.glob("*.py")}
    assert scripts == {job.name for job in JOBS} | {f"{job.name}_fixed" for job in JOBS}


@each_job
def test_the_page_of_the_jobs_tells_cause_and_line(job: Job) -> None:
    page = (FOLDER / "README.md").read_text()
    (row,) = [line for line in page.splitlines() if f"| `{job.name}.py` |" in line]
    assert f"| `{job.cause}`" in row
    assert f"| {job.number} |" in row


@each_job
def test_run_names_the_planted_cause_first_and_its_line(
    job: Job, observed: Callable[[Job], Observed]
) -> None:
    report = observed(job).report
    assert report["crashed"] == []
    if job.observed:
        first = next(one for one in report["observations"] if one["cause"] == job.cause)
        assert not report["findings"] or report["findings"][0]["share"] < 0.1
    else:
        first = report["findings"][0]
    assert first["cause"] == job.cause
    place = first["where"][0]
    assert (Path(place["file"]).name, place["line"]) == (job.path.name, job.number)


@each_job
def test_fix_changes_the_planted_fault_and_nothing_else(
    job: Job, observed: Callable[[Job], Observed]
) -> None:
    copy = patched(job, observed(job))
    before, after = job.path.read_text().splitlines(), copy.read_text().splitlines()
    assert [line for line in before if job.line in line] != [
        line for line in after if job.line in line
    ] or job.change in ("checkpoint_every", "no_sync")
    compile(copy.read_text(), str(copy), "exec")
    kept = [line for line in before if line.strip() in {one.strip() for one in after}]
    assert len(before) - len(kept) <= 4


@pytest.mark.slow
@each_job
def test_try_finds_the_remedy(job: Job, tmp_path: Path) -> None:
    words = ["--remedies", job.remedy, "--pairs", "4", "-o", "tried.json"]
    done = whyidle(tmp_path, "try", *words, "--", *job.command(job.path), seconds=900)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "tried.json").read_text())["remedies"]
    verdicts = [row["verdict"] for row in rows if job.remedy in row["values"]]
    assert "pays" in verdicts, done.stdout


@pytest.mark.slow
@each_job
def test_prove_confirms_the_change_of_fix_and_finds_it_as_fast_as_the_twin(
    job: Job, observed: Callable[[Job], Observed], tmp_path: Path
) -> None:
    copy = patched(job, observed(job))
    faster = _proof(tmp_path, job, job.path, copy)
    assert faster["proven"], faster["reasons"]
    level = _proof(tmp_path, job, job.twin, copy)
    assert level["ratio"]["low"] < 1.25
    assert level["ratio"]["high"] > 0.8


def _proof(folder: Path, job: Job, before: Path, after: Path) -> dict[str, Any]:
    commands = ["--", *job.command(before), "--", *job.command(after)]
    words = ["--pairs", "4", "-o", "proof.json", *(["--seeds", "3"] if job.redraws else [])]
    done = whyidle(folder, "prove", *words, *commands, seconds=900)
    assert done.returncode in (0, 1), done.stderr
    found: dict[str, Any] = json.loads((folder / "proof.json").read_text())
    return found


@pytest.mark.slow
@each_job
def test_a_twin_runs(job: Job, tmp_path: Path) -> None:
    done = subprocess.run(
        job.command(job.twin),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "loss " in done.stdout
