"""Ranks judged on Ray: two CPUs of this machine."""

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
from whyidle.executor import diagnose_files, map_batches
from whyidle.readers import read

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'whyidle[ray]'")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # what an engine warns of is not ours
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    ray.init(
        address="local", num_cpus=2, include_dashboard=False, log_to_driver=False,
        object_store_memory=100 << 20, runtime_env={"env_vars": {"PYTHONPATH": _paths()}},
    )  # fmt: skip
    yield ray
    ray.shutdown()


def test_ray_says_what_one_process_says(cluster: Any, tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", 8)
    found = diagnose_files([job], on="auto", jobs=4)
    assert seconds(found) == seconds(diagnose(read([job])))
    assert not [note for note in found.notes if "lost" in note]


def test_a_lost_ray_worker_is_retried_and_that_is_said(cluster: Any, tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", 4, steps=3_000)
    killer = _kill_one_at_work()
    partials = list(map_batches([job], on="auto", jobs=4))
    killer.join()
    assert sum(partial.windows.height for partial in partials) == 4
    told = {note for partial in partials for note in partial.notes if "lost" in note}
    assert told
    assert all("judged again on another" in note for note in told)


def _kill_one_at_work() -> threading.Thread:
    """Kill the first worker that Ray names after the function of a batch."""

    def work() -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    if path.read_bytes().startswith(b"ray::sent"):
                        os.kill(int(path.parent.name), signal.SIGKILL)
                        return
                except OSError:
                    continue
            time.sleep(0.01)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def _paths() -> str:
    root = Path(__file__).resolve().parents[2]
    return os.pathsep.join([str(root / "src"), str(root)])
