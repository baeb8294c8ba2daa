"""One command in two trees: revisions, the working tree, and a patch; the user's files stay."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from tests.trial.jobs import options
from tests.trial.repositories import folder, git, pace, repository, state
from whyidle.errors import UsageError, WhyidleError
from whyidle.trial import command, trees

ROOT = Path(__file__).parents[2]
TRAIN = (sys.executable, "train.py")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders land, to see what is left there."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def prove(*words: str, job: tuple[str, ...] = TRAIN) -> int:
    return command.run(options("--pairs", "2", "--format", "json", *words, "--", *job))


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def patch_of(seconds: float, other: float, path: str = "pace.py") -> str:
    return f"--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-{pace(seconds)}+{pace(other)}"


def test_two_revisions_are_compared_and_nothing_of_the_user_is_touched(
    tmp_path: Path,
    temporary: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = repository(tmp_path / "repo", 0.3, 0.1)
    (place / "pace.py").write_text(pace(7))
    (place / "notes.txt").write_text("mine")
    git(place, "add", "pace.py")
    hook = place / ".git" / "hooks" / "post-checkout"
    hook.write_text("#!/bin/sh\ntouch hook-ran\n")
    hook.chmod(0o755)
    before = state(place)
    monkeypatch.chdir(place)
    assert prove("--between", "HEAD~1", "main") == 0
    found = told(capsys)
    assert found["ratio"]["mid"] == pytest.approx(3)
    assert found["before"]["tree"].startswith("HEAD~1 (")
    assert found["before"]["tree"].endswith(" pace 0)")
    assert found["after"]["tree"].endswith(" pace 1)")
    assert state(place) == before
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("name", [".", "WORKTREE"])
def test_the_working_tree_is_compared_as_it_is(
    name: str,
    tmp_path: Path,
    temporary: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = repository(tmp_path / "repo", 0.2)
    (place / "new.py").write_text("STEP = 0.05\n")
    (place / "pace.py").write_text("from new import STEP as STEP_S\n")
    (place / ".gitignore").unlink()
    monkeypatch.chdir(place)
    before = state(place)
    assert prove("--between", "HEAD", name, "--link", "data") == 0
    found = told(capsys)
    assert found["ratio"]["mid"] == pytest.approx(4)
    assert found["after"]["tree"].startswith("the working tree (")
    assert found["after"]["tree"].endswith(", changed)")
    assert state(place) == before


def test_a_link_shares_what_git_ignores(
    tmp_path: Path,
    temporary: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = repository(tmp_path / "repo", 0.2, 0.1)
    monkeypatch.chdir(place)
    job = (*TRAIN, "data/set.txt")
    assert prove("--between", "HEAD~1", "HEAD", job=job) == 1
    shown = capsys.readouterr()
    assert json.loads(shown.out)["verdict"] == "failed"
    assert "lacks what git ignores (data)" in shown.err
    assert "--link data" in shown.err
    assert prove("--between", "HEAD~1", "HEAD", "--link", "data", job=job) == 0
    assert (place / "data" / "set.txt").read_text() == "42"


def test_the_folder_below_the_top_and_its_tracked_part_of_data_are_kept(
    tmp_path: Path,
    temporary: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = repository(tmp_path / "repo", 0.2)
    inner = folder(place / "inner", 0.2)
    (inner / "data").mkdir()
    (inner / "data" / "README").write_text("tracked")
    git(place, "add", "-f", "inner")
    git(place, "commit", "--quiet", "-m", "inner")
    (inner / "data" / "README").write_text("changed")
    (inner / "data" / "set.txt").write_text("43")
    (inner / "pace.py").write_text(pace(0.1))
    monkeypatch.chdir(inner)
    both = "import pathlib; print(*map(pathlib.Path.read_text, pathlib.Path('data').iterdir())); "
    job = (sys.executable, "-c", both + "raise SystemExit(3)")
    assert prove("--between", "HEAD", ".", "--link", "data", job=job) == 1
    shown = capsys.readouterr().err
    assert "tracked" in shown
    assert "43" in shown
    assert prove("--between", "HEAD", ".", "--link", "data") == 0


def test_a_patch_is_proven_without_being_applied(
    tmp_path: Path,
    temporary: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = repository(tmp_path / "repo", 9.0)
    (place / "pace.py").write_text(pace(0.2))
    (place / "fix.patch").write_text(patch_of(0.2, 0.1))
    monkeypatch.chdir(place)
    before = state(place)
    assert prove("--patch", "fix.patch") == 0
    found = told(capsys)
    assert found["ratio"]["mid"] == pytest.approx(2)
    assert found["after"]["tree"] == f"{found['before']['tree']} with fix.patch"
    assert state(place) == before
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("made_in", ["inner", "top"])
def test_the_paths_of_a_patch_start_here_or_at_the_top(
    made_in: str,
    tmp_path: Path,
    temporary: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = repository(tmp_path / "repo", 5.0)
    inner = folder(place / "inner", 0.2)
    path = "pace.py" if made_in == "inner" else "inner/pace.py"
    (tmp_path / "fix.patch").write_text(patch_of(0.2, 0.1, path))
    monkeypatch.chdir(inner)
    assert prove("--patch", str(tmp_path / "fix.patch")) == 0


def test_a_patch_is_proven_outside_git_too(
    tmp_path: Path,
    temporary: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = folder(tmp_path / "plain", 0.2)
    (place / "data").mkdir()
    (place / "data" / "set.txt").write_text("44")
    (tmp_path / "fix.patch").write_text(patch_of(0.2, 0.1))
    monkeypatch.chdir(place)
    monkeypatch.setattr(trees, "MOST_BYTES", 10_000)
    job = (*TRAIN, "data/set.txt")
    assert prove("--patch", str(tmp_path / "fix.patch"), job=job) == 0
    assert told(capsys)["before"]["tree"] == "the folder plain"
    assert sorted(p.name for p in place.iterdir()) == ["data", "pace.py", "train.py"]
    (place / "data" / "large.bin").write_bytes(bytes(20_000))
    with pytest.raises(UsageError, match="too much to copy.*\n.*--link data"):
        prove("--patch", str(tmp_path / "fix.patch"), job=job)
    assert prove("--patch", str(tmp_path / "fix.patch"), "--link", "data", job=job) == 0
    assert list(temporary.iterdir()) == []


def test_a_run_that_uses_the_users_own_files_proves_nothing(
    tmp_path: Path,
    temporary: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = repository(tmp_path / "repo", 0.2, 0.1)
    monkeypatch.chdir(place)
    installed = f"import sys; sys.path.insert(0, {str(place)!r}); import pace; "
    job = (sys.executable, "-c", installed + "exec(open('train.py').read())")
    assert prove("--between", "HEAD~1", "HEAD", job=job) == 1
    found = told(capsys)
    assert "pip install -e" in found["reasons"][0]
    assert found["findings"][0]["cause"] == "prove.wrong_tree"


def test_pythonpath_leads_into_the_trees(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = repository(tmp_path / "repo", 0.2, 0.1)
    monkeypatch.chdir(place)
    monkeypatch.setenv("PYTHONPATH", str(place))
    job = (sys.executable, "-c", "exec(open('train.py').read())")
    assert prove("--between", "HEAD~1", "HEAD", job=job) == 0


def test_submodules_are_said_to_be_empty(
    tmp_path: Path,
    temporary: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = repository(tmp_path / "other", 1.0)
    place = repository(tmp_path / "repo", 0.2)
    git(place, "submodule", "--quiet", "add", str(other), "vendor")
    git(place, "commit", "--quiet", "-m", "vendor")
    (place / "pace.py").write_text(pace(0.1))
    monkeypatch.chdir(place)
    assert prove("--between", "HEAD", ".") == 0
    assert "submodules are empty in the trees: vendor" in capsys.readouterr().err
    assert prove("--between", "HEAD", ".", "--link", "vendor") == 0
    assert "submodules" not in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_trees_are_gone_after_an_interrupt(tmp_path: Path, number: signal.Signals) -> None:
    place = repository(tmp_path / "repo", 0.2, 0.1)
    before = state(place)
    at = tmp_path / "pid"
    hanging = (
        "import os, pathlib, sys, time\n"
        f"pathlib.Path({str(at)!r}).write_text(str(os.getpid()))\ntime.sleep(600)\n"
    )
    driver = (
        "import sys\nfrom tests.trial.test_prove_trees import prove\n"
        "try:\n    prove('--between', 'HEAD~1', '.', job=(sys.executable, '-c', sys.argv[1]))\n"
        "except KeyboardInterrupt:\n    sys.exit(130)\n"
    )
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    with subprocess.Popen(
        [sys.executable, "-c", driver, hanging],
        stderr=subprocess.PIPE,
        text=True,
        cwd=place,
        env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(scratch)},
    ) as proving:
        for _ in range(1200):
            if at.exists() and at.read_text():
                break
            time.sleep(0.05)
        proving.send_signal(number)
        proving.communicate(timeout=60)
    assert proving.returncode == 130
    with pytest.raises(ProcessLookupError):
        os.kill(int(at.read_text()), 0)
    assert list(scratch.glob("whyidle-*")) == []
    assert state(place) == before


@pytest.mark.parametrize(
    ("words", "job", "said"),
    [
        (["--between", "HEAD", "nowhere"], TRAIN, "nowhere: no commit"),
        (["--between", "HEAD", ".", "--patch", "x"], TRAIN, "use one of them"),
        (["--between", "HEAD", "."], (), "The command is missing"),
        (["--between", "HEAD", "."], ("true", "--", "true"), "one command runs in both trees"),
        (["--between", "HEAD", "."], ("./absent.sh",), "--link absent.sh"),
        (["--between", "HEAD", "."], ("no-such-command-at-all",), "no such command"),
        (["--between", "HEAD", ".", "--link", "absent"], TRAIN, "no such file"),
        (["--between", "HEAD", ".", "--link", ".."], TRAIN, "lies not within"),
        (["--link", "data"], ("true", "--", "true"), "--between or --patch"),
        (["--patch", "absent.patch"], TRAIN, "cannot be read"),
        (["--patch", "empty.patch"], TRAIN, "an empty patch changes nothing"),
        (["--patch", "other.patch"], TRAIN, "does not apply"),
        (["--patch", "applied.patch"], TRAIN, "applied to the working tree already"),
    ],
)
def test_what_makes_no_sense_is_a_sentence(
    words: list[str],
    job: tuple[str, ...],
    said: str,
    tmp_path: Path,
    temporary: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = repository(tmp_path / "repo", 0.2)
    (place / "empty.patch").write_text("\n")
    (place / "other.patch").write_text(patch_of(0.7, 0.1))
    (place / "applied.patch").write_text(patch_of(0.1, 0.2))
    before = state(place)
    monkeypatch.chdir(place)
    with pytest.raises(WhyidleError, match=said):
        prove(*words, job=job)
    assert state(place) == before
    assert list(temporary.iterdir()) == []


def test_an_absolute_path_into_the_repository_is_refused(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = repository(tmp_path / "repo", 0.2)
    monkeypatch.chdir(place)
    with pytest.raises(UsageError, match="would run the same file on both sides"):
        prove("--between", "HEAD", ".", job=(sys.executable, str(place / "train.py")))


def test_a_virtual_environment_in_the_repository_is_one_for_both_sides(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = repository(tmp_path / "repo", 0.2, 0.1)
    (place / "data" / "bin").mkdir()
    (place / "data" / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).parent}\n")
    python = place / "data" / "bin" / "python"
    python.symlink_to(sys.executable)
    monkeypatch.chdir(place)
    assert prove("--between", "HEAD~1", "HEAD", job=(str(python), "-S", "train.py")) == 0


def test_revisions_need_git(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder(tmp_path / "plain", 0.2))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    with pytest.raises(UsageError, match="--between needs git"):
        prove("--between", "HEAD", ".")
