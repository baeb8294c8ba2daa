"""A pack that is killed goes on where it was, and nothing tells its files from undisturbed ones."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.data.packing import (
    ENVIRONMENT,
    command,
    contents,
    picture_folder,
    rows,
    untouched,
    whyidle,
)

FORMATS = ("blob", "hdf5", "tfrecord", "webdataset", "npy")


def size_of(folder: Path) -> int:
    try:
        return sum(entry.stat().st_size for entry in os.scandir(folder))
    except FileNotFoundError:
        return 0


def killed_at(size: int, arguments: list[str], partial: Path, done: Path) -> bool:
    """Starts the pack and kills it once its folder has grown to ``size``; False: it was done."""
    started = subprocess.Popen(arguments, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
    try:
        while started.poll() is None and size_of(partial) < size and not done.exists():
            time.sleep(0.001)
    finally:
        started.send_signal(signal.SIGKILL)
        started.wait()
    return not done.exists()


def kill_and_resume(tmp_path: Path, format: str, kills: int, count: int, seed: int) -> int:
    source = tmp_path / "rows.npy"
    rows(source, count)
    before = untouched(source)
    how = ("--to", format, "--shuffle", 7, "--samples-per-shard", count // 5)
    how = (*how, "--journal-every", "8k", "-q")
    calm, stormy = tmp_path / "calm", tmp_path / "stormy"
    assert whyidle("pack", source, calm, *how).returncode == 0
    whole = size_of(calm)
    partial = stormy.with_name("stormy.partial")
    fates = sorted(random.Random(seed).randrange(whole) for _ in range(kills))
    stopped = 0
    for size in fates:
        arguments = command("pack", source, stormy, *how, "--workers", 2)
        stopped += killed_at(max(size, size_of(partial)), arguments, partial, stormy)
    if not stormy.exists():
        done = whyidle("pack", source, stormy, *how)
        assert done.returncode == 0, done.stderr
    assert contents(stormy) == contents(calm)
    assert not partial.exists()
    assert untouched(source) == before
    return stopped


def test_killed_three_times_and_resumed_it_equals_an_undisturbed_run(tmp_path: Path) -> None:
    assert kill_and_resume(tmp_path, "blob", 3, 1500, seed=1) > 0


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
def test_killed_ten_times_and_resumed_it_equals_an_undisturbed_run(
    tmp_path: Path, format: str
) -> None:
    assert kill_and_resume(tmp_path, format, 10, 6000, seed=len(format)) > 0


EVERY_STEP = """
    import os, sys
    from pathlib import Path
    from whyidle.data import pack as packing
    from whyidle.data.sources import source_of

    source, folder, format = source_of(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    plan = packing.Plan(format=format, shuffle=5, samples_per_shard=9, journal_bytes=1500)

    def in_a_child(last):
        child = os.fork()
        if child:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        left = [last]
        def dying(function):
            def called(*arguments, **named):
                if left[0] == 0:
                    os._exit(9)
                left[0] -= 1
                return function(*arguments, **named)
            return called
        for name in ("fsync", "replace", "rename", "truncate", "unlink", "mkdir"):
            setattr(os, name, dying(getattr(os, name)))
        try:
            packing.pack(source, folder / "DST", plan)
        except BaseException as error:
            print(last, repr(error), flush=True)
            os._exit(1)
        os._exit(0)

    steps = 0
    while (code := in_a_child(steps)) == 9:
        there = (folder / "DST").exists() and not (folder / "DST/journal.json").exists()
        again = 0 if there else in_a_child(-1)  # only its name had to reach the disk
        assert again == 0, (steps, again)
        os.rename(folder / "DST", folder / f"{steps:03d}")
        steps += 1
    assert code == 0, code
    print(steps)
"""


@pytest.mark.parametrize("format", FORMATS)
def test_it_can_die_before_any_step_that_reaches_the_disk(tmp_path: Path, format: str) -> None:
    source = tmp_path / "rows.npy"
    rows(source, 20, width=16)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(EVERY_STEP), source, tmp_path / "out", format],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    steps = int(done.stdout)
    assert steps > 15
    undisturbed = contents(tmp_path / "out" / "DST")
    for step in range(steps):
        assert contents(tmp_path / "out" / f"{step:03d}") == undisturbed, step


def test_the_number_of_processes_that_read_changes_no_byte(tmp_path: Path) -> None:
    picture_folder(tmp_path / "src", 200)
    for workers in (0, 1, 3):
        done = whyidle(
            "pack", tmp_path / "src", tmp_path / str(workers), "--workers", workers, "--shuffle", 1
        )
        assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "0") == contents(tmp_path / "1") == contents(tmp_path / "3")


def test_reading_processes_end_when_the_one_that_writes_is_killed(tmp_path: Path) -> None:
    source = tmp_path / "rows.npy"
    rows(source, 4000)
    arguments = command("pack", source, tmp_path / "dst", "--workers", 2, "--journal-every", "4k")
    started = subprocess.Popen(arguments, env=ENVIRONMENT, start_new_session=True)
    while size_of(tmp_path / "dst.partial") < 60_000 and started.poll() is None:
        time.sleep(0.001)
    started.kill()
    started.wait()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            os.killpg(started.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    pytest.fail("processes of the pack were still there after 30 s")
