"""Many ranks in batches: a pool of processes gives the answer of one process."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.scale.jobs import seconds, trace, write_job
from whyidle.diagnose import diagnose
from whyidle.errors import ClusterError, EvidenceConflict, NothingRecorded, UsageError
from whyidle.executor import diagnose_files, map_batches, pool, staff
from whyidle.executor.batches import Batch, planned
from whyidle.readers import read


def test_a_pool_says_what_one_process_says(tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", 8)
    alone = diagnose(read([job]))
    assert seconds(diagnose_files([job], jobs=2)) == seconds(alone)


def test_batches_hold_whole_ranks(tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", 4)
    later = trace(2, 4, start_us=5_000_000.0)
    (job / "rank2_later.json").write_text(json.dumps(later), encoding="utf-8")
    batches = planned([job], jobs=4)
    ranks = [{file.rank for file in batch.files} for batch in batches]
    assert len(batches) > 1
    assert sum(len(found) for found in ranks) == 4
    assert (
        seconds(diagnose_files([job], jobs=3))["ledger"] == seconds(diagnose(read([job])))["ledger"]
    )


def test_a_small_job_starts_no_process(tmp_path: Path) -> None:
    batches = planned([write_job(tmp_path / "job", 8)], jobs=None)
    assert len(batches) == 1
    assert pool.workers_for(batches, None) == 1


def test_a_rank_without_its_number_in_the_name_is_known_from_the_trace(tmp_path: Path) -> None:
    for rank in range(3):
        text = json.dumps(trace(rank, 3))
        (tmp_path / f"{'abc'[rank]}.json").write_text(text, encoding="utf-8")
    batches = planned([tmp_path], jobs=3)
    assert [file.rank for batch in batches for file in batch.files] == [0, 1, 2]


def test_steps_are_narrowed_in_every_batch(tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", 4)
    found = diagnose_files([job], jobs=2, steps=(1, 3))
    assert {len(device.steps) for device in found.devices} == {2}


@pytest.mark.parametrize("short", [(0, 1), (4, 5), (1, 4)])
@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_ranks_without_the_steps_are_left_out_and_named(
    tmp_path: Path, short: tuple[int, ...], jobs: int
) -> None:
    job = write_job(tmp_path / "job", 6)
    for rank in short:
        text = json.dumps(trace(rank, 6, steps=2))
        (job / f"job_rank{rank}.json").write_text(text, encoding="utf-8")
    found = diagnose_files([job], jobs=jobs, steps=(2, 4))
    assert [device.rank for device in found.devices] == sorted(set(range(6)) - set(short))
    assert {len(device.steps) for device in found.devices} == {2}
    told = [note for note in found.notes if "none of the steps" in note]
    named = {int(number) for note in told for number in re.findall(r"\d+", note)}
    assert named == set(short)


@pytest.mark.parametrize("jobs", [1, 2])
def test_steps_that_no_rank_has_are_refused(tmp_path: Path, jobs: int) -> None:
    job = write_job(tmp_path / "job", 4)
    with pytest.raises(UsageError, match="--steps 70:80 leaves no step; steps recorded: 0 to 3"):
        diagnose_files([job], jobs=jobs, steps=(70, 80))


def test_a_file_that_holds_nothing_is_passed_over_in_a_folder(tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", 4)
    (job / "job_rank9.json").write_text('{"traceEvents": []}', encoding="utf-8")
    found = diagnose_files([job], jobs=2)
    assert len(found.devices) == 4


def test_a_folder_of_nothing_says_so(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"rank{rank}.json").write_text('{"traceEvents": []}', encoding="utf-8")
    with pytest.raises(NothingRecorded, match="without any events"):
        diagnose_files([tmp_path], jobs=2)


def test_a_broken_file_is_one_sentence_whoever_read_it(tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", 4)
    whole = (job / "job_rank2.json").read_bytes()
    (job / "job_rank2.json").write_bytes(whole[:-40])
    with pytest.raises(Exception, match="job_rank2.json: the JSON ends early") as here:
        diagnose(read([job]))
    with pytest.raises(type(here.value), match="job_rank2.json: the JSON ends early"):
        diagnose_files([job], jobs=2)


def test_traces_of_two_jobs_are_refused_across_batches(tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", 3)
    (job / "job_rank3.json").write_text(json.dumps(trace(3, 9)), encoding="utf-8")
    with pytest.raises(EvidenceConflict, match="not of one job"):
        diagnose_files([job], jobs=4)


def test_a_trace_without_a_rank_is_refused_beside_ranked_ones(tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", 4)
    nameless = trace(0, 4)
    del nameless["distributedInfo"]
    (job / "other.json").write_text(json.dumps(nameless), encoding="utf-8")
    with pytest.raises(EvidenceConflict, match="does not say its rank"):
        diagnose_files([job], jobs=2)


def test_a_worker_that_dies_is_replaced_and_that_is_said(tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", 6)
    stopped = _kill_first_worker(os.getpid())
    partials = list(map_batches([job], jobs=2))
    stopped.join()
    assert sum(partial.windows.height for partial in partials) == 6
    told = [note for partial in partials for note in partial.notes if "died" in note]
    assert len(told) == 1
    assert "judged again" in told[0]


def test_a_batch_that_kills_two_workers_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(_deadly_package(tmp_path)))
    monkeypatch.setattr(staff, "WORKER", "deadly_worker")
    batches = planned([write_job(tmp_path / "job", 2)], jobs=2)
    with pytest.raises(ClusterError, match=r"Two processes in a row died .*rank \d"):
        list(pool.run(batches, 2, None))


def test_no_process_is_left_when_the_reader_stops_early(tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", 6)
    before = _children(os.getpid())
    outcomes = map_batches([job], jobs=2)
    next(outcomes)
    outcomes.close()  # type: ignore[attr-defined]
    assert _children(os.getpid()) <= before


@pytest.mark.parametrize("ranks", [1, 5])
def test_workers_started_before_the_files_are_read_change_nothing_and_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    job = write_job(tmp_path / "job", ranks)
    for name in ("a.json.txt", "b.json.txt"):  # looked at, and no trace
        (job / name).write_text("nothing")
    late = diagnose_files([job], jobs=2)
    before = _children(os.getpid())
    monkeypatch.setattr(staff, "SURE_BYTES", 0)
    assert diagnose_files([job], jobs=2) == late
    assert _children(os.getpid()) <= before


def test_no_worker_is_started_early_for_what_is_small_or_not_there(tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", 3)
    assert staff.expected([job], 2) == []
    assert staff.expected(str(job / "gone"), 2) == []
    assert staff.expected([job], 1) == []


def test_an_engine_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no engine is known"):
        diagnose_files([write_job(tmp_path / "job", 2)], on="spark://here")


def test_the_note_of_a_batch_names_its_ranks(tmp_path: Path) -> None:
    (whole,) = planned([write_job(tmp_path / "job", 5)], jobs=1)
    assert whole.ranks == "ranks 0 to 4"
    assert Batch(0, whole.files[1:2]).ranks == "rank 1"


def _kill_first_worker(parent: int) -> threading.Thread:
    """Kill the first new child of ``parent`` as soon as there is one."""
    before = _children(parent)

    def wait() -> None:
        until = time.monotonic() + 30
        while time.monotonic() < until:
            if new := _children(parent) - before:
                os.kill(min(new), signal.SIGKILL)
                return
            time.sleep(0.005)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def _children(pid: int) -> set[int]:
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        text = (task / "children").read_text()
        found |= {int(child) for child in text.split()}
    return found


def _deadly_package(folder: Path) -> Path:
    """A worker that takes its batch and dies."""
    path = folder / "deadly"
    path.mkdir()
    code = (
        "import os, sys\n"
        "from multiprocessing.connection import Connection\n"
        "Connection(int(sys.argv[1])).recv()\n"
        "os._exit(9)\n"
    )
    (path / "deadly_worker.py").write_text(code, encoding="utf-8")
    return path
