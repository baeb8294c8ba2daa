"""Readings of the machine's GPUs while a job runs, by queries of nvidia-smi where there is one."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

COLUMNS = (
    "timestamp,index,uuid,name,utilization.gpu,utilization.memory,memory.used,memory.total,"
    "power.draw,power.limit,clocks.sm,clocks.max.sm,temperature.gpu"
)
FILE = "nvidia_smi.csv"


@contextmanager
def gpu_readings(bundle: Path) -> Iterator[None]:
    """Record one reading a second into ``samples``/nvidia_smi.csv; nothing without nvidia-smi."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        yield
        return
    folder = bundle / "samples"
    try:
        folder.mkdir(exist_ok=True)
        file = (folder / FILE).open("wb")
    except OSError:
        yield
        return
    with file:
        reading = subprocess.Popen(
            [tool, f"--query-gpu={COLUMNS}", "--format=csv", "-l", "1"],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            yield
        finally:
            reading.terminate()
            reading.wait()
