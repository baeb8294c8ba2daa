"""Ranks judged on a Dask cluster: two worker processes on this machine."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.scale.jobs import seconds, write_job
from whyidle.diagnose import diagnose
from whyidle.errors import ClusterError, EvidenceConflict
from whyidle.executor import diagnose_files, map_batches
from whyidle.readers import read

distributed = pytest.importorskip(
    "distributed", reason="Dask is not installed: pip install 'whyidle[dask]'"
)
pytestmark = pytest.mark.filterwarnings("ignore")  # what an engine warns of is not ours


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    ) as found:
        yield found


def test_a_dask_cluster_says_what_one_process_says(cluster: Any, tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", 8)
    found = diagnose_files([job], on=cluster.scheduler_address, jobs=4)
    assert seconds(found) == seconds(diagnose(read([job])))
    assert not [note for note in found.notes if "lost" in note]


def test_a_lost_dask_worker_is_retried_and_that_is_said(cluster: Any, tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", 4, steps=3_000)
    killer = _kill_one_at_work(cluster.scheduler_address)
    partials = list(map_batches([job], on=cluster.scheduler_address, jobs=4))
    killer.join()
    assert sum(partial.windows.height for partial in partials) == 4
    told = {note for partial in partials for note in partial.notes if "lost" in note}
    assert told
    assert all("judged again on another" in note for note in told)


def test_errors_of_the_evidence_come_back_as_they_are(cluster: Any, tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", 3)
    write_job(tmp_path / "other", 7)
    with pytest.raises(EvidenceConflict, match="not of one job"):
        diagnose_files(
            [job, tmp_path / "other" / "job_rank6.json"], on=cluster.scheduler_address, jobs=4
        )


def test_dask_is_started_here_when_asked(tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", 2)
    assert len(diagnose_files([job], on="dask").devices) == 2


def test_no_scheduler_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from whyidle.executor import dask_cluster

    monkeypatch.setattr(dask_cluster, "PATIENCE_S", 1)
    with pytest.raises(ClusterError, match="No Dask scheduler answers at tcp://127.0.0.1:9"):
        diagnose_files([write_job(tmp_path / "job", 2)], on="tcp://127.0.0.1:9")


def _kill_one_at_work(address: str) -> threading.Thread:
    """Kill the first worker that says it has begun a batch."""

    def work() -> None:
        with distributed.Client(address, set_as_default=False) as client:
            pids = client.run(os.getpid)
            seen = len(client.get_events("whyidle"))
            begun.set()
            until = time.monotonic() + 60
            while time.monotonic() < until:
                events = client.get_events("whyidle")
                if len(events) > seen:
                    os.kill(pids[events[seen][1]["worker"]], signal.SIGKILL)
                    return
                time.sleep(0.02)

    begun = threading.Event()
    thread = threading.Thread(target=work)
    thread.start()
    begun.wait(60)
    return thread
