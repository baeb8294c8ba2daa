"""Real runs of small jobs whose truth is planted, as a user proves a change."""

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

from tests.trial.jobs import job, options, prove
from whyidle.errors import OutputError, UsageError
from whyidle.trial import child, command
from whyidle.trial.proof import verify

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a failed run leaves, on purpose, goes with the test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def proof_in(path: Path) -> dict[str, Any]:
    text = path.read_text(encoding="utf-8")
    assert verify(text)
    found = json.loads(text)
    assert isinstance(found, dict)
    return found


def test_a_planted_speed_up_of_a_half_is_proven(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = job(tmp_path, step_s=0.15, noise=0.01, seed=1)
    after = job(tmp_path, step_s=0.10, noise=0.01, seed=2)
    at = tmp_path / "proof.json"
    assert prove(before, after, "-o", str(at)) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("Proven: faster, speed 1.")
    assert "run 10 of 10 (after)" in shown.err
    assert "trained" not in shown.out + shown.err
    found = proof_in(at)
    assert (found["schema"], found["verdict"], found["proven"]) == (
        "whyidle.proof/1",
        "faster",
        True,
    )
    assert found["ratio"]["low"] < 1.5 < found["ratio"]["high"]
    assert found["ratio"]["high"] - found["ratio"]["low"] < 0.1
    assert found["measure"]["what"] == "median step"
    assert found["before"]["command"] == before
    assert found["before"]["median"] == pytest.approx(0.15, rel=0.02)
    assert [run["steps"] for run in found["after"]["runs"]] == [12] * 5
    assert found["loss"]["largest_relative_difference"] == 0
    assert found["loss"]["verdict"] == "within tolerance"
    assert found["after"]["runs"][0]["loss_last"] == pytest.approx(2.0 / 12)


def test_the_same_job_twice_shows_no_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same = job(tmp_path, step_s=0.1, noise=0.05)
    assert prove(same, same, "--quiet") == 1
    shown = capsys.readouterr()
    assert shown.out.startswith("Not proven: no difference, speed ")
    assert shown.err == ""


def test_a_slower_job_is_told_to_be_slower(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fast, slow = job(tmp_path, step_s=0.1), job(tmp_path, step_s=0.12)
    assert prove(fast, slow, "--pairs", "2") == 1
    assert "Not proven: slower, speed 0.833x" in capsys.readouterr().out


def test_less_than_was_asked_for_is_not_proven(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = job(tmp_path, step_s=0.15), job(tmp_path, step_s=0.1)
    assert prove(before, after, "--pairs", "2", "--at-least", "1.6") == 1
    assert "1.6x was asked for" in capsys.readouterr().out
    assert prove(before, after, "--pairs", "2", "--at-least", "1.4") == 0


def test_a_faster_job_that_trains_otherwise_is_not_proven(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = job(tmp_path, step_s=0.15)
    after = job(tmp_path, step_s=0.10, loss_factor=1.1)
    words = ("--pairs", "2", "--format", "json")
    assert prove(before, after, *words) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "changes training"
    assert found["loss"]["largest_relative_difference"] == pytest.approx(0.1)
    assert prove(before, after, *words, "--loss-tolerance", "0.2") == 0


def test_a_loss_that_moves_no_more_than_with_other_seeds_is_proven_when_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three other seeds move the loss by 5, 10 and 15 %."""
    words = ("--pairs", "2", "--format", "json", "--seeds", "3")
    before = job(tmp_path, step_s=0.15, per_seed=0.05)
    for factor, code in ((1.1, 0), (1.4, 1)):
        after = job(tmp_path, step_s=0.10, loss_factor=factor)
        assert prove(before, after, *words) == code
        found = json.loads(capsys.readouterr().out)
        assert found["loss"]["largest_relative_difference"] == pytest.approx(factor - 1)
        assert "15.0%" in found["loss"]["why"]
    assert "other random numbers alone" in found["reasons"][0]


def test_losses_too_noisy_to_compare_leave_the_proof_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = job(tmp_path, step_s=0.15, loss_noise=0.2, seed=1)
    after = job(tmp_path, step_s=0.10, loss_noise=0.2, seed=2)
    assert prove(before, after, "--pairs", "3", "--format", "json") == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["proven"]) == ("faster", False)
    assert (found["loss"]["compared"], found["loss"]["verdict"]) == (False, "cannot tell")
    assert "fix the seed" in found["reasons"][0]


def test_the_slowest_rank_and_the_steps_asked_for_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = job(tmp_path, step_s=0.1, ranks=3, later_rank_slower=0.5)
    after = job(tmp_path, step_s=0.1, ranks=3)
    words = ("--pairs", "2", "--steps", "8", "--warm-up", "3", "--format", "json")
    assert prove(before, after, *words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ratio"]["mid"] == pytest.approx(2.0)
    assert {run["steps"] for run in found["before"]["runs"]} == {8}


def test_steps_that_come_in_bursts_are_told_by_their_mean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uneven = job(tmp_path, step_s=0.1)  # its first three steps take five times as long
    assert prove(uneven, uneven, "--pairs", "2", "--warm-up", "1", "--format", "json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["measure"]["what"] == "mean step"
    assert found["before"]["median"] == pytest.approx((2 * 0.5 + 9 * 0.1) / 11)


def test_commands_without_steps_are_timed_whole_and_that_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = [sys.executable, "-S", "-c", "print('--not an option of ours')", "--pairs", "x"]
    prove(plain, plain, "--pairs", "2", "--format", "json")
    found = json.loads(capsys.readouterr().out)
    assert found["measure"]["what"] == "wall of the command"
    assert "start-up included" in found["measure"]["why"]
    assert found["before"]["runs"][0]["seconds_per_step"] is None
    assert found["before"]["runs"][0]["wall_s"] > 0
    assert (found["loss"]["compared"], found["loss"]["why"]) == (False, "no run told its loss")


def test_a_job_that_fails_ends_the_proof_and_shows_its_last_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = job(tmp_path, step_s=0.1)
    bad = job(tmp_path, step_s=0.1, exit_code=3, fails_from=3)
    at = tmp_path / "proof.json"
    assert prove(good, bad, "-o", str(at), "--quiet") == 1
    shown = capsys.readouterr()
    assert "Run 3 of 10 (after) ended with exit code 3." in shown.err
    assert "trained 12 steps" in shown.err
    found = proof_in(at)
    assert (found["verdict"], found["ratio"]) == ("failed", None)
    assert [run["exit_code"] for run in found["after"]["runs"]] == [0, 3]


def test_a_job_that_never_ends_is_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(child, "GRACE_S", 0.2)
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print('busy'); "
    forever = [sys.executable, "-u", "-c", stubborn + "time.sleep(600)"]
    assert prove(forever, forever, "--timeout", "0.5") == 1
    assert "still running after --timeout 0.5 s" in capsys.readouterr().err


def test_a_job_killed_by_a_signal_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    killed = ["sh", "-c", "kill -9 $$"]
    assert prove(killed, killed) == 1
    shown = capsys.readouterr()
    assert "Run 1 of 10 (before) was ended by signal 9." in shown.err
    assert "It printed nothing." in shown.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_job_and_tells_what_was_measured(
    tmp_path: Path, number: signal.Signals
) -> None:
    hanging = (
        "import os, pathlib, sys, time\n"
        "if 'run-02' in os.environ['WHYIDLE_BUNDLE']:\n"
        "    pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))\n"
        "    time.sleep(600)\n"
    )
    driver = (
        "import sys\nfrom tests.trial.jobs import prove\n"
        "job = [sys.executable, '-c', *sys.argv[1:3]]\n"
        "try:\n    prove(job, job)\nexcept KeyboardInterrupt:\n    sys.exit(130)\n"
    )
    told = tmp_path / "pid"
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    with subprocess.Popen(
        [sys.executable, "-c", driver, hanging, str(told)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path)},
    ) as proving:
        for _ in range(600):
            if told.exists() and told.read_text():
                break
            time.sleep(0.05)
        proving.send_signal(number)
        _, shown = proving.communicate(timeout=60)
    assert proving.returncode == 130
    assert "interrupted after 1 of 10 runs, before " in shown
    with pytest.raises(ProcessLookupError):
        os.kill(int(told.read_text()), 0)
    assert list(tmp_path.glob("whyidle-prove-*")) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "BEFORE is missing"),
        (["--"], "BEFORE is missing"),
        (["--", "--", "true"], "BEFORE is missing"),
        (["--", "true"], "AFTER is missing"),
        (["--", "true", "--"], "AFTER is missing"),
        (["--", "true", "--", "true", "--", "true"], "3 commands"),
        (["--", "true", "--", "no-such-command-at-all"], "no such command"),
        (["-o", "proof.txt", "--", "true", "--", "true"], "a proof is JSON"),
        (["-o", "no/such/proof.json", "--", "true", "--", "true"], "does not exist"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_a_sentence(words: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        command.run(options(*words))


@pytest.mark.parametrize(
    "words",
    [
        ["--pairs", "1"],
        ["--at-least", "0.9"],
        ["--loss-tolerance", "-1"],
        ["--timeout", "nan"],
        ["--steps", "0"],
        ["--warm-up", "-2"],
    ],
)
def test_figures_that_make_no_sense_are_refused(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        options(*words, "--", "true", "--", "true")
    assert refused.value.code == 2
    assert words[0] in capsys.readouterr().err


def test_a_file_that_cannot_be_started_is_a_sentence(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("no #! line and no program\n")
    script.chmod(0o755)
    with pytest.raises(UsageError, match="needs its interpreter"):
        prove([str(script)], ["true"])


def test_a_proof_that_cannot_be_written_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("whyidle.reports.write_whole", full)
    with pytest.raises(OutputError, match="No space left"):
        prove(["true"], ["true"], "--pairs", "2", "-o", str(tmp_path / "proof.json"))


def test_markdown_fits_a_pull_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = job(tmp_path, step_s=0.15), job(tmp_path, step_s=0.1)
    assert prove(before, after, "--pairs", "2", "--format", "markdown") == 0
    shown = capsys.readouterr().out
    assert shown.startswith("### whyidle: Proven: faster, speed 1.5x (95% interval 1.5x to 1.5x).")
    assert "| before | 2 | 150 ms |" in shown


def test_sides_that_make_unlike_numbers_of_steps_are_told_of(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = job(tmp_path, step_s=0.1, steps=12)
    after = job(tmp_path, step_s=0.05, steps=24, loss=False)
    prove(before, after, "--pairs", "2", "--format", "json")
    (note,) = json.loads(capfd.readouterr().out)["notes"]
    assert note.startswith("after makes 24 steps where before makes 12.")
