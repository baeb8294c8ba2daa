"""The GPUs of a watched job: which process works on which, and how busy each was when."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from whyidle.errors import WhyidleError

QUARTER_NS = 15 * 60 * 10**9
"""Time zones differ by multiples of this."""

TIMEOUT_S = 20


@dataclass(frozen=True)
class Gpu:
    """One GPU while the job was watched, cut by its readings (Unix nanoseconds).

    ``busy`` is the share (0..1) of each piece in which any kernel was resident; NaN where unknown.
    """

    index: int | None
    uuid: str | None
    name: str | None
    start_ns: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.int64]
    busy: npt.NDArray[np.float64]
    samples: int
    period_ns: int


def gpus_read(file: Path, middle_ns: int) -> list[Gpu]:
    """The GPUs in a table that nvidia-smi wrote around ``middle_ns``; none where it holds none.

    nvidia-smi writes local times without their zone: they are moved by the whole quarters of an
    hour that bring them nearest to ``middle_ns``.
    """
    from whyidle.readers import read
    from whyidle.views.sampled import sampled

    if not file.is_file() or file.read_bytes().count(b"\n") < 3:
        return []
    try:
        found = sampled(read([file]))
    except WhyidleError:
        return []
    pieces = found.pieces
    if not pieces.height:
        return []
    centre = (int(pieces["start_ns"].min()) + int(pieces["end_ns"].max())) // 2  # type: ignore[arg-type]
    move = round((middle_ns - centre) / QUARTER_NS) * QUARTER_NS
    gpus = []
    for row in found.gpus.iter_rows(named=True):
        mine = pieces.filter(pieces["number"] == row["number"]).sort("start_ns")
        gpus.append(
            Gpu(
                row["device"],
                row["gpu"],
                row["name"],
                mine["start_ns"].to_numpy() + move,
                mine["end_ns"].to_numpy() + move,
                mine["value"].fill_null(float("nan")).to_numpy(),
                row["samples"],
                row["period_ns"],
            )
        )
    return gpus


def processes_on_gpus() -> dict[int, set[str]]:
    """Numbers of processes that compute, and the uuids of the GPUs they are on, by nvidia-smi.

    In a container the numbers may be the host's, or hidden.
    """
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return {}
    try:
        ran = subprocess.run(
            [tool, "--query-compute-apps=pid,gpu_uuid", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return {}
    found: dict[int, set[str]] = {}
    for line in ran.stdout.splitlines():
        pid, _, uuid = (part.strip() for part in line.partition(","))
        if pid.isdigit():
            found.setdefault(int(pid), set()).add(uuid)
    return found


def gpu_of_each(
    pids: Sequence[int], gpus: Sequence[Gpu], on: dict[int, set[str]]
) -> dict[int, Gpu]:
    """The GPU of each training process, where that is sure.

    By the uuid that nvidia-smi gives for the process; else, with one GPU and one process, that one.
    """
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    found = {
        pid: by_uuid[next(iter(on[pid]))]
        for pid in pids
        if len(on.get(pid, ())) == 1 and next(iter(on[pid])) in by_uuid
    }
    if not found and len(pids) == 1 and len(gpus) == 1 and holds_gpu(pids[0]):
        found[pids[0]] = gpus[0]
    return found


def holds_gpu(pid: int, proc: Path = Path("/proc")) -> bool:
    """Whether the process has a GPU open; False also where that may not be read."""
    try:
        links = [path.readlink() for path in (proc / str(pid) / "fd").iterdir()]
    except OSError:
        return False
    return any(link.name.startswith("nvidia") and link.parent == Path("/dev") for link in links)
