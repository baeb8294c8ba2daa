"""Trials of jobs whose answers are planted: verdicts, what stops early, and what a user reads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.trial.try_jobs import job, options, tried, verdicts
from whyidle.causes import all_causes
from whyidle.diagnose import diagnose
from whyidle.diagnosis import Gain
from whyidle.errors import UsageError
from whyidle.trial import try_command
from whyidle.trial.try_table import BY_NAME

FOUR = "foreach,fused,zero_grad,gc_schedule"


def row(trial: dict[str, Any], name: str) -> dict[str, Any]:
    found = next(one for one in trial["remedies"] if one["remedy"] == name)
    assert isinstance(found, dict)
    return found


def test_planted_gains_are_found_and_what_pays_is_tried_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    effects = {"foreach": 0.8, "zero_grad": 0.9, "gc_schedule": 1.3}
    command = job(tmp_path, step_s=0.1, effects=effects)
    trial = tried(tmp_path, command, "--remedies", FOUR.replace("fused,", ""))
    assert trial["schema"] == "whyidle.try/1"
    assert verdicts(trial) == {
        "foreach": "pays",
        "zero_grad": "pays",
        "gc_schedule=50000": "does not pay",
    }
    measured = row(trial, "foreach")["measured"]
    assert measured["low"] < 1 / 0.8 < measured["high"]
    assert measured["high"] - measured["low"] < 0.1
    together = trial["together"]
    assert together["values"] == {"foreach": True, "zero_grad": True}
    assert together["verdict"] == "pays"
    assert together["measured"]["mid"] == pytest.approx(1 / 0.72, rel=0.03)
    assert together["keep"].endswith("train.py --only optimizer_foreach,zero_grad --unsafe")
    assert trial["baseline"]["step_s"] == pytest.approx(0.1, rel=0.02)
    shown = capsys.readouterr()
    assert shown.out.startswith("foreach, zero_grad pay: up to 1.3")
    assert "all of them together" in shown.out
    assert "whyidle: run 2 of at most 21 (the job as it is)" in shown.err


def test_of_two_that_exclude_each_other_the_better_one_joins_the_rest(tmp_path: Path) -> None:
    command = job(tmp_path, step_s=0.1, effects={"foreach": 0.8, "fused": 0.6, "zero_grad": 0.9})
    trial = tried(tmp_path, command, "--remedies", "foreach,fused,zero_grad", "--pairs", "3")
    assert trial["together"]["values"] == {"fused": True, "zero_grad": True}


def test_a_remedy_that_clearly_does_not_pay_is_run_no_more(tmp_path: Path) -> None:
    command = job(tmp_path, step_s=0.1, effects={"foreach": 1.5}, noise=0.003)
    trial = tried(tmp_path, command, "--remedies", FOUR, "--pairs", "9")
    assert set(verdicts(trial).values()) == {"does not pay"}
    assert len(row(trial, "foreach")["runs"]) < 9
    assert trial["together"] is None


def test_noise_that_hides_a_gain_leaves_it_undecided(tmp_path: Path) -> None:
    command = job(tmp_path, step_s=0.1, noise=1.5, effects={"foreach": 0.97})
    trial = tried(tmp_path, command, "--remedies", "foreach", "--pairs", "3", "--steps", "6")
    assert row(trial, "foreach")["verdict"] == "undecided"
    assert "noise" in row(trial, "foreach")["why"]


def test_a_faster_job_with_another_loss_changes_training(tmp_path: Path) -> None:
    command = job(tmp_path, step_s=0.1, effects={"foreach": 0.5}, losses={"foreach": 1.2})
    trial = tried(tmp_path, command, "--remedies", "foreach", "--pairs", "3")
    found = row(trial, "foreach")
    assert found["verdict"] == "changes training"
    assert found["loss"]["largest_relative_difference"] == pytest.approx(0.2)
    assert found["measured"]["low"] > 1.5


def test_other_random_numbers_are_no_change_of_training(tmp_path: Path) -> None:
    command = job(
        tmp_path,
        step_s=0.1,
        effects={"loader_workers": 0.5, "compile": 0.5},
        losses={"loader_workers": 1.15, "compile": 1.9},
    )
    asked = "loader_workers=2,compile"
    trial = tried(tmp_path, command, "--remedies", asked, "--pairs", "3")
    assert verdicts(trial) == {"loader_workers=2": "pays", "compile": "changes training"}
    assert "random numbers" in row(trial, "loader_workers=2")["loss"]["why"]


def test_larger_batches_are_compared_per_sample_and_change_training(tmp_path: Path) -> None:
    command = job(tmp_path, step_s=0.1, effects={"batch_size": 1.25})
    trial = tried(tmp_path, command, "--remedies", "batch_size=2", "--pairs", "3")
    found = row(trial, "batch_size=2")
    assert found["measured"]["mid"] == pytest.approx(2 / 1.25, rel=0.03)
    assert found["verdict"] == "changes training"


def test_a_remedy_that_breaks_the_job_costs_its_own_row(tmp_path: Path) -> None:
    command = job(tmp_path, step_s=0.1, effects={"foreach": 0.5}, fails=["compile"])
    trial = tried(tmp_path, command, "--remedies", "compile,foreach", "--pairs", "3")
    assert verdicts(trial) == {"compile": "failed", "foreach": "pays"}
    found = row(trial, "compile")
    assert found["why"] == "ended with exit code 1: compile does not go with this model"
    assert len(found["runs"]) == 2  # once more, since a job may fail by chance


def test_a_remedy_that_hangs_costs_its_own_row(tmp_path: Path) -> None:
    command = job(tmp_path, step_s=0.1, effects={"foreach": 0.5}, hangs=["compile"])
    words = ("--remedies", "compile,foreach", "--pairs", "2", "--timeout", "5")
    trial = tried(tmp_path, command, *words)
    assert row(trial, "compile")["verdict"] == "failed"
    assert row(trial, "compile")["why"].startswith("was still running after 5 s")


def test_what_cannot_act_is_told_with_the_reason_and_never_run(tmp_path: Path) -> None:
    command = job(tmp_path, step_s=0.1, refused={"tf32": "no GPU"})
    trial = tried(tmp_path, command, "--remedies", "tf32")
    found = row(trial, "tf32")
    assert (found["verdict"], found["why"], found["runs"]) == ("not applicable", "no GPU", [])
    assert trial["baseline"]["runs"] == []


def test_by_default_workers_are_not_tried_where_no_step_waits_for_the_loader(
    tmp_path: Path,
) -> None:
    refused = {name: "not here" for name in BY_NAME if name not in ("loader_workers", "threads")}
    command = job(tmp_path, step_s=0.1, waits=0.01, refused=refused)
    trial = tried(tmp_path, command, "--pairs", "2")
    found = verdicts(trial)
    assert found["loader_workers=4"] == "not applicable"
    assert "threads=1" in found and "threads=4" not in found
    assert "batch_size=2" not in found


def test_a_job_without_steps_is_timed_as_a_whole(tmp_path: Path) -> None:
    command = job(tmp_path, step_s=0.1, told=False)
    trial = tried(tmp_path, command, "--remedies", "foreach", "--pairs", "2")
    assert row(trial, "foreach")["what"] == "wall of the command"
    assert "No step" in trial["notes"][0]


def test_a_command_that_fails_by_itself_is_an_error_with_its_last_output(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="(?s)exit code 3.*out of luck"):
        script = "import sys; print('out of luck'); sys.exit(3)"
        try_command.run(options("--quiet", "--", sys.executable, "-c", script))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--remedies", "magic"), "no such remedy"),
        (("--remedies", "foreach=3"), "takes no value"),
        (("--remedies", "threads=many"), "whole number"),
        (("--remedies", "no_sync_loss"), "not offered"),
        (("--remedies", ","), "names none"),
    ],
)
def test_a_remedy_that_makes_no_sense_is_a_usage_error(words: tuple[str, ...], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        try_command.run(options(*words, "--", sys.executable))


def test_no_run_starts_after_the_budget(tmp_path: Path) -> None:
    command = job(tmp_path, step_s=0.1)
    trial = tried(tmp_path, command, "--remedies", FOUR, "--budget", "0.001")
    assert set(verdicts(trial).values()) == {"undecided"}
    assert "budget" in trial["notes"][0]


def test_a_diagnosis_picks_the_remedies_and_its_prediction_is_shown(tmp_path: Path) -> None:
    evidence, _ = all_causes()["data_loading.loader_workers_too_few"].example()
    diagnosis = diagnose(evidence)
    gain = Gain(
        step_s_low=0.06,
        step_s_mid=0.05,
        step_s_high=0.04,
        speedup_low=1.6,
        speedup_mid=2.0,
        speedup_high=2.5,
    )
    finding = diagnosis.findings[0]
    planted = msgspec.structs.replace(
        finding, remedies=[msgspec.structs.replace(finding.remedies[0], gain=gain)]
    )
    saved = tmp_path / "diagnosis.json"
    saved.write_text(msgspec.structs.replace(diagnosis, findings=[planted]).to_json())
    trial = tried(tmp_path, job(tmp_path, step_s=0.1), "--from", str(saved), "--pairs", "2")
    assert verdicts(trial).keys() == {"loader_workers=4", "loader_workers=8", "prefetch_factor=4"}
    assert row(trial, "loader_workers=4")["predicted"] == {"low": 1.6, "mid": 2.0, "high": 2.5}


def test_markdown_shows_losers_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = job(tmp_path, step_s=0.1, effects={"foreach": 0.5, "fused": 2.0})
    asked = ("--remedies", "foreach,fused", "--pairs", "3", "--format", "markdown")
    tried(tmp_path, command, *asked)
    out = capsys.readouterr().out
    assert out.startswith("### whyidle: foreach pays: ")
    assert "| `fused` |" in out and "| does not pay |" in out
    assert "whyidle fix" in out


def test_the_list_names_every_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    assert try_command.run(options("--list")) == 0
    out = capsys.readouterr().out
    assert all(f"\n{name}" in "\n" + out for name in BY_NAME)
    assert "no_sync_loss  (not offered)" in out


def test_interrupted_it_tells_what_was_known(tmp_path: Path) -> None:
    command = job(tmp_path, step_s=0.1, hangs=["compile"], effects={"foreach": 0.5})
    words = [sys.executable, "-m", "whyidle", "try", "--remedies", "foreach,compile"]
    with subprocess.Popen(
        [*words, "--", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as trial:
        assert trial.stderr is not None
        for line in trial.stderr:
            if "(compile)" in line:
                break
        time.sleep(0.2)
        os.kill(trial.pid, signal.SIGINT)
        out, _ = trial.communicate(timeout=30)
    assert trial.returncode == 130
    assert "Interrupted: this is what was known by then." in out
    assert "foreach" in out


def test_a_run_that_fails_once_is_made_again_and_failures_of_the_job_itself_count() -> None:
    from whyidle.trial.try_judged import Row
    from whyidle.trial.try_rounds import _doubt

    rows = [Row({"foreach": True}, verdict="failed", why="ended"), Row({"fused": True})]
    _doubt(rows)
    assert (rows[0].verdict, rows[1].verdict) == ("undecided", None)
    assert rows[0].why == "ended; but the job as it is fails at times, too"
