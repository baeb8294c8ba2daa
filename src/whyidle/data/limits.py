"""What this machine lets a loader have: CPUs, shared memory, open files, threads, and storage."""

from __future__ import annotations

import os
import resource
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

PROC = Path("/proc")
GROUPS = Path("/sys/fs/cgroup")
SHM = Path("/dev/shm")

NETWORK = frozenset(
    (
        "9p", "afs", "beegfs", "ceph", "cifs", "cvmfs", "fuse.gcsfuse", "fuse.glusterfs",
        "fuse.juicefs", "fuse.s3fs", "fuse.sshfs", "glusterfs", "gpfs", "lustre", "nfs", "nfs4",
        "orangefs", "panfs", "smb3", "smbfs", "virtiofs", "wekafs",
    )
)  # fmt: skip
"""File systems, as /proc/self/mountinfo names them, whose bytes come from another machine (or,
for 9p and virtiofs, from the host of a virtual one)."""

MEMORY_ONLY = frozenset(("tmpfs", "ramfs"))

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of this process; None where it is not known, or where there is no such limit.

    ``cpus`` is what may be used: the affinity, and not more than the ``quota`` (in CPUs).
    Bytes are as now; ``memory_free`` is also within the container's own limit.
    """

    cpus: float
    affinity: int
    quota: float | None
    shm_bytes: int | None
    shm_free: int | None
    open_files: int | None
    memory_bytes: int | None
    memory_free: int | None
    load: float | None
    file_system: str | None = None
    network: bool | None = None
    thread_variables: dict[str, str] = {}

    @property
    def held_by_quota(self) -> bool:
        """Whether the quota leaves clearly fewer CPUs than processes may run on."""
        return self.quota is not None and self.quota < 0.95 * self.affinity


Reader = Callable[[], Limits]
"""Who says what the limits are; tests put their own."""


def read(
    proc: Path = PROC,
    groups: Path = GROUPS,
    shm: Path = SHM,
    environment: Mapping[str, str] = os.environ,
) -> Limits:
    """The limits of this process now, from the files of the system."""
    affinity = _affinity()
    folders = _folders(proc, groups)
    quota = _least(_quota(folder) for folder in folders)
    memory = _memory(proc, folders)
    space = None
    with suppress(OSError):
        space = shutil.disk_usage(shm)
    return Limits(
        cpus=min(float(affinity), quota) if quota is not None else float(affinity),
        affinity=affinity,
        quota=quota,
        shm_bytes=None if space is None else space.total,
        shm_free=None if space is None else space.free,
        open_files=_open_files(),
        memory_bytes=memory[0],
        memory_free=memory[1],
        load=_load(proc),
        thread_variables={n: environment[n] for n in THREAD_VARIABLES if environment.get(n)},
    )


def with_storage(found: Limits, path: str | None, proc: Path = PROC) -> Limits:
    """The same limits, with the kind of file system that ``path`` lies on."""
    kind = None if path is None else file_system(path, proc)
    if kind is None:
        return found
    return msgspec.structs.replace(found, file_system=kind, network=kind in NETWORK)


def file_system(path: str, proc: Path = PROC) -> str | None:
    """The kind of file system that a path lies on, as the kernel names it; None if unknown."""
    real = os.path.realpath(path)
    best, kind = "", None
    for line in _text(proc / "self" / "mountinfo").splitlines():
        left, dash, right = line.partition(" - ")
        words = left.split()
        if not dash or len(words) < 5 or not right.split():
            continue
        at = words[4].encode().decode("unicode_escape", "replace")
        inside = at == "/" or real == at or real.startswith(at.rstrip("/") + "/")
        if inside and len(at) >= len(best):
            best, kind = at, right.split()[0]
    return kind


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _open_files() -> int | None:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if soft in (resource.RLIM_INFINITY, sys.maxsize) else soft


def _load(proc: Path) -> float | None:
    words = _text(proc / "loadavg").split()
    return float(words[0]) if words else None


def _folders(proc: Path, groups: Path) -> list[Path]:
    """The control group's folders of both versions, innermost first, and all those above it."""
    found: list[Path] = []
    for line in _text(proc / "self" / "cgroup").splitlines():
        number, kinds, path = (line.split(":", 2) + ["", ""])[:3]
        inner = Path(path.lstrip("/"))
        names = ("",) if number == "0" and not kinds else ("cpu", "memory")
        wanted = [name for name in names if not name or name in kinds.split(",")]
        for name in wanted:
            base = groups / name
            found += [base / part for part in (inner, *inner.parents) if (base / part).is_dir()]
    for base in (groups, groups / "cpu", groups / "memory"):
        if base.is_dir() and base not in found:
            found.append(base)
    return found


def _quota(folder: Path) -> float | None:
    """CPUs that the group's quota allows, of version 2 or 1; None without one."""
    words = _text(folder / "cpu.max").split()
    if not words:
        quota = _text(folder / "cpu.cfs_quota_us").strip()
        words = [quota, _text(folder / "cpu.cfs_period_us").strip()]
    if len(words) == 2 and words[0].isdecimal() and words[1].isdecimal() and int(words[1]):
        return int(words[0]) / int(words[1])
    return None


def _memory(proc: Path, folders: list[Path]) -> tuple[int | None, int | None]:
    """(bytes that this process may use, those still free), of the machine or the container."""
    lines = dict(line.split(":", 1) for line in _text(proc / "meminfo").splitlines() if ":" in line)
    total, free = (_kibibytes(lines.get(name)) for name in ("MemTotal", "MemAvailable"))
    for folder in folders:
        for most, used in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, taken = (_number(_text(folder / name)) for name in (most, used))
            if limit is None or (total is not None and limit >= total):
                continue
            total = limit
            if taken is not None:
                free = min(limit - taken, limit if free is None else free)
    return total, free


def _kibibytes(text: str | None) -> int | None:
    words = (text or "").split()
    return int(words[0]) * 1024 if words and words[0].isdecimal() else None


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdecimal() else None


def _least(found: object) -> float | None:
    known = [one for one in found if one is not None]  # type: ignore[attr-defined]
    return min(known) if known else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
