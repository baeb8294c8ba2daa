"""``whyidle attach`` to real jobs whose losses are planted, and to what is no job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

from tests.observe.attached import attach, diagnosis, needs_stacks, running
from tests.observe.jobs import needs_torch, script

LOADING = """
    import sys, time, torch
    class Slow(torch.utils.data.Dataset):
        def __len__(self):
            return 1_000_000
        def __getitem__(self, index):
            time.sleep(0.04)  # the planted line
            return torch.ones(8)
    def main():
        model = torch.nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        loader = torch.utils.data.DataLoader(Slow(), batch_size=2, num_workers=int(sys.argv[1]))
        for number, batch in enumerate(loader):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            time.sleep(float(sys.argv[2]))
            if number == 3:
                print("ready", flush=True)
    if __name__ == "__main__":
        main()
"""
"""A batch takes 80 ms to make, and each step sleeps for argv[2] seconds more."""

SAVING = """
    import time, torch
    model = torch.nn.Linear(8, 8)
    class Slow:
        def __getstate__(self):
            time.sleep(0.06)
            return {}
    print("ready", flush=True)
    while True:
        time.sleep(0.04)
        torch.save({"model": model.state_dict(), "slow": Slow()}, "model.pt")  # the planted line
"""

RANKS = """
    import os, sys, time, torch
    import torch.distributed as dist
    def main(rank, folder):
        meet = f"file://{folder}/meet"
        dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=2)
        torch.set_num_threads(1)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
        for number in range(1_000_000):
            if rank == 1:
                time.sleep(0.1)  # the planted line
            dist.barrier()
            model(torch.ones(4, 8)).square().mean().backward()
            if rank == 0 and number == 3:
                print("ready", flush=True)
    if __name__ == "__main__":
        torch.multiprocessing.spawn(main, (os.getcwd(),), nprocs=2)
"""

WAITING = "import sys, time; print('ready', flush=True); time.sleep(float(sys.argv[1]))"


def planted(source: str) -> int:
    lines = source.strip("\n").splitlines()
    return 1 + next(at for at, line in enumerate(lines) if "the planted line" in line)


@needs_torch
@needs_stacks
def test_waiting_for_the_loader_is_found_at_its_line(tmp_path: Path) -> None:
    with running(tmp_path, LOADING, "0", "0.02") as job:
        ran = attach(tmp_path, job.pid, "--seconds", 6, "-o", "kept", "--format", "json")
        found = diagnosis(ran)
        limit = attach(tmp_path, job.pid, "--seconds", 2, "--fail-on", "data_loading>20%")
    first = found["findings"][0]
    assert first["cause"] == "data_loading.loader_workers_too_few"
    assert (first["ledger"], first["level"]) == ("job", "deduced")
    assert 0.65 < first["share"] < 0.9  # planted: 80 of 100 ms and what the step takes
    assert (os.path.basename(first["where"][0]["file"]), first["where"][0]["line"]) == (
        "job.py",
        planted(LOADING),
    )
    assert "num_workers=0" in first["remedies"][0]["how"]
    assert "Not seen from outside" in found["notes"][0]
    assert limit.returncode == 1
    assert "data_loading is" in limit.stderr
    kept = tmp_path / "kept"
    assert json.loads((kept / "diagnosis.json").read_text())["findings"][0] == first
    assert json.loads((kept / "bundle.json").read_text())["schema"] == "whyidle.bundle/1"
    rows = [json.loads(line) for line in (kept / "samples/host.jsonl").read_text().splitlines()]
    assert {"job/cpus_used", "job/memory_used", "job/processes"} <= {r["metric"] for r in rows}
    assert list((kept / "stacks").glob("*.py-spy.gz"))


@pytest.mark.slow
@needs_torch
@needs_stacks
def test_slow_workers_are_named_with_the_line_that_they_work_on(tmp_path: Path) -> None:
    with running(tmp_path, LOADING, "2", "0.0") as job:
        found = diagnosis(attach(tmp_path, job.pid, "--seconds", 4, "--format", "json"))
    first = found["findings"][0]
    assert first["cause"] == "data_loading.loader_workers_too_few"
    assert first["where"][0]["line"] == planted(LOADING)
    assert "loader workers" in first["where"][0]["thread"]
    assert len(found["job"]["devices"]) == 1
    assert "data_loading.sample_work_too_heavy" in {o["cause"] for o in found["observations"]}


@needs_torch
@needs_stacks
def test_a_checkpoint_in_each_step_is_found(tmp_path: Path) -> None:
    with running(tmp_path, SAVING) as job:
        found = diagnosis(attach(tmp_path, job.pid, "--seconds", 4, "--format", "json"))
    first = found["findings"][0]
    assert first["cause"] == "blind_spots.checkpoint_pause"
    assert 0.45 < first["share"] < 0.85
    assert first["where"][0]["line"] == planted(SAVING)


@pytest.mark.slow
@needs_torch
@needs_stacks
def test_each_rank_of_a_job_is_watched_and_told_apart(tmp_path: Path) -> None:
    with running(tmp_path, RANKS) as job:
        ran = attach(tmp_path, job.pid, "--seconds", 4, "--format", "json")
    found = diagnosis(ran)
    assert len(found["job"]["devices"]) == 2
    assert "2 training" in ran.stderr
    waits = sorted(device["lost_s"] / device["wall_s"] for device in found["job"]["devices"])
    assert waits[0] < 0.3 < 0.7 < waits[1]
    first = found["findings"][0]
    assert first["cause"] == "communication.rank_imbalance"
    assert first["where"][0]["line"] == planted(RANKS)


@needs_stacks
def test_a_job_that_ends_meanwhile_is_reported_at_once(tmp_path: Path) -> None:
    with running(tmp_path, WAITING, "3") as job:
        begin = time.monotonic()
        ran = attach(tmp_path, job.pid, "--seconds", 120, "--format", "json")
    assert time.monotonic() - begin < 100
    assert diagnosis(ran)["job"]["devices"][0]["wall_s"] < 20
    assert "ended meanwhile" in ran.stderr


@needs_stacks
def test_ctrl_c_ends_the_watching_and_not_the_job(tmp_path: Path) -> None:
    with running(tmp_path, WAITING, "60") as job:
        line = [sys.executable, "-m", "whyidle", "attach", str(job.pid), "--seconds", "90"]
        watching = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        status = Path(f"/proc/{watching.pid}/task/{watching.pid}/children")
        for _ in range(300):
            if "py-spy" in _commands(watching.pid) or not status.exists():
                break
            time.sleep(0.1)
        time.sleep(1.5)
        watching.send_signal(signal.SIGINT)
        out, err = watching.communicate(timeout=60)
        assert job.poll() is None
    assert watching.returncode == 0, err
    assert "training process" in out
    assert "Watched process" in err


def _commands(parent: int) -> str:
    """The command lines of the children of a process."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            if path.read_text().rpartition(")")[2].split()[1] == str(parent):
                found.append((path.parent / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return "\n".join(line for line in found if " record " in line)


def test_without_py_spy_the_processes_alone_are_told(tmp_path: Path) -> None:
    """A Python beside which, and on whose path, there is no py-spy."""
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.symlink_to(sys.executable)
    source = Path(__file__).parents[2] / "src"
    paths = os.pathsep.join([str(source), sysconfig.get_path("purelib")])
    with running(tmp_path, WAITING, "30") as job:
        ran = attach(tmp_path, job.pid, "--seconds", 1.5, "--format", "json",
                     python=str(python), PATH=str(tmp_path), PYTHONPATH=paths)  # fmt: skip
    found = diagnosis(ran)
    assert found["job"] is None
    assert any("py-spy is not installed" in note for note in found["notes"])
    assert "never stopped" in ran.stderr


def test_what_cannot_be_attached_to_is_told_in_a_sentence(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    gone.wait()
    ran = attach(tmp_path, gone.pid)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert f"No process has the number {gone.pid}" in ran.stderr
    with subprocess.Popen(["sleep", "60"]) as other:
        ran = attach(tmp_path, other.pid)
        other.kill()
    assert ran.returncode == 2
    assert "is not Python" in ran.stderr
    for words in (["abc"], [0], [1, "--seconds", "0"], [1, "--seconds", "nan"]):
        ran = attach(tmp_path, *words)
        assert ran.returncode == 2
        assert ran.stderr.count("\n") <= 3


def test_a_limit_that_nobody_could_measure_does_not_hold(tmp_path: Path) -> None:
    with running(tmp_path, WAITING, "30") as job:
        ran = attach(tmp_path, job.pid, "--seconds", 1, "--fail-on", "memory.fragmentation>5%")
    assert ran.returncode == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
def test_a_process_of_another_user_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """The one who looks is the other user, with the tool where it can run it."""
    from whyidle.observe.attach_stacks import not_permitted

    with running(tmp_path, WAITING, "30") as job:
        os.seteuid(65534)
        try:
            said = not_permitted(job.pid)
        finally:
            os.seteuid(0)
    assert "belongs to another user" in said


def test_the_script_of_a_job_may_not_be_found(tmp_path: Path) -> None:
    """A job whose source was removed since is watched all the same."""
    with running(tmp_path, WAITING, "30") as job:
        script(tmp_path, "pass").unlink()
        assert attach(tmp_path, job.pid, "--seconds", 1).returncode == 0
