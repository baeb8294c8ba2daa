"""The processes of a pool: started before there is anything to do, and sent home afterwards.

Nothing heavy is imported here, so that the workers load what they need while the caller still looks
at its files.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import TYPE_CHECKING

from whyidle.executor.cpus import usable_cpus

if TYPE_CHECKING:
    from whyidle.executor.batches import Batch

WORKER = "whyidle.executor.worker"
PATIENCE_S = 5.0
"""How long a worker that was told to leave may take."""

SURE_BYTES = 96 << 20
"""A folder of several traces that is larger will be judged by a pool, whatever else is found."""


@dataclass
class Worker:
    """One process, the pipe to it, and the batch it works on."""

    process: subprocess.Popen[bytes]
    pipe: Connection
    batch: Batch | None = None


def expected(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], jobs: int | None
) -> list[Worker]:
    """Workers for a job that will surely need them, by the size of its files; else none."""
    workers = jobs or usable_cpus()
    if workers < 2:
        return []
    sizes: list[int] = []
    try:
        for path in [paths] if isinstance(paths, str | os.PathLike) else paths:
            if os.path.isdir(path):
                entries = [entry for entry in os.scandir(path) if entry.is_file()]
                sizes += [e.stat().st_size for e in entries if ".json" in e.name]
            else:
                sizes.append(os.path.getsize(path))
    except (OSError, ValueError):  # said in words when the files are read
        return []
    if len(sizes) <= workers or sum(sizes) < SURE_BYTES:
        return []
    return [start() for _ in range(workers)]


def start() -> Worker:
    """A fresh interpreter that waits for batches at the other end of a pipe."""
    ours, theirs = Pipe()
    folder = str(Path(__file__).resolve().parents[2])
    known = os.environ.get("PYTHONPATH")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([folder, known] if known else [folder]),
        "POLARS_MAX_THREADS": "1",
    }
    command = [sys.executable, "-P", "-m", WORKER, str(theirs.fileno())]
    process = subprocess.Popen(
        command, env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
    )
    theirs.close()
    return Worker(process, ours)


def stop(worker: Worker) -> None:
    """Let the worker go: one that is idle leaves when its pipe closes, a busy one is ended."""
    worker.pipe.close()
    if worker.batch is not None:
        worker.process.terminate()
    try:
        worker.process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        worker.process.kill()
        worker.process.wait()
