"""Readings of the machine, the job's processes and the GPUs while a job runs, once a second."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec

from whyidle.observe.gpus import gpu_readings
from whyidle.observe.host import Host, Reading, recorded
from whyidle.observe.nvml import Gpus, opened

EVERY_S = 1.0
LATER_S = 5.0
EARLY_S = 600.0
"""After ten minutes a reading each five seconds is enough, so that a long job's stay small."""

HOST_FILE, GPU_FILE = "host.jsonl", "gpu.jsonl"


class Beside(Protocol):
    """Something that wants to be called once in a while beside the job."""

    def look(self, at_s: float) -> None:
        """The time is ``at_s`` seconds after the job's start."""


@dataclass
class Cost:
    """CPU seconds that the readings took, once they are over."""

    cpu_s: float = 0.0


@contextmanager
def readings(bundle: Path, job: int, beside: Beside | None = None) -> Iterator[Cost]:
    """While this lasts, record readings into ``samples``; ``job`` is the pid of its first process.

    A reading that fails ends the readings, never the job.
    """
    folder = bundle / "samples"
    folder.mkdir(exist_ok=True)
    gpus, cost, over = opened(), Cost(), threading.Event()
    thread = threading.Thread(
        target=_read, args=(folder, job, gpus, beside, over, cost), name="readings", daemon=True
    )
    thread.start()
    try:
        if gpus is None:
            with gpu_readings(bundle):
                yield cost
        else:
            yield cost
    finally:
        over.set()
        thread.join(5.0)


def _read(
    folder: Path,
    job: int,
    gpus: Gpus | None,
    beside: Beside | None,
    over: threading.Event,
    cost: Cost,
) -> None:
    host = Host(job)
    ahead_ns = time.time_ns() - time.monotonic_ns()
    began_s = time.monotonic()
    last = False
    try:
        with (folder / HOST_FILE).open("ab") as beside_host:
            while True:
                at_ns = time.monotonic_ns() + ahead_ns
                _write(beside_host, host.read(at_ns), at_ns)
                if gpus is not None:
                    with (folder / GPU_FILE).open("ab") as file:
                        _write(file, gpus.read(at_ns, frozenset(host.pids)), at_ns)
                spent_s = time.monotonic() - began_s
                if beside is not None and not last:
                    beside.look(spent_s)
                cost.cpu_s = time.thread_time()
                if last:
                    return
                last = over.wait(EVERY_S if spent_s < EARLY_S else LATER_S)
    except Exception:  # noqa: BLE001  the job must not be harmed by what watches it
        return
    finally:
        if gpus is not None:
            gpus.close()


def _write(file: BinaryIO, found: list[Reading], at_ns: int) -> None:
    lines = [msgspec.json.encode(recorded(reading, at_ns)) + b"\n" for reading in found]
    file.write(b"".join(lines))
    file.flush()
