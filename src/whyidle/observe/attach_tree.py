"""The tree of processes of a running job, as /proc shows it, and what each of them is for."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from whyidle.errors import UsageError

PROC = Path("/proc")
Role = Literal["training", "loader worker", "launcher", "other"]

_PYTHON = re.compile(r"^(python|pypy)[\d.]*(d|t|m)*$")
_HELPER = re.compile(r"multiprocessing\.(resource_tracker|semaphore_tracker|forkserver)")
_SPAWNED = "--multiprocessing-fork"
_LAUNCHER = re.compile(r"(^|/)(torchrun|accelerate|deepspeed|mpirun|srun|horovodrun)$")
_LAUNCHERS = re.compile(
    r"^(torch\.distributed\.(run|launch)|accelerate\.commands\.launch|deepspeed)"
)
_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
MOST_BYTES = 1 << 16
"""Of a command line or an environment; the rest is not read."""


@dataclass(frozen=True)
class Member:
    """One process of the job. ``rank`` is what its environment says; None where it says nothing.

    ``begun_ticks`` (clock ticks since the machine started) tells it from a later one of the same
    number.
    """

    pid: int
    parent: int
    name: str
    command: tuple[str, ...]
    begun_ticks: int
    python: bool
    rank: int | None


def stat_fields(text: str) -> tuple[str, list[str]]:
    """The name and the fields from ``state`` on of a line of /proc/PID/stat.

    The name stands in brackets and may hold brackets and spaces itself.
    """
    before, _, after = text.rpartition(")")
    return before.partition("(")[2], after.split()


def checked(pid: int, proc: Path = PROC) -> list[Member]:
    """The processes of the job. Raises UsageError where there is none, or none that is Python."""
    if not (proc / "self").exists() and proc == PROC:
        raise UsageError("attach reads /proc, which this system does not have.\nRun it on Linux.")
    if not (proc / str(pid)).is_dir():
        raise UsageError(
            f"No process has the number {pid} here.\n"
            "Find it with: pgrep -af python. The number of a process in a container holds in there "
            "only: attach in the container, or take the number that the host gives it."
        )
    found = tree(pid, proc)
    if not found:
        raise UsageError(
            f"Process {pid} has just ended.\nGive one that still runs: pgrep -af python"
        )
    root = found[0]
    if _state(pid, proc) == "Z":
        raise UsageError(f"Process {pid} has ended and waits to be collected by its parent.")
    if not any(member.python for member in found):
        raise UsageError(
            f"Process {pid} ({root.name}) is not Python, and none of the {len(found)} processes "
            "under it is.\nGive the training process or its launcher: pgrep -af python"
        )
    return found


def _state(pid: int, proc: Path) -> str:
    text = _text(proc / str(pid) / "stat")
    return stat_fields(text)[1][0] if text else ""


def tree(root: int, proc: Path = PROC) -> list[Member]:
    """``root`` and all its descendants that run now, parents first."""
    parents: dict[int, list[int]] = {}
    stats: dict[int, tuple[str, list[str]]] = {}
    for entry in os.scandir(proc):
        text = _text(proc / entry.name / "stat") if entry.name.isdigit() else ""
        name, fields = stat_fields(text) if text else ("", [])
        if len(fields) > 19:
            stats[int(entry.name)] = (name, fields)
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    order = [root] if root in stats else []
    for pid in order:  # grows while it is walked
        order += sorted(parents.get(pid, ()))
    return [_member(pid, *stats[pid], proc) for pid in order]


def _member(pid: int, name: str, fields: list[str], proc: Path) -> Member:
    at = proc / str(pid)
    command = tuple(part for part in _text(at / "cmdline").split("\0") if part)
    python = _is_python(at, name, command)
    return Member(pid, int(fields[1]), name, command, int(fields[19]), python, _rank(at))


def _is_python(at: Path, name: str, command: tuple[str, ...]) -> bool:
    try:
        program = os.readlink(at / "exe").removesuffix(" (deleted)")
    except OSError:  # of another user, or it has ended
        program = command[0] if command else name
    return bool(_PYTHON.match(os.path.basename(program))) or name.startswith("pt_data_worker")


def _rank(at: Path) -> int | None:
    environment = dict(
        pair.partition("=")[::2] for pair in _text(at / "environ").split("\0") if pair
    )
    values = (environment.get(name, "") for name in _RANKS)
    return next((int(value) for value in values if value.isdigit()), None)


def _text(path: Path) -> str:
    """What a small file of /proc holds; nothing where it is gone or may not be read."""
    try:
        with path.open("rb") as stream:
            return stream.read(MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def roles(members: Iterable[Member]) -> dict[int, Role]:
    """What each process is for, by what /proc alone shows; stacks may know better.

    A child with the very command line of its Python parent was forked by it, and one marked
    ``--multiprocessing-fork`` was spawned: loader workers, as far as one can tell from outside.
    """
    known = {member.pid: member for member in members}
    return {pid: _role(member, known) for pid, member in known.items()}


def _role(member: Member, known: dict[int, Member]) -> Role:
    line = " ".join(member.command)
    if not member.python or _HELPER.search(line):
        return "other"
    if member.name.startswith("pt_data_worker") or _SPAWNED in member.command:
        return "loader worker"
    parent = known.get(member.parent)
    if parent is not None and parent.python and parent.command == member.command:
        return "loader worker"
    words = [word for word in member.command[1:4] if not word.startswith("-")]
    if words and (_LAUNCHER.search(words[0]) or _LAUNCHERS.match(words[0])):
        return "launcher"
    return "training"


def program(member: Member) -> str:
    """What to call a process in a sentence: its script, or its name."""
    words = [word for word in member.command[1:] if not word.startswith("-")]
    return os.path.basename(words[0])[:60] if words else member.name
