"""The seconds of a watched job: each GPU's, or where none was read each training thread's.

For a GPU, busy is what nvidia-smi read. Its idle time in a piece between two readings goes to the
stalls of its training thread in that piece, at most as much as they lasted, in proportion; the
rest of it is unexplained. For a thread, busy is the time in which it stalled in nothing: on a CPU
run that is the training itself, on a GPU nobody reads it is handing over work or waiting for it.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from whyidle.job_records import JobDevice, JobLedger, JobRow
from whyidle.observe.attach_doing import CAUSES, STALLS, Doing
from whyidle.observe.attach_gpus import Gpu
from whyidle.observe.attach_job import Trainer

Floats = npt.NDArray[np.float64]
METER = "training_thread"
SLICES = 60
Place = tuple[str, str | None, int | None, str]
"""Activity, file, line and frame of a loss."""


@dataclass
class Account:
    """One device's seconds in nanoseconds. ``lost`` is by place; ``shares`` are busy slices."""

    trainer: Trainer
    gpu: Gpu | None
    start_ns: int
    end_ns: int
    busy_ns: float = 0.0
    unknown_ns: float = 0.0
    start_up_ns: float = 0.0
    lost: dict[Place, float] = field(default_factory=dict)
    shares: list[float | None] = field(default_factory=list)

    @property
    def wall_ns(self) -> int:
        """From the first to the last instant that is known of."""
        return self.end_ns - self.start_ns

    def lost_to(self, activity: str) -> float:
        """Nanoseconds that one stall lost."""
        return sum(ns for place, ns in self.lost.items() if place[0] == activity)


def accounts_of(trainers: Sequence[Trainer], gpus: Mapping[int, Gpu]) -> list[Account]:
    """One account per training process that anything is known of, in order of rank."""
    found = []
    for trainer in trainers:
        gpu = gpus.get(trainer.pid)
        account = _of_gpu(trainer, gpu) if gpu is not None else _of_thread(trainer)
        if account is not None and account.wall_ns > 0:
            found.append(account)
    return found


def _of_thread(trainer: Trainer) -> Account | None:
    if not trainer.pieces:
        return None
    start, end = trainer.pieces[0].start_ns, max(piece.end_ns for piece in trainer.pieces)
    account = Account(trainer, None, start, end)
    edges = np.linspace(start, end, SLICES + 1)
    busy, known = np.zeros(SLICES), np.zeros(SLICES)
    for piece in trainer.pieces:
        took = piece.end_ns - piece.start_ns
        inside = _overlaps(piece.start_ns, piece.end_ns, edges)
        known += inside
        activity = piece.doing.activity
        if activity in STALLS:
            place = place_of(piece.doing)
            account.lost[place] = account.lost.get(place, 0.0) + took
        elif activity == "start_up":
            account.start_up_ns += took
        else:
            account.busy_ns += took
            busy += inside
    account.unknown_ns = max(account.wall_ns - trainer.seen_ns, 0)
    width = account.wall_ns / SLICES
    account.shares = [
        round(float(min(b / k, 1.0)), 4) if k >= width / 2 else None
        for b, k in zip(busy, known, strict=True)
    ]
    return account


def _overlaps(start: int, end: int, edges: Floats) -> Floats:
    inside: Floats = np.clip(np.minimum(end, edges[1:]) - np.maximum(start, edges[:-1]), 0, None)
    return inside


def _of_gpu(trainer: Trainer, gpu: Gpu) -> Account:
    account = Account(trainer, gpu, int(gpu.start_ns[0]), int(gpu.end_ns[-1]))
    length = (gpu.end_ns - gpu.start_ns).astype(float)
    unknown = np.isnan(gpu.busy)
    account.unknown_ns = float(length[unknown].sum())
    account.busy_ns = float((gpu.busy * length)[~unknown].sum())
    idle = np.where(unknown, 0.0, (1 - gpu.busy) * length)
    by_place: dict[Place, Floats] = {}
    for piece in trainer.pieces:
        if piece.doing.activity in STALLS:
            low = np.maximum(gpu.start_ns, piece.start_ns)
            inside = np.clip(np.minimum(gpu.end_ns, piece.end_ns) - low, 0, None)
            place = place_of(piece.doing)
            by_place[place] = by_place.get(place, np.zeros(idle.size)) + inside
    if by_place:
        stalled = np.sum(list(by_place.values()), axis=0)
        part = np.minimum(1.0, idle / np.maximum(stalled, 1.0))
        account.lost = {place: float((ns * part).sum()) for place, ns in by_place.items()}
    account.shares = [None if np.isnan(share) else round(float(share), 4) for share in gpu.busy]
    return account


def place_of(doing: Doing) -> Place:
    """Where a stall happens: the user's line and the frame that told the stall."""
    frame = doing.op.rpartition("): ")
    if not frame[0]:
        return doing.activity, doing.file, doing.line, doing.op
    return doing.activity, doing.file, doing.line, _short(frame[0].rpartition("(")[0], frame[2])


def _short(file: str, function: str) -> str:
    """A frame as a reader of traces knows it: the file from its package on, and the function."""
    for mark in ("/site-packages/", "/dist-packages/"):
        file = file.rpartition(mark)[2]
    return f"{file.rpartition('/')[2] if file.startswith('/') else file}: {function}"


def ledger_of(accounts: Sequence[Account], rate: int) -> JobLedger | None:
    """The accounts as records that add up; None without any."""
    if not accounts:
        return None
    devices = [_device(account, rate) for account in accounts]
    rows = [row for account in accounts for row in _rows(account)]
    return JobLedger(
        wall_s=sum(d.wall_s for d in devices),
        busy_s=sum(d.busy_s for d in devices),
        idle_s=sum(d.idle_s for d in devices),
        unknown_s=sum(d.unknown_s for d in devices),
        useful_s=sum(d.useful_s for d in devices),
        lost_s=sum(d.lost_s for d in devices),
        unexplained_s=sum(d.unexplained_s for d in devices),
        devices=devices,
        ledger=rows,
    )


def _device(account: Account, rate: int) -> JobDevice:
    gpu, wall = account.gpu, account.wall_ns
    unknown = min(account.unknown_ns, wall)
    busy = min(account.busy_ns, wall - unknown)
    idle = max(wall - unknown - busy, 0.0)
    lost = min(sum(account.lost.values()), idle)
    return JobDevice(
        host=socket.gethostname(),
        gpu=gpu.uuid if gpu else None,
        device=gpu.index if gpu else None,
        rank=account.trainer.rank,
        matched=None,
        name=gpu.name if gpu else None,
        meter="gpu_utilization" if gpu else METER,
        start_ns=None,
        end_ns=None,
        wall_s=wall / 1e9,
        busy_s=busy / 1e9,
        idle_s=idle / 1e9,
        unknown_s=unknown / 1e9,
        useful_s=busy / 1e9,
        lost_s=lost / 1e9,
        unexplained_s=(idle - lost) / 1e9,
        samples=gpu.samples if gpu else round(account.trainer.seen_ns / 1e9 * rate),
        period_s=gpu.period_ns / 1e9 if gpu else 1 / rate,
        shares=account.shares,
        process=None if gpu else account.trainer.pid,
    )


def _rows(account: Account) -> list[JobRow]:
    gpu = account.gpu
    sums = {activity: account.lost_to(activity) for activity in STALLS}
    return [
        JobRow(
            host=socket.gethostname(),
            gpu=gpu.uuid if gpu else None,
            device=gpu.index if gpu else None,
            rank=account.trainer.rank,
            cause=CAUSES[activity],
            state="idle",
            lost_s=ns / 1e9,
            share=ns / account.wall_ns,
            process=None if gpu else account.trainer.pid,
        )
        for activity, ns in sorted(sums.items(), key=lambda item: -item[1])
        if ns > 0
    ]
