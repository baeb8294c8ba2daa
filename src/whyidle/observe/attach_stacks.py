"""Python stacks of a running job by py-spy, read from outside, and what they were when.

``py-spy record --nonblocking`` reads the memory of the processes and never stops them; a stack that
changes while it is read is dropped or, seldom, torn. With ``pause`` each process is held for the
moment of reading. Its Chrome trace keeps the order of the stacks in time, which the other formats
that it writes lose.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from whyidle.observe.attach_tree import Member

RATE = 47
"""Samples a second: no divisor of round periods, so that a step of 100 ms is not always met at
the same place."""

LONG_S, LONG_RATE = 300, 17
MOST_RECORDERS = 16
MOST_BYTES = 512 * 2**20
GRACE_S = 15.0

INSTALL = "pip install 'whyidle[attach]' (or py-spy)"
_THREAD = re.compile(r"^thread \((0x)?([0-9A-Fa-f]+)\)(?:: (.*))?$", re.DOTALL)
_COUNTS = re.compile(r"Samples: (\d+) Errors: (\d+)")


class Frame(NamedTuple):
    """One Python frame: qualified function where Python knows it, file, and the line it is at."""

    function: str
    file: str
    line: int


class Stretch(NamedTuple):
    """One thread had one stack (outermost frame first) at all samples in [start_ns, end_ns).

    ``thread`` is the system's number, None where it is not known. Unix nanoseconds, set to the
    wall clock when py-spy was started: to about a tenth of a second.
    """

    process: int
    thread: int | None
    name: str
    start_ns: int
    end_ns: int
    frames: tuple[Frame, ...]


@dataclass
class Stacks:
    """All stretches, with how often a second a sample was taken and how many were lost."""

    stretches: list[Stretch] = field(default_factory=list)
    rate: int = RATE
    samples: int = 0
    errors: int = 0
    cpu_s: float = 0.0
    why_not: str | None = None


class _Arguments(msgspec.Struct):
    filename: str = ""
    line: int = 0


class _Event(msgspec.Struct):
    ph: str = ""
    name: str = ""
    pid: int = 0
    tid: int = 0
    ts: int = 0
    args: _Arguments = msgspec.field(default_factory=_Arguments)


def tool() -> str | None:
    """Where py-spy is: beside this Python, or on the path."""
    own = Path(sys.executable).with_name("py-spy")
    return str(own) if own.is_file() else shutil.which("py-spy")


def tops(members: Iterable[Member]) -> list[int]:
    """The topmost Python processes, under which py-spy finds all the others."""
    listed = list(members)
    python = {member.pid for member in listed if member.python}
    parents = {member.pid: member.parent for member in listed}

    def below_python(pid: int) -> bool:
        above = parents.get(pid)
        while above in parents:
            if above in python:
                return True
            above = parents[above]
        return False

    return [member.pid for member in listed if member.python and not below_python(member.pid)]


class Recorder:
    """py-spy at work on the topmost Python processes of a job."""

    def __init__(self, members: list[Member], seconds: float, folder: Path, *, pause: bool) -> None:
        """Files are written into ``folder``; nothing starts before ``start``."""
        self._tool = tool()
        self._pids = tops(members)[:MOST_RECORDERS]
        self._seconds, self._folder, self._pause = seconds, folder, pause
        self._rate = RATE if seconds <= LONG_S else LONG_RATE
        self._running: list[tuple[int, int, subprocess.Popen[str]]] = []
        self.why_not: str | None = None

    def start(self) -> bool:
        """Whether stacks are being taken; ``why_not`` tells why they are not."""
        self.why_not = self.refusal()
        if self._tool is None or self.why_not is not None:
            return False
        self._folder.mkdir(parents=True, exist_ok=True)
        for pid in self._pids:
            self._running.append((pid, time.time_ns(), self._record(self._tool, pid)))
        return True

    def refusal(self) -> str | None:
        """Why no stack can be read, by one try; None where it can."""
        if self._tool is None:
            return f"py-spy is not installed: {INSTALL}"
        return _refused(self._tool, self._pids[0])

    def _record(self, tool: str, pid: int) -> subprocess.Popen[str]:
        line = [
            tool, "record", "--format", "chrometrace", "--rate", str(self._rate),
            "--duration", str(max(1, round(self._seconds))), "--subprocesses", "--threads",
            "--idle", "--full-filenames", "--output", str(self._folder / f"{pid}.json"),
        ]  # fmt: skip
        if not self._pause:
            line.append("--nonblocking")
        return subprocess.Popen(
            [*line, "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )

    @property
    def ended(self) -> bool:
        """Whether every recording is over, as when the time is up or the processes are gone."""
        return all(running.poll() is not None for _, _, running in self._running)

    def stop(self) -> Stacks:
        """End the recordings and read what they wrote."""
        found = Stacks(rate=self._rate, why_not=self.why_not)
        before_s = _children_cpu_s()
        for _, _, running in self._running:
            if running.poll() is None:
                running.send_signal(signal.SIGINT)
        for pid, begun_ns, running in self._running:
            said = _last_words(running)
            counts = _COUNTS.search(said)
            if counts:
                found.samples += int(counts[1])
                found.errors += int(counts[2])
            path = self._folder / f"{pid}.json"
            if path.is_file() and path.stat().st_size <= MOST_BYTES:
                found.stretches += stretches_of(path.read_bytes(), begun_ns)
            elif not counts:
                found.why_not = _told_refusal(said, pid)
        found.cpu_s = _children_cpu_s() - before_s
        return found


def _children_cpu_s() -> float:
    spent = os.times()
    return spent.children_user + spent.children_system


def _last_words(running: subprocess.Popen[str]) -> str:
    try:
        return running.communicate(timeout=GRACE_S)[0]
    except subprocess.TimeoutExpired:
        running.kill()
        return running.communicate()[0]


def _refused(tool: str, pid: int) -> str | None:
    """Try one look; why it fails, if it does."""
    try:
        ran = subprocess.run(
            [tool, "dump", "--nonblocking", "--pid", str(pid)],
            capture_output=True, text=True, errors="replace", timeout=GRACE_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"py-spy does not run here ({type(error).__name__})"
    return None if ran.returncode == 0 else _told_refusal(ran.stderr, pid)


def _told_refusal(said: str, pid: int) -> str:
    """What py-spy's own words mean, with what to do about it."""
    if re.search(r"permission|EPERM|operation not permitted", said, re.IGNORECASE):
        return not_permitted(pid)
    line = next((line for line in said.splitlines() if line.startswith("Error")), said[:120])
    return f"py-spy could not read process {pid} ({line.strip()[:160]})"


def not_permitted(pid: int, scope: Path = Path("/proc/sys/kernel/yama/ptrace_scope")) -> str:
    """Why looking into process ``pid`` is not allowed here, and what would allow it."""
    try:
        owner = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        owner = os.geteuid()
    if owner != os.geteuid():
        return f"process {pid} belongs to another user: run whyidle as that user, or with sudo"
    try:
        level = int(scope.read_text())
    except (OSError, ValueError):
        level = 0
    if level >= 3:
        return "kernel.yama.ptrace_scope is 3: looking into processes is off until a restart"
    if level >= 1:
        return (
            f"kernel.yama.ptrace_scope is {level}: run whyidle with sudo, or allow it for now with "
            "sudo sysctl kernel.yama.ptrace_scope=0"
        )
    return (
        "looking into processes is not permitted here: run whyidle with sudo; in a container start "
        "it with docker run --cap-add SYS_PTRACE, in Kubernetes add SYS_PTRACE to "
        "securityContext.capabilities"
    )


def stretches_of(text: bytes, begun_ns: int) -> list[Stretch]:
    """The stretches of a Chrome trace of py-spy whose clock began at ``begun_ns``.

    Its events open (B) and close (E) frames; whenever time passes, what is open was the stack.
    """
    try:
        events = msgspec.json.decode(text, type=list[_Event])
    except msgspec.MsgspecError:
        return []
    found: list[Stretch] = []
    open_: dict[tuple[int, int], list[Frame]] = {}
    since: dict[tuple[int, int], int] = {}
    for event in events:
        key = (event.pid, event.tid)
        stack = open_.setdefault(key, [])
        if stack and event.ts > since[key]:
            stretch = _stretch(event.pid, stack, since[key], event.ts, begun_ns)
            if stretch is not None:
                found.append(stretch)
        since[key] = event.ts
        if event.ph == "B":
            stack.append(Frame(event.name, event.args.filename, event.args.line))
        elif stack:
            stack.pop()
    return found


def _stretch(
    process: int, stack: list[Frame], start_us: int, end_us: int, begun_ns: int
) -> Stretch | None:
    """None where no Python frame is open. The first ones name its parents, it and its thread."""
    thread, name, first = None, "", 0
    for at, frame in enumerate(stack):
        if frame.file:
            break
        first = at + 1
        named = _THREAD.match(frame.function)
        if named:
            thread = None if named[1] else int(named[2])
            name = named[3] or ""
    frames = tuple(stack[first:])
    if not frames:
        return None
    begin, end = begun_ns + start_us * 1000, begun_ns + end_us * 1000
    return Stretch(process, thread, name, begin, end, frames)


def is_main(stretch: Stretch) -> bool:
    """Whether the thread is the main one of its process."""
    if stretch.thread is not None:
        return stretch.thread == stretch.process
    return stretch.name == "MainThread"
