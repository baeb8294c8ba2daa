"""What /proc tells of the processes of a running job over time: CPU, waiting, memory, reading.

Nothing is asked of the processes themselves. Readings are of one instant each; shares of time are
shares of readings.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whyidle.observe.attach_tree import PROC, Member, stat_fields, tree

PERIOD_S = 0.1
"""Seconds between two readings of the processes that are known."""

TREE_S = 1.0
"""Seconds between two looks for new processes and between two rows of samples."""

MOST_PROCESSES = 512
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Usage:
    """One process while it was watched. Counters are differences from first reading to last.

    ``states`` counts readings of the main thread by its state: R runs or wants to, S sleeps,
    D waits for a disk and the like, t is held by a tracer. ``waits`` counts where in the system it
    slept, where that may be read. ``read_bytes`` came from storage, ``asked_bytes`` from anywhere;
    None where another user's process does not show them.
    """

    member: Member
    first_ns: int
    last_ns: int
    cpu_s: float = 0.0
    main_cpu_s: float = 0.0
    states: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)
    resident_bytes: int = 0
    major_faults: int = 0
    switches: tuple[int, int] | None = None
    read_bytes: int | None = None
    asked_bytes: int | None = None
    written_bytes: int | None = None
    threads: int = 0
    base: dict[str, Any] = field(default_factory=dict)

    @property
    def wall_s(self) -> float:
        """Seconds between the first reading and the last one."""
        return (self.last_ns - self.first_ns) / 1e9

    @property
    def cpus(self) -> float | None:
        """CPUs' worth of CPU time; None where it was not seen long enough."""
        return self.cpu_s / self.wall_s if self.wall_s > 0.5 else None

    def share(self, state: str) -> float | None:
        """Share of readings in which the main thread was in this state; None without readings."""
        seen = self.states.total()
        return self.states[state] / seen if seen else None


def read_process(pid: int, proc: Path = PROC) -> dict[str, Any] | None:
    """One reading of a process; None when it is gone (or only waits to be collected)."""
    at = proc / str(pid)
    try:
        _, whole = stat_fields((at / "stat").read_text("utf-8", "replace"))
        _, main = stat_fields((at / "task" / str(pid) / "stat").read_text("utf-8", "replace"))
    except OSError:
        return None
    if len(whole) < 22 or len(main) < 13 or whole[0] in "ZX":
        return None
    return {
        "state": main[0],
        "cpu_s": (int(whole[11]) + int(whole[12])) * TICK_S,
        "main_cpu_s": (int(main[11]) + int(main[12])) * TICK_S,
        "major_faults": int(whole[9]),
        "threads": int(whole[17]),
        "begun_ticks": int(whole[19]),
        "resident_bytes": int(whole[21]) * PAGE,
    }


def numbers(path: Path) -> dict[str, int]:
    """The whole numbers of a file of ``name value`` or ``name: value`` lines; {} if unreadable."""
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return {}
    pairs = (line.replace(":", " ").split()[:2] for line in lines)
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


class Watch:
    """Reads the process tree again and again in a thread of its own until ``stop``."""

    def __init__(self, root: int, members: list[Member], proc: Path = PROC) -> None:
        """``on_row`` of ``start`` gets one reading of the whole tree per second."""
        self.usages: dict[int, Usage] = {}
        self.gone = False
        self._root, self._proc = root, proc
        self._waiting: dict[int, bool] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._on_row: Callable[[dict[str, Any]], None] | None = None
        self._begun = members[0].begun_ticks
        self._sums: tuple[int, dict[int, tuple[float, int, int]]] | None = None
        self._admit(members)

    def start(self, on_row: Callable[[dict[str, Any]], None] | None = None) -> None:
        """Begin; ``on_row`` gets rows as samples/host.jsonl holds them."""
        self._on_row = on_row
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take a last reading and end."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self.read()

    def _run(self) -> None:
        looked_s = rowed_s = time.monotonic()
        self._row()
        while not self._stop.wait(PERIOD_S):
            self.read()
            now_s = time.monotonic()
            if now_s - looked_s >= TREE_S:
                looked_s = now_s
                self._admit(tree(self._root, self._proc))
            if now_s - rowed_s >= TREE_S:
                rowed_s = now_s
                self._row()

    def _admit(self, members: list[Member]) -> None:
        for member in members[:MOST_PROCESSES]:
            known = self.usages.get(member.pid)
            if known is None or known.member.begun_ticks != member.begun_ticks:
                now = time.time_ns()
                self.usages[member.pid] = Usage(member, now, now)
        self.read()

    def read(self) -> None:
        """One reading of every known process."""
        for pid, usage in self.usages.items():
            found = read_process(pid, self._proc)
            if found is None or found["begun_ticks"] != usage.member.begun_ticks:
                self.gone |= pid == self._root
                continue
            self._add(usage, found)

    def _add(self, usage: Usage, found: dict[str, Any]) -> None:
        at = self._proc / str(usage.member.pid)
        status, io = numbers(at / "status"), numbers(at / "io")
        found |= {
            "read_bytes": io.get("read_bytes"),
            "asked_bytes": io.get("rchar"),
            "written_bytes": io.get("write_bytes"),
            "willing": status.get("voluntary_ctxt_switches"),
            "forced": status.get("nonvoluntary_ctxt_switches"),
        }
        base = usage.base = usage.base or found
        usage.last_ns = time.time_ns()
        usage.states[found["state"]] += 1
        if found["state"] in "SD":
            usage.waits[_slept_in(at, usage.member.pid)] += 1
        usage.resident_bytes = max(usage.resident_bytes, found["resident_bytes"])
        usage.threads = max(usage.threads, found["threads"])
        for name in ("cpu_s", "main_cpu_s", "major_faults"):
            setattr(usage, name, found[name] - base[name])
        for name in ("read_bytes", "asked_bytes", "written_bytes"):
            known = found[name] is not None and base[name] is not None
            setattr(usage, name, found[name] - base[name] if known else None)
        if found["willing"] is not None and base["willing"] is not None:
            usage.switches = (
                found["willing"] - base["willing"], found["forced"] - base["forced"]
            )  # fmt: skip

    def _row(self) -> None:
        """What the whole tree used since the row before, as samples/host.jsonl holds it."""
        now = time.time_ns()
        live = {
            pid: (usage.cpu_s, usage.read_bytes or 0, usage.written_bytes or 0)
            for pid, usage in self.usages.items()
        }
        before, self._sums = self._sums, (now, live)
        if before is None or self._on_row is None:
            return
        span = now - before[0]
        zero = (0.0, 0, 0)
        used, read, written = (
            sum(mine[i] - before[1].get(pid, zero)[i] for pid, mine in live.items())
            for i in range(3)
        )
        alive = [u for u in self.usages.values() if now - u.last_ns < 5 * PERIOD_S * 1e9]
        values = {
            "job/cpus_used": used / span * 1e9,
            "job/read_bytes": read / span * 1e9,
            "job/written_bytes": written / span * 1e9,
            "job/memory_used": float(sum(u.resident_bytes for u in alive)),
            "job/processes": float(len(alive)),
        }
        if not all(usage.read_bytes is not None for usage in alive):
            del values["job/read_bytes"], values["job/written_bytes"]
        for metric, value in values.items():
            row = {"t_ns": now, "period_ns": span, "metric": metric, "value": round(value, 4)}
            self._on_row({**row, "pid": None, "device": None, "reason": None})


def _slept_in(at: Path, pid: int) -> str:
    try:
        return (at / "task" / str(pid) / "wchan").read_text().strip() or "0"
    except OSError:
        return "0"
