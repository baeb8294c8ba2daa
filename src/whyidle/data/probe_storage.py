"""How quickly the files of a sample are read, with their pages in memory and without.

Pages are dropped with ``posix_fadvise(DONTNEED)``, for the files of a few samples only, and it is
checked (a read that must not wait has to fail) before a time counts as cold.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Sequence
from contextlib import contextmanager, suppress

MOST_WHOLE = 64 << 20
"""Larger files are read in pieces, of what a sample asks for, and only those are dropped."""

ENOUGH = 24


def cold_and_warm(
    paths: Sequence[str], asked: float, seconds: float
) -> tuple[float | None, float | None, str | None]:
    """(seconds per file cold, warm, why there is no cold time), over some of the files."""
    cold: list[float] = []
    warm: list[float] = []
    stayed = 0
    until = time.perf_counter() + seconds
    for number, path in enumerate(paths):
        if len(warm) >= ENOUGH or (time.perf_counter() > until and warm):
            break
        with suppress(OSError), _opened(path) as file:
            size = os.fstat(file).st_size
            if not stat.S_ISREG(os.fstat(file).st_mode) or not size:
                continue
            start, length = _piece(size, asked, number)
            dropped = _drop(file, start, length)
            first = _read(file, start, length)
            if dropped:
                cold.append(first)
            else:
                stayed += 1
            warm.append(_read(file, start, length))
    if not warm:
        return None, None, "no file of a sample could be opened again"
    reason = None
    if len(cold) < max(stayed, 1):
        cold = []
        reason = (
            "the pages of these files stay in memory when asked to go (mapped, being written, "
            "or on a file system in memory)"
        )
    return _median(cold), _median(warm), reason


def _piece(size: int, asked: float, number: int) -> tuple[int, int]:
    if size <= MOST_WHOLE:
        return 0, size
    length = int(min(max(asked, 4096), 16 << 20))
    places = max((size - length) // 4096, 1)
    return (number * 7919 * 65537 % places) * 4096, length


@contextmanager
def _opened(path: str):  # type: ignore[no-untyped-def]
    file = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | os.O_NONBLOCK)
    try:
        yield file
    finally:
        os.close(file)


def _drop(file: int, start: int, length: int) -> bool:
    """Ask the system to forget these pages; whether it did, as far as the first one tells."""
    if not hasattr(os, "posix_fadvise"):
        return False
    os.posix_fadvise(file, start, length, os.POSIX_FADV_DONTNEED)
    return not in_memory(file, start)


def in_memory(file: int, start: int) -> bool:
    """Whether a byte can be read without waiting for a device; True where that cannot be told."""
    if not hasattr(os, "RWF_NOWAIT"):
        return True
    try:
        os.preadv(file, [bytearray(1)], start, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _read(file: int, start: int, length: int) -> float:
    begin = time.perf_counter()
    at = start
    while at < start + length:
        got = os.pread(file, min(1 << 20, start + length - at), at)
        if not got:
            break
        at += len(got)
    return time.perf_counter() - begin


def _median(found: list[float]) -> float | None:
    return sorted(found)[len(found) // 2] if found else None


def open_files() -> list[str]:
    """Regular files that this process holds open, largest first; a data set opened early."""
    found: dict[str, int] = {}
    with suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                path = os.readlink(f"/proc/self/fd/{name}")
                about = os.stat(f"/proc/self/fd/{name}")
                if path.startswith("/") and stat.S_ISREG(about.st_mode) and os.path.exists(path):
                    found[path] = about.st_size
    return sorted(found, key=found.__getitem__, reverse=True)


def counted(thread: bool = True) -> dict[str, int]:
    """The system's counts of bytes read by this thread (``rchar``, ``read_bytes``); {} unknown."""
    try:
        with open(f"/proc/{'thread-self' if thread else 'self'}/io", encoding="ascii") as file:
            return {k: int(v) for k, v in (line.split(": ") for line in file)}
    except (OSError, ValueError):
        return {}


def waited_for_cpu_s(pid: int | None = None) -> float | None:
    """Seconds that this thread (or a process's first) was ready to run and had no CPU."""
    where = "thread-self" if pid is None else str(pid)
    try:
        with open(f"/proc/{where}/schedstat", encoding="ascii") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None
