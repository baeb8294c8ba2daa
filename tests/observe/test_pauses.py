"""Pauses of a job: evaluations, which are in no step, and collections, which are; and hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.observe.jobs import events, needs_torch, observe, pauses, script, steps

pytestmark = needs_torch
PYTHON = sys.executable
MS = 1_000_000

EVALUATING = """
    import gc, sys, time, torch
    from torch.utils.data import DataLoader
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    class Slow(torch.utils.data.Dataset):
        def __len__(self): return 4
        def __getitem__(self, index):
            time.sleep(0.02)
            return torch.ones(8)
    def train(count):
        for step in range(count):
            model[0].eval()   # a part of the model, which is no evaluation
            model(torch.ones(8)).backward()
            optimizer.step()
    def evaluate():
        model.eval()
        for batch in DataLoader(Slow(), 2):
            model(batch)
    model.train()
    train(3)
    evaluate()
    if sys.argv[1] == "train":
        model.train()
    else:
        time.sleep(0.05)
    train(3)
    gc.collect()
    torch.cuda.empty_cache()
    train(1)
    model.eval()
    time.sleep(0.03)
"""


def evaluated(folder: Path, how: str) -> tuple[list[list[int]], list[list[int]], list[str]]:
    """Rows of steps and of evaluations, and the lines of the job."""
    path = script(folder, EVALUATING)
    ran = observe(folder, PYTHON, str(path), how, options=("--no-profile",))
    assert ran.returncode == 0, ran.stderr
    assert "Not observed" not in ran.stderr
    return steps(folder), pauses(folder, "evaluation"), path.read_text().splitlines()


def test_an_evaluation_is_a_pause_and_neither_it_nor_its_waits_are_in_a_step(
    tmp_path: Path,
) -> None:
    rows, (within, last), lines = evaluated(tmp_path, "train")
    assert "model.eval()" in lines[within[4] - 1]
    assert within[3].endswith("job.py") and within[5] == "Sequential"
    assert within[2] - within[1] >= 80 * MS
    assert rows[3][1] == within[2] and within[1] >= rows[2][2]
    assert rows[3][3] == 0  # the batches it waited for were the evaluation's
    assert last[2] - last[1] >= 30 * MS and last[1] >= rows[6][2]
    assert len(rows) == 7


def test_without_a_call_of_train_an_evaluation_ends_with_its_last_batch(tmp_path: Path) -> None:
    rows, (within, _), _ = evaluated(tmp_path, "forget")
    assert within[2] - within[1] >= 80 * MS
    assert rows[3][1] == within[2]
    assert rows[3][2] - rows[3][1] >= 50 * MS  # slept after the evaluation
    assert rows[3][3] == 0


def test_explicit_collections_are_told_with_their_lines_and_once(tmp_path: Path) -> None:
    rows, _, lines = evaluated(tmp_path, "train")
    told = {row[5]: row for row in pauses(tmp_path, "collector") if row[3] is not None}
    assert set(told) == {"gc.collect", "empty_cache"}
    for what, row in told.items():
        assert what in lines[row[4] - 1]
        assert rows[6][1] <= row[1] <= row[2] <= rows[6][2]  # inside the step
    began, ended = told["gc.collect"][1:3]
    inside = [r for r in pauses(tmp_path, "collector") if r[3] is None and began <= r[1] < ended]
    assert inside == []


HANGING = """
    import os, time, torch
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    def wait():
        print("waits", flush=True)
        time.sleep(float(os.environ["FOR"]))
    for step in range(5):
        if step == 3:
            wait()
        model(torch.ones(8)).backward()
        optimizer.step()
"""


def test_a_step_that_is_overdue_is_told_with_where_it_stood(tmp_path: Path) -> None:
    job = script(tmp_path, HANGING)
    hang = ("--no-profile", "--hang", "0.5")
    ran = observe(tmp_path, PYTHON, str(job), options=hang, FOR="1.5")
    assert (ran.returncode, ran.stdout) == (0, "waits\n")
    assert "No step ended for 1.5" in ran.stderr
    assert "It stood at job.py:6" in ran.stderr
    (stacks,) = events(tmp_path, "stacks")
    (main,) = [thread for thread in stacks["threads"] if thread["steps"]]
    assert [frame[1:] for frame in main["frames"]] == [[6, "wait"], [9, "<module>"]]
    (stalled,) = pauses(tmp_path, "stalled")
    rows = steps(tmp_path)
    assert (stalled[1], stalled[2]) == (rows[2][2], rows[3][2])


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_a_job_that_hangs_and_is_ended_gets_a_clear_report(tmp_path: Path, end: int) -> None:
    job = script(tmp_path, HANGING)
    hang = ("--no-profile", "--hang", "0.5")
    line = [PYTHON, "-m", "whyidle", "run", *hang, "-o", "bundle", "--", PYTHON, str(job)]
    with subprocess.Popen(
        line,
        cwd=tmp_path,
        env={**os.environ, "FOR": "100"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as running:
        assert running.stdout is not None and running.stderr is not None
        assert running.stdout.readline() == "waits\n"
        while not events(tmp_path, "stacks"):
            assert running.poll() is None
            time.sleep(0.1)
        (process,) = events(tmp_path, "process")
        if end == signal.SIGINT:
            os.killpg(running.pid, end)  # as a terminal does
        else:
            os.kill(process["pid"], end)
        report = running.stderr.read()
        assert running.wait() == 128 + end, report
    assert "after step 2" in report
    assert "It stood at job.py:6" in report


def test_a_strict_job_may_fork_while_it_is_watched(tmp_path: Path) -> None:
    """Python warns of a fork with several threads; the watch must not be the second one."""
    job = script(
        tmp_path,
        """
        import os, threading, torch
        torch.set_num_threads(1)
        model = torch.nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(2):
            model(torch.ones(8)).backward()
            optimizer.step()
            names = lambda: [t.name for t in threading.enumerate()]
            assert "whyidle" in names()
            seen = []
            os.register_at_fork(before=lambda: seen.append(names()))
            if not os.fork():
                os._exit(0)
            os.wait()
            assert "whyidle" not in names(), names()
        """,
    )
    ran = observe(tmp_path, PYTHON, "-W", "error", str(job), options=("--no-profile",))
    assert ran.returncode == 0, ran.stderr


def test_a_loss_that_is_no_number_is_kept_as_unknown(tmp_path: Path) -> None:
    from whyidle.observe.launch import environment

    job = script(
        tmp_path,
        """
        import torch
        model = torch.nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for scale in (1.0, float("nan"), float("inf")):
            (model(torch.ones(8)).sum() * scale).backward()
            optimizer.step()
        """,
    )
    options = {"loss": True, "profile": False}
    env = environment(tmp_path / "bundle", options)
    subprocess.run([PYTHON, str(job)], env=env, check=True)
    (told,) = events(tmp_path, "loss")
    assert [(step, value is None) for step, value in told["rows"]] == [
        (0, False), (1, True), (2, True)
    ]  # fmt: skip
