"""The processes of a watched job, each with its role, and what its main thread did when."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from whyidle.observe.attach_doing import Doing, doing, role_of, worker_doing
from whyidle.observe.attach_limits import Limits
from whyidle.observe.attach_shares import Piece
from whyidle.observe.attach_stacks import Frame, Stacks, Stretch, is_main
from whyidle.observe.attach_tree import Member, Role, roles
from whyidle.observe.attach_usage import TICK_S, Usage

BUSY = 0.05
"""A training process uses at least so many CPUs, where others use more: idle ones are helpers."""


@dataclass
class Worker:
    """A loader worker of a training process. ``lines`` are nanoseconds by what it worked on."""

    usage: Usage
    working_ns: int = 0
    seen_ns: int = 0
    lines: Counter[Doing] = field(default_factory=Counter)


@dataclass
class Trainer:
    """A training process: its main thread's stretches in order, and its loader workers."""

    usage: Usage
    rank: int | None
    pieces: list[Piece] = field(default_factory=list)
    workers: list[Worker] = field(default_factory=list)

    @property
    def pid(self) -> int:
        """Its number in the system."""
        return self.usage.member.pid

    @property
    def seen_ns(self) -> int:
        """For how long its stack is known."""
        return sum(piece.end_ns - piece.start_ns for piece in self.pieces)


@dataclass
class Watched:
    """All that was seen of a job between ``start_ns`` and ``end_ns`` (Unix nanoseconds).

    ``before`` and ``after`` are limits of each training process at both ends. ``own_cpu_s`` is
    CPU time of whyidle and its tools meanwhile.
    """

    root: Member
    start_ns: int
    end_ns: int
    usages: Mapping[int, Usage]
    roles: Mapping[int, Role]
    trainers: list[Trainer]
    stacks: Stacks
    before: Mapping[int, Limits]
    after: Mapping[int, Limits]
    own_cpu_s: float
    job_ended: bool

    @property
    def wall_s(self) -> float:
        """For how long the job was watched."""
        return (self.end_ns - self.start_ns) / 1e9

    @property
    def stopped_share(self) -> float | None:
        """Share of readings at which a main thread was held by a tracer; None without readings."""
        seen = sum(trainer.usage.states.total() for trainer in self.trainers)
        held = sum(trainer.usage.states["t"] for trainer in self.trainers)
        return held / seen if seen else None


def trainers_of(
    usages: Mapping[int, Usage], stacks: Stacks
) -> tuple[list[Trainer], dict[int, Role]]:
    """The training processes with their workers, and the role of each process."""
    mains: dict[int, list[Stretch]] = {}
    for stretch in stacks.stretches:
        if is_main(stretch) and stretch.process in usages:
            mains.setdefault(stretch.process, []).append(stretch)
    found = _roles(usages, mains)
    trainers = {
        pid: _trainer(usage, mains.get(pid, []))
        for pid, usage in usages.items()
        if found[pid] == "training"
    }
    for pid, usage in usages.items():
        parent = trainers.get(usage.member.parent)
        if found[pid] == "loader worker" and parent is not None:
            parent.workers.append(_worker(usage, mains.get(pid, [])))
    order = sorted(trainers.values(), key=lambda t: (t.rank is None, t.rank or 0, t.pid))
    return order, found


def _roles(usages: Mapping[int, Usage], mains: Mapping[int, list[Stretch]]) -> dict[int, Role]:
    """Roles by /proc, put right by what stacks show."""
    found = roles(usage.member for usage in usages.values())
    with_torch: set[int] = set()
    for pid, stretches in mains.items():
        stacks = {stretch.frames for stretch in stretches}
        told = {role for frames in stacks if (role := role_of(frames))}
        if any(_in_torch(frames) for frames in stacks):
            with_torch.add(pid)
        if "loader worker" in told:
            found[pid] = "loader worker"
        elif "launcher" in told:
            found[pid] = "launcher"
        elif "other" in told:
            found[pid] = "other"
        elif found[pid] == "loader worker":
            found[pid] = "training" if pid in with_torch else "other"
    training = [pid for pid, role in found.items() if role == "training"]
    if with_torch & set(training):
        for pid in training:
            if pid in mains and pid not in with_torch:
                found[pid] = "other"
    return _without_idle(found, usages)


def _without_idle(found: dict[int, Role], usages: Mapping[int, Usage]) -> dict[int, Role]:
    """Python processes that start others and do nothing themselves are launchers."""
    parents = {usage.member.parent for pid, usage in usages.items() if found[pid] == "training"}
    for pid in [pid for pid, role in found.items() if role == "training"]:
        cpus = usages[pid].cpus
        if pid in parents and cpus is not None and cpus < BUSY:
            found[pid] = "launcher"
    return found


def _in_torch(frames: tuple[Frame, ...]) -> bool:
    return any("/torch/" in frame.file for frame in frames)


def _trainer(usage: Usage, stretches: list[Stretch]) -> Trainer:
    began_ns = _began_ns(usage.member)
    pieces = [
        Piece(stretch.start_ns, end, doing(stretch.frames, began_ns))
        for stretch, end in _while_alive(usage, stretches)
    ]
    return Trainer(usage, usage.member.rank, sorted(pieces, key=lambda p: p.start_ns))


def _worker(usage: Usage, stretches: list[Stretch]) -> Worker:
    found = Worker(usage)
    for stretch, end in _while_alive(usage, stretches):
        took = end - stretch.start_ns
        found.seen_ns += took
        told = worker_doing(stretch.frames)
        if told is not None:
            found.working_ns += took
            found.lines[told] += took
    return found


def _while_alive(usage: Usage, stretches: list[Stretch]) -> list[tuple[Stretch, int]]:
    """Stretches and their ends, cut where the process was last seen."""
    last = usage.last_ns
    ends = ((stretch, min(stretch.end_ns, last)) for stretch in stretches)
    return [(stretch, end) for stretch, end in ends if end > stretch.start_ns]


def _began_ns(member: Member) -> int | None:
    """When a process began, in Unix nanoseconds; to about a second."""
    try:
        since_boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    except (AttributeError, OSError):
        return None
    return time.time_ns() - round((since_boot_s - member.begun_ticks * TICK_S) * 1e9)
