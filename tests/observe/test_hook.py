"""The hook in real training jobs: what it sees, and that the job does not notice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.observe.jobs import TRAINING, events, manifest, needs_torch, observe, script, steps
from whyidle.observe.launch import environment

pytestmark = needs_torch
PYTHON = sys.executable


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """The folder of an observed run of twenty steps, what it printed, and the report."""
    folder = tmp_path_factory.mktemp("trained")
    ran = observe(folder, PYTHON, str(script(folder, TRAINING)))
    assert ran.returncode == 0, ran.stderr
    return folder, ran.stdout, ran.stderr


def test_every_step_is_counted_and_steps_leave_no_hole(trained: tuple[Path, str, str]) -> None:
    folder, printed, _ = trained
    rows = steps(folder)
    assert [row[0] for row in rows] == list(range(20))
    assert len(printed.splitlines()) == 20
    pauses = [row for event in events(folder, "pauses") for row in event["rows"]]
    between = {row[1]: row[2] for row in pauses if row[0] == "profiler"}
    for one, after in zip(rows, rows[1:], strict=False):
        assert after[1] == between.get(one[2], one[2])


def test_the_window_holds_the_steps_it_says(trained: tuple[Path, str, str]) -> None:
    folder, _, report = trained
    (window,) = events(folder, "window")
    assert (window["first"], window["last"]) == (10, 14)
    assert "4 steps of" in report
    diagnosed = subprocess.run(
        [PYTHON, "-m", "whyidle", "diagnose", "bundle", "--format", "json"],
        cwd=folder,
        capture_output=True,
        check=True,
    )
    device = json.loads(diagnosed.stdout)["devices"][0]
    assert [step["number"] for step in device["steps"]] == [10, 11, 12, 13]


@pytest.mark.parametrize(
    ("asked", "profiled"), [("0:5", (2, 5)), ("4:6", (4, 6)), (":4", (2, 4)), ("15:", (15, 19))]
)
def test_the_steps_asked_for_are_profiled(
    tmp_path: Path, asked: str, profiled: tuple[int, int]
) -> None:
    """Steps 0 and 1 cannot be: the first shows where steps end, the second warms up."""
    job = script(tmp_path, TRAINING)
    assert observe(tmp_path, PYTHON, str(job), options=("--steps", asked)).returncode == 0
    (window,) = events(tmp_path, "window")
    assert (window["first"], window["last"]) == profiled


def test_the_optimizer_is_described_and_where_it_steps(trained: tuple[Path, str, str]) -> None:
    (optimizer,) = events(trained[0], "optimizer")
    assert (optimizer["name"], optimizer["parameters"], optimizer["lr"]) == ("SGD", 9, 0.1)
    source = Path(optimizer["file"]).read_text().splitlines()
    assert "optimizer.step()" in source[optimizer["line"] - 1]


def test_the_profiler_says_nothing_on_the_jobs_stderr(trained: tuple[Path, str, str]) -> None:
    lines = [line for line in trained[2].splitlines() if "profiler_start" in line]
    assert lines == []


def test_losses_are_those_of_the_job(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    job = script(tmp_path, TRAINING)
    ran = subprocess.run(
        [PYTHON, str(job)],
        env=environment(bundle, {"loss": True, "profile": False, "stop_after": 7}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    told = [row for event in events(tmp_path, "loss") for row in event["rows"]]
    printed = [line.split() for line in ran.stdout.splitlines()]
    assert [step for step, _ in told] == list(range(7))
    assert [f"{value:.9e}" for _, value in told[:6]] == [value for _, value in printed]
    assert events(tmp_path, "end")[0]["reason"] == "stop_after"


def test_waits_for_the_loader_are_seen(tmp_path: Path) -> None:
    """Each sample sleeps 5 ms, four of them to a batch: a step waits at least 20 ms."""
    job = script(
        tmp_path,
        """
        import time, torch
        class Slow(torch.utils.data.Dataset):
            def __len__(self): return 48
            def __getitem__(self, index):
                time.sleep(0.005)
                return torch.ones(8)
        model = torch.nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for batch in torch.utils.data.DataLoader(Slow(), 4):
            model(batch).sum().backward()
            optimizer.step()
        """,
    )
    ran = observe(tmp_path, PYTHON, str(job), options=("--no-profile",))
    assert ran.returncode == 0
    assert all(row[3] >= 20_000_000 for row in steps(tmp_path))
    (loader,) = events(tmp_path, "loader")
    assert (loader["batch_size"], loader["num_workers"], loader["dataset"]) == (4, 0, "Slow")
    assert "Slow at job.py:9: batch_size=4, num_workers=0" in ran.stderr


def test_steps_said_by_the_job_replace_those_of_the_optimizer(tmp_path: Path) -> None:
    job = script(
        tmp_path,
        """
        import torch, whyidle
        model = torch.nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(6):
            whyidle.step()
            for _ in range(3):
                model(torch.ones(8)).backward()
                optimizer.step()
        """,
    )
    assert observe(tmp_path, PYTHON, str(job), options=("--no-profile",)).returncode == 0
    assert len(steps(tmp_path)) == 6


def test_a_job_that_fails_keeps_its_code_its_error_and_a_report(tmp_path: Path) -> None:
    job = script(tmp_path, TRAINING + "        if step == 12: raise ValueError('broken data')\n")
    ran = observe(tmp_path, PYTHON, str(job))
    assert ran.returncode == 1
    assert "ValueError: broken data" in ran.stderr
    assert "13 steps" in ran.stderr
    assert "ended with exit code 1" in ran.stderr
    assert "Where the time went" in ran.stderr  # of the steps profiled until then


def test_torch_without_steps_says_how_to_tell_them(tmp_path: Path) -> None:
    ran = observe(tmp_path, PYTHON, "-c", "import torch; print(torch.ones(1).sum().item())")
    assert (ran.returncode, ran.stdout) == (0, "1.0\n")
    assert "no optimizer made a step" in ran.stderr
    assert "whyidle.step()" in ran.stderr


def test_ctrl_c_leaves_a_usable_bundle(tmp_path: Path) -> None:
    job = script(tmp_path, TRAINING)
    line = [PYTHON, "-m", "whyidle", "run", "-o", "bundle", "--", PYTHON, str(job)]
    with subprocess.Popen(
        line,
        cwd=tmp_path,
        env={**os.environ, "STEPS": "100000000"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as running:
        assert running.stdout is not None and running.stderr is not None
        for printed in running.stdout:
            if printed.startswith("40 "):
                os.killpg(running.pid, signal.SIGINT)  # as a terminal does
                break
        running.stdout.close()
        report = running.stderr.read()
        assert running.wait() == 130, report
    assert "Where the time went" in report
    assert manifest(tmp_path)["exit_code"] == 130
    assert len(steps(tmp_path)) >= 41


def test_a_profiler_of_the_user_is_left_alone(tmp_path: Path) -> None:
    job = script(
        tmp_path,
        """
        import torch
        model = torch.nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with torch.profiler.profile() as profiler:
            for step in range(20):
                model(torch.ones(8)).backward()
                optimizer.step()
        print(len(profiler.events()) > 100)
        """,
    )
    ran = observe(tmp_path, PYTHON, str(job))
    assert (ran.returncode, ran.stdout) == (0, "True\n"), ran.stderr
    assert "another profiler is already running" in ran.stderr
    assert len(steps(tmp_path)) == 20


def test_children_that_fork_or_spawn_are_seen_when_they_train(tmp_path: Path) -> None:
    job = script(
        tmp_path,
        """
        import multiprocessing, sys, torch
        def train(rank):
            model = torch.nn.Linear(8, 1)
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            for step in range(10 + rank):
                model(torch.ones(8)).backward()
                optimizer.step()
        if __name__ == "__main__":
            for number, method in enumerate(("fork", "spawn")):
                child = multiprocessing.get_context(method).Process(target=train, args=(number,))
                child.start()
                child.join()
                assert child.exitcode == 0
            multiprocessing.get_context("fork").Process(target=print, args=("idle",)).start()
        """,
    )
    ran = observe(tmp_path, PYTHON, str(job), options=("--no-profile",))
    assert ran.returncode == 0, ran.stderr
    made = {event["pid"] for event in events(tmp_path, "process")}
    assert len(made) == 3  # the parent, which imported torch, and the two that trained
    assert sorted(event["steps"] for event in events(tmp_path, "end")) == [0, 10, 11]
    assert "on each of 2 ranks" in ran.stderr


def test_the_hook_costs_under_one_percent_of_a_small_step(tmp_path: Path) -> None:
    """CPU time of the hook itself, which other load on the machine hardly changes."""
    job = script(
        tmp_path,
        """
        import torch
        model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8)))
        optimizer = torch.optim.AdamW(model.parameters(), 0.001)
        for step in range(200):
            model(torch.ones(64, 256)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
    )
    assert observe(tmp_path, PYTHON, str(job), options=("--no-profile",)).returncode == 0
    rows = steps(tmp_path)[20:]
    assert sum(row[4] for row in rows) < 0.01 * sum(row[2] - row[1] for row in rows)


def test_a_job_without_an_optimizer_never_stood_still_since_1970(tmp_path: Path) -> None:
    job = script(
        tmp_path,
        """
        import time, torch, whyidle
        for step in range(4):
            time.sleep(0.05)
            whyidle.step()
        time.sleep(1.0)
        """,
    )
    ran = observe(tmp_path, PYTHON, str(job), options=("--no-profile", "--hang", "0.5"))
    assert ran.returncode == 0
    (stacks,) = events(tmp_path, "stacks")
    assert stacks["steps"] == 4
    assert 0.5e9 <= stacks["t_ns"] - stacks["since_ns"] < 60e9
    assert stacks["line"] == 5
