"""The processes of a job on Linux: those that its first process started, read from ``/proc``."""

from __future__ import annotations

import os
from dataclasses import dataclass

TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096

ALL_THREADS_EVERY = 10
"""Children of threads other than the first are looked for at every tenth reading: there may be
hundreds of threads, and processes are seldom started from those."""

MOST = 4096
"""Processes of one job that are looked at."""


@dataclass(frozen=True)
class Total:
    """A job's processes at one instant. ``cpu_s`` and bytes are counted since each began.

    ``cpu_s`` holds that of children that have ended. ``memory_bytes`` is what lies in memory; what
    several processes share counts in each. ``pids`` are those of the host.
    """

    cpu_s: float
    memory_bytes: int
    read_bytes: int
    written_bytes: int
    pids: tuple[int, ...]


class Tree:
    """One job's processes; a process once seen stays one of them, whoever becomes its parent."""

    def __init__(self, root: int) -> None:
        self._known: dict[int, int] = {root: _began(root)}
        self._files: dict[int, tuple[int, int]] = {}
        self._gone = [0, 0]
        self._readings = 0

    def read(self) -> Total:
        """What the processes have used until now."""
        self._look_for_more()
        cpu_s, memory = 0.0, 0
        files: dict[int, tuple[int, int]] = {}
        for pid in list(self._known):
            fields = _stat(pid)
            if fields is None or int(fields[19]) != self._known[pid]:
                del self._known[pid]
                continue
            cpu_s += sum(map(int, fields[11:15])) / TICKS
            memory += int(fields[21]) * PAGE
            files[pid] = _storage(pid) or self._files.get(pid, (0, 0))
        for pid, (read, written) in self._files.items():
            if pid not in files:
                self._gone[0] += read
                self._gone[1] += written
        self._files = files
        read = self._gone[0] + sum(read for read, _ in files.values())
        written = self._gone[1] + sum(written for _, written in files.values())
        return Total(cpu_s, memory, read, written, tuple(self._known))

    def _look_for_more(self) -> None:
        every_thread = self._readings % ALL_THREADS_EVERY == 0
        self._readings += 1
        asked = list(self._known)
        while asked and len(self._known) < MOST:
            for child in _children(asked.pop(), every_thread=every_thread):
                if child not in self._known:
                    began = _began(child)
                    if began >= 0:
                        self._known[child] = began
                        asked.append(child)


def _children(pid: int, *, every_thread: bool) -> list[int]:
    folder = f"/proc/{pid}/task"
    try:
        threads = os.listdir(folder) if every_thread else [str(pid)]
    except OSError:
        return []
    found: list[int] = []
    for thread in threads:
        text = _text(f"{folder}/{thread}/children")
        found += map(int, (text or "").split())
    return found


def _began(pid: int) -> int:
    """When a process began, in ticks since the machine did; -1 for one that is not there."""
    fields = _stat(pid)
    return -1 if fields is None else int(fields[19])


def _stat(pid: int) -> list[str] | None:
    """Fields of ``/proc/PID/stat`` from the state on, whatever the program's name holds."""
    text = _text(f"/proc/{pid}/stat")
    fields = text[text.rfind(")") + 1 :].split() if text else []
    return fields if len(fields) > 21 else None


def _storage(pid: int) -> tuple[int, int] | None:
    """Bytes that a process had read from and written to storage; None where we may not know."""
    text = _text(f"/proc/{pid}/io")
    found = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line) if text else {}
    if "read_bytes" not in found or "write_bytes" not in found:
        return None
    return int(found["read_bytes"]), int(found["write_bytes"])


def _text(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None
