"""What a proof tells besides its verdict: findings as all verbs give them, and notes."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.trial.jobs import job, options, prove
from whyidle.diagnosis import Finding
from whyidle.trial.findings import TITLES
from whyidle.trial.proof import Proof, digest_of, verify

ROOT = Path(__file__).parents[2]


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    text = capsys.readouterr().out
    assert verify(text)
    found = json.loads(text)
    assert isinstance(found, dict)
    return found


def test_what_is_proven_has_no_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = job(tmp_path, step_s=0.15), job(tmp_path, step_s=0.1)
    assert prove(before, after, "--pairs", "2", "--format", "json") == 0
    found = told(capsys)
    assert (found["findings"], found["reasons"], found["notes"]) == ([], [], [])


@pytest.mark.parametrize(
    ("later", "ids"),
    [
        ({"step_s": 0.15}, ["prove.slower"]),
        ({"step_s": 0.1}, ["prove.no_difference"]),
        ({"step_s": 0.097}, ["prove.too_little"]),
        ({"step_s": 0.05, "loss_factor": 1.5}, ["prove.changes_training"]),
        ({"step_s": 0.2, "loss_factor": 1.5}, ["prove.slower", "prove.changes_training"]),
        ({"step_s": 0.05, "loss": False}, ["prove.loss_unknown"]),
    ],
)
def test_each_shortfall_is_one_finding(
    later: dict[str, object], ids: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = job(tmp_path, step_s=0.1), job(tmp_path, **later)
    assert prove(before, after, "--pairs", "2", "--format", "json") == 1
    found = told(capsys)
    records = msgspec.convert(found["findings"], list[Finding])
    assert [record.cause for record in records] == ids
    assert [record.evidence[0].what for record in records] == found["reasons"]
    assert all(record.title == TITLES[record.cause] for record in records)
    lost = [record.lost_s for record in records if record.cause == "prove.slower"]
    length = later["step_s"]
    assert isinstance(length, float)
    assert lost == pytest.approx([length - 0.1] * len(lost))
    assert all(r.lost_s == 0 for r in records if r.cause != "prove.slower")


def test_a_failed_run_is_a_finding_and_its_output_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    words = "import os, sys; print(*range(100), sep='\\n'); sys.exit(7)"
    failing = [sys.executable, "-S", "-c", words]
    assert prove(failing, failing, "--format", "json") == 1
    shown = capsys.readouterr()
    assert [f["cause"] for f in json.loads(shown.out)["findings"]] == ["prove.failed"]
    (path,) = re.findall(r"All of its output: (\S+)", shown.err)
    assert Path(path).read_text().split() == [str(n) for n in range(100)]
    (kept,) = tmp_path.glob("whyidle-prove-*")
    assert [place.name for place in kept.iterdir()] == ["run-01-before"]


def test_steps_that_nothing_counts_are_said_to_have_had_no_effect(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = [sys.executable, "-S", "-c", "pass"]
    prove(plain, plain, "--pairs", "2", "--steps", "5", "--format", "json")
    (note,) = told(capsys)["notes"]
    assert note.startswith("--steps 5 had no effect on 4 of 4 runs")
    prove(plain, plain, "--pairs", "2", "--steps", "5")
    assert note in capsys.readouterr().out
    prove(plain, plain, "--pairs", "2", "--steps", "5", "--format", "markdown")
    assert "had no effect on 4 of 4 runs" in capsys.readouterr().out


def test_fewer_steps_than_asked_for_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = [*job(tmp_path, step_s=0.1)]
    shorter = tmp_path / "job.py"
    shorter.write_text(shorter.read_text().replace('["stop_after"] or', '["never"] if 0 else'))
    prove(short, short, "--pairs", "2", "--steps", "50", "--format", "json")
    assert told(capsys)["notes"] == ["--steps 50: a run ended by itself after 12 steps."]


def test_a_proof_saved_before_there_were_findings_is_still_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same = job(tmp_path, step_s=0.1)
    prove(same, same, "--pairs", "2", "--format", "json")
    old = told(capsys)
    for key in ("findings", "notes"):
        del old[key]
    for side in ("before", "after"):
        del old[side]["tree"]
    old["digest"] = digest_of(old)
    assert verify(old)
    assert msgspec.convert(old, Proof).findings == []


def test_a_bar_is_drawn_on_a_terminal_and_is_gone_at_the_end(tmp_path: Path) -> None:
    before, after = job(tmp_path, step_s=0.15), job(tmp_path, step_s=0.1)
    driver = "import sys; from tests.trial.test_prove_findings import on_terminal; on_terminal()"
    own, its = pty.openpty()
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    with subprocess.Popen(
        [sys.executable, "-c", driver, "--pairs", "2", "--", *before, "--", *after],
        stdout=subprocess.PIPE,
        stderr=its,
        env={**os.environ, "PYTHONPATH": path, "TERM": "xterm", "COLUMNS": "80"},
    ) as proving:
        os.close(its)
        drawn = b""
        while True:
            try:
                part = os.read(own, 4096)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            drawn += part
        written, _ = proving.communicate(timeout=60)
    os.close(own)
    assert proving.returncode == 0
    assert written.startswith(b"Proven: faster")
    assert b"\x1b" not in written
    for run in (b"run 1 of 4 (before)", b"run 4 of 4 (before)"):
        assert run in drawn
    assert drawn.rstrip().endswith((b"\x1b[2K", b"\x1b[?25h"))


def on_terminal() -> None:
    from whyidle.trial import command

    sys.exit(command.run(options(*sys.argv[1:])))
