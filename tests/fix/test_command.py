"""The verb: diffs that git takes, files written beside backups, sentences for bad input."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("libcst", reason="needs the fix extra")

from whyidle.errors import UsageError, WhyidleError
from whyidle.fix import command

SLOW = "import gc\nfor x in y:\n    step()\n    gc.collect()\nprint('é')\n"
QUICK = "import gc\nfor x in y:\n    step()\nprint('é')\n"


def fix(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    command.add(parser)
    return command.run(parser.parse_args(arguments))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize("name", ["train.py", "my train.py", "naïve.py", "deep/er/train.py"])
@pytest.mark.parametrize(
    "text",
    [
        SLOW.encode(),
        SLOW.replace("\n", "\r\n").encode(),
        SLOW.rstrip("\n").encode(),
        b"import gc\nfor x in y:\n    step()\n    gc.collect()",
        b"# coding: latin-1\n" + SLOW.encode("latin-1"),
    ],
    ids=["plain", "crlf", "no newline", "no newline at the edit", "latin-1"],
)
def test_git_applies_the_diff_and_takes_it_back(
    name: str, text: bytes, here: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    path = here / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)
    assert fix(name) == 0
    patch = capfdbinary.readouterr().out
    (here / "patch").write_bytes(patch)
    git = ["git", "apply", "--whitespace=nowarn"]
    subprocess.run([*git, "patch"], check=True)
    changed = path.read_bytes()
    assert b"collect()" not in changed
    compile(changed, name, "exec")
    assert changed.count(b"\r") == (changed.count(b"\n") if b"\r" in text else 0)
    assert fix(name) == 0
    assert capfdbinary.readouterr().out == b""
    subprocess.run([*git, "-R", "patch"], check=True)
    assert path.read_bytes() == text


def test_apply_writes_the_file_keeps_its_mode_and_never_overwrites_a_backup(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = here / "train.py"
    for _ in range(2):
        path.write_text(SLOW, encoding="utf-8")
        path.chmod(0o750)
        assert fix("--apply", "train.py") == 0
        assert path.read_text(encoding="utf-8") == QUICK
        assert os.name == "nt" or path.stat().st_mode & 0o777 == 0o750
    names = {p.name for p in here.iterdir()}
    assert names == {"train.py", "train.py.whyidle-backup", "train.py.whyidle-backup.1"}
    assert (here / "train.py.whyidle-backup").read_text(encoding="utf-8") == SLOW
    assert "undo with" in capfd.readouterr().err


def test_nothing_to_change_is_said_and_is_fine(capfd: pytest.CaptureFixture[str]) -> None:
    Path("train.py").write_text("print(1)\n")
    assert fix("train.py") == 0
    out, err = capfd.readouterr()
    assert out == ""
    assert "nothing to change" in err


@pytest.mark.parametrize("text", [b"def f(:\n", b"\xff\xfe\x00", b"a = 1\x00\n", b"return 1\n"])
def test_a_file_that_does_not_parse_is_a_sentence(text: bytes) -> None:
    Path("train.py").write_bytes(text)
    with pytest.raises(WhyidleError, match=r"train\.py") as error:
        fix("train.py")
    assert error.value.exit_code == 2


def test_a_missing_file_an_unknown_change_and_no_file_are_sentences(here: Path) -> None:
    for arguments in (["gone.py"], ["."], [], ["--only", "nonsense", "a.py"]):
        with pytest.raises(WhyidleError):
            fix(*arguments)
    (here / "d.json").write_text("{}")
    (here / "a.py").write_text("")
    with pytest.raises(WhyidleError, match="not a saved diagnosis"):
        fix("--from", "d.json", "a.py")


def test_without_libcst_the_user_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in [n for n in sys.modules if n.startswith("whyidle.fix.")]:
        if name != "whyidle.fix.command":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "libcst", None)
    with pytest.raises(UsageError, match=r"whyidle\[fix\]"):
        fix("train.py")


def test_unsafe_changes_wait_until_they_are_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    code = "t = 0.0\nfor x in y:\n    loss.backward()\n    t += loss.item()\n"
    Path("train.py").write_text(code)
    assert fix("--only", "loss_item", "train.py") == 0
    out, err = capfd.readouterr()
    assert out == ""
    assert "loss_item needs --unsafe" in err
    assert fix("--only", "loss_item", "--unsafe", "train.py") == 0
    assert "loss.detach()" in capfd.readouterr().out


def test_list_tells_every_change(capfd: pytest.CaptureFixture[str]) -> None:
    assert fix("--list") == 0
    out = capfd.readouterr().out
    assert "empty_cache (safe)" in out
    assert "loss_item (unsafe)" in out


def test_a_diagnosis_keeps_to_changes_that_answer_it(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from whyidle.diagnosis import Diagnosis, Observation, Place, Window

    code = "import gc\nfor x in y:\n    o.zero_grad(set_to_none=False)\n    gc.collect()\n"
    Path("train.py").write_text(code)
    seen = Observation(
        cause="memory.empty_cache_in_loop",
        reason=1,
        title="",
        level="seen",
        status="stable",
        what="",
        where=[Place(file="/elsewhere/train.py", line=4)],
        evidence=[],
        remedies=[],
    )
    Diagnosis(
        whyidle="0",
        sources=[],
        window=Window(origin_ns="0", start_ns=0, end_ns=0, steps=None),
        devices=[],
        ledger=[],
        findings=[],
        observations=[seen],
    ).save(here / "d.json")
    assert fix("--from", "d.json", "train.py") == 0
    out = capfd.readouterr().out
    assert "-    gc.collect()" in out
    assert "-    o.zero_grad" not in out


def test_a_reader_that_has_gone_away_is_no_error(here: Path) -> None:
    """As with ``whyidle fix train.py | head -0``."""
    (here / "train.py").write_text(SLOW)
    read, write = os.pipe()
    os.close(read)
    line = [sys.executable, "-m", "whyidle", "fix", "train.py"]
    with open(write, "wb") as gone:
        ran = subprocess.run(line, stdout=gone, stderr=subprocess.PIPE, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "internal error" not in ran.stderr
