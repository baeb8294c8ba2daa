"""``whyidle run`` around commands that need no torch: exit codes, signals, output, refusals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.observe.jobs import events, manifest, observe, script

PYTHON = sys.executable


@pytest.mark.parametrize("code", [0, 1, 2, 7, 255])
def test_the_exit_code_of_the_job_is_passed_on(tmp_path: Path, code: int) -> None:
    job = script(tmp_path, f"raise SystemExit({code})")
    assert observe(tmp_path, PYTHON, str(job)).returncode == code
    assert manifest(tmp_path)["exit_code"] == code


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_job_ended_by_a_signal_gives_128_and_its_number(tmp_path: Path, number: int) -> None:
    job = script(tmp_path, f"import os; os.kill(os.getpid(), {int(number)})")
    ran = observe(tmp_path, PYTHON, str(job))
    assert ran.returncode == 128 + number
    assert f"was ended by {signal.Signals(number).name}" in ran.stderr
    assert manifest(tmp_path)["signal"] == number


def test_output_and_input_are_the_jobs_own(tmp_path: Path) -> None:
    line = [PYTHON, "-m", "whyidle", "run", "-q", "-o", "bundle", "--", "cat"]
    sent = b"no\xff text\n\x00"
    ran = subprocess.run(line, cwd=tmp_path, input=sent, capture_output=True, check=False)
    assert ran.stdout == sent


def test_a_job_without_torch_is_told_what_to_check(tmp_path: Path) -> None:
    ran = observe(tmp_path, PYTHON, "-c", "pass")
    assert ran.returncode == 0
    assert "None of its processes imported torch" in ran.stderr
    assert not events(tmp_path, "process")


def test_a_limit_without_a_profile_is_bad_usage_unless_the_job_failed(tmp_path: Path) -> None:
    limit = ("--fail-on", "lost>30%")
    assert observe(tmp_path, PYTHON, "-c", "pass", options=limit).returncode == 2
    other = tmp_path / "other"
    other.mkdir()
    assert observe(other, PYTHON, "-c", "raise SystemExit(5)", options=limit).returncode == 5


def test_a_report_that_cannot_be_written_is_told_and_costs_the_job_nothing(tmp_path: Path) -> None:
    """The job itself removes the folder that the report was to go to."""
    (tmp_path / "reports").mkdir()
    trace = Path(__file__).parents[2] / "examples/traces/slow_loader_cpu.pt.trace.json.gz"
    job = script(
        tmp_path,
        f"""
        import os, shutil
        os.rmdir("reports")
        os.mkdir("bundle/windows")
        shutil.copy({str(trace)!r}, "bundle/windows")
        """,
    )
    ran = observe(tmp_path, PYTHON, str(job), options=("--report", "reports/r.html"))
    assert ran.returncode == 0
    assert "reports/r.html: cannot be written" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_command_that_does_not_exist_is_one_clear_sentence(tmp_path: Path) -> None:
    ran = observe(tmp_path, "no-such-command")
    assert ran.returncode == 2
    assert "no-such-command: cannot be started" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_no_command_at_all_is_bad_usage(tmp_path: Path) -> None:
    ran = observe(tmp_path)
    assert ran.returncode == 2
    assert "whyidle run -- python train.py" in ran.stderr


def test_a_folder_that_holds_something_is_never_written_to(tmp_path: Path) -> None:
    kept = tmp_path / "bundle" / "mine.txt"
    kept.parent.mkdir()
    kept.write_text("mine")
    ran = observe(tmp_path, PYTHON, "-c", "print('ran')")
    assert ran.returncode == 2
    assert "holds mine.txt already" in ran.stderr
    assert ran.stdout == ""
    assert os.listdir(kept.parent) == ["mine.txt"]


def test_sigterm_reaches_the_job_and_the_bundle_is_finished(tmp_path: Path) -> None:
    job = script(
        tmp_path,
        """
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
        print("ready", flush=True)
        time.sleep(100)
        """,
    )
    line = [PYTHON, "-m", "whyidle", "run", "-o", "bundle", "--", PYTHON, str(job)]
    with subprocess.Popen(line, cwd=tmp_path, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"ready\n"
        running.send_signal(signal.SIGTERM)
        assert running.wait() == 3
    assert manifest(tmp_path)["exit_code"] == 3


def test_a_sitecustomize_of_the_user_still_runs(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    script(mine, "import builtins; builtins.MINE = 'ran'", "sitecustomize.py")
    told = "import sys; print(MINE, sys.modules['sitecustomize'].__file__)"
    ran = observe(tmp_path, PYTHON, "-c", told, PYTHONPATH=str(mine))
    assert ran.stdout.split() == ["ran", str(mine / "sitecustomize.py")]


def test_a_torch_that_lacks_everything_costs_hooks_and_not_the_job(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    script(tmp_path / "torch", "__version__ = '0'", "__init__.py")
    job = script(tmp_path, "import torch; print(torch.__version__)")
    ran = observe(tmp_path, PYTHON, str(job))
    assert ran.returncode == 0
    assert ran.stdout == "0\n"


def test_the_module_knows_its_own_loader_after_the_hook(tmp_path: Path) -> None:
    """``importlib.reload`` and ``inspect`` work on a torch that was watched."""
    (tmp_path / "torch").mkdir()
    script(tmp_path / "torch", "VALUE = 1", "__init__.py")
    job = script(
        tmp_path,
        """
        import importlib, inspect, torch
        assert inspect.getsource(torch).strip() == "VALUE = 1"
        assert importlib.reload(torch) is torch
        print(type(torch.__spec__.loader).__name__)
        """,
    )
    ran = observe(tmp_path, PYTHON, str(job))
    assert ran.stdout == "SourceFileLoader\n", ran.stderr


def test_streams_that_were_closed_before_cost_nothing_but_themselves(tmp_path: Path) -> None:
    line = f'{PYTHON} -m whyidle run -o bundle -- sh -c "exit 7" >&- 2>&-'
    ran = subprocess.run(["sh", "-c", line], cwd=tmp_path, check=False, timeout=120)
    assert ran.returncode == 7
    assert manifest(tmp_path)["exit_code"] == 7


def test_arguments_that_are_no_unicode_reach_the_job(tmp_path: Path) -> None:
    job = script(tmp_path, "import os, sys; sys.exit(os.fsencode(sys.argv[1]) != bytes([255, 65]))")
    line = [PYTHON, "-m", "whyidle", "run", "-o", "bundle", "--", PYTHON, str(job), b"\xffA"]
    ran = subprocess.run(line, cwd=tmp_path, check=False, timeout=120, capture_output=True)
    assert ran.returncode == 0, ran.stderr
    assert manifest(tmp_path)["command"][-1] == "\\udcffA"


def test_the_job_gets_the_variables_that_it_would_have_had(tmp_path: Path) -> None:
    ran = observe(tmp_path, "env", PYTHONPATH="/srv/own")
    given = dict(line.partition("=")[::2] for line in ran.stdout.splitlines())
    more = {k for k in given if k not in os.environ} - {"PYTHONPATH", "_"}
    assert more == {"WHYIDLE_BUNDLE", "WHYIDLE_OPTIONS", "KINETO_LOG_LEVEL"}
    assert given["PYTHONPATH"].endswith(":/srv/own")
