"""How many workers the machine can bear, computed before any is started."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from whyidle.data.limits import Limits
from whyidle.data.tune_record import Bound, Setting

SAFE = 0.8
"""Share of what is free that a setting may use; the rest is for what grows later."""

OTHER_FILES = 128
"""Files that a training process has open beside those of its loader."""


@dataclass(frozen=True)
class Load:
    """What batches are: bytes and tensors of one, as the probe saw them."""

    batch_bytes: float
    tensors: int


@dataclass(frozen=True)
class Machine:
    """What must not be exceeded; bytes. None: not known, or without a limit."""

    shm_free: int | None
    memory_free: int | None
    open_files: int | None
    most_workers: int | None = None

    @classmethod
    def of(cls, limits: Limits, memory: int | None, workers: int | None) -> Machine:
        """The machine's limits, and those that the user set."""
        free = [one for one in (limits.memory_free, memory) if one is not None]
        return cls(limits.shm_free, min(free, default=None), limits.open_files, workers)


def batches_held(setting: Setting) -> int:
    """Batches that are in memory at once: those fetched ahead, and the one in use."""
    return setting.workers * setting.prefetch + 1


def shared_bytes(setting: Setting, load: Load) -> float:
    """Bytes of shared memory that the batches of worker processes take; none for threads."""
    if setting.loader == "Loader" or not setting.workers:
        return 0.0
    return batches_held(setting) * load.batch_bytes


def memory_bytes(
    setting: Setting, load: Load, main: int | None, worker: int | None
) -> float | None:
    """Bytes of all processes and their batches; None as long as no process was measured.

    A worker that was not measured yet is taken to be as large as the training process.
    """
    if main is None:
        return None
    processes = setting.workers if setting.loader == "DataLoader" else 0
    each = worker if worker is not None else main
    return main + processes * each + batches_held(setting) * load.batch_bytes


def too_much(
    setting: Setting, load: Load, machine: Machine, main: int | None, worker: int | None
) -> str | None:
    """Why this setting could exhaust the machine; None where it cannot."""
    if machine.most_workers is not None and setting.workers > machine.most_workers:
        return f"{setting.workers} workers are more than --max-workers {machine.most_workers}"
    shared = shared_bytes(setting, load)
    if machine.shm_free is not None and shared > SAFE * machine.shm_free:
        allowed = size(SAFE * machine.shm_free)
        return (
            f"its batches need {size(shared)} of shared memory, and {allowed} ({SAFE:.0%} of what "
            "is free) are allowed"
        )
    files = setting.workers * setting.prefetch * load.tensors
    may_open = None if machine.open_files is None else machine.open_files - OTHER_FILES
    if setting.loader == "DataLoader" and may_open is not None and files > may_open:
        return f"it keeps {files} files open, one per tensor, of {machine.open_files}"
    memory = memory_bytes(setting, load, main, worker)
    free = machine.memory_free
    if memory is not None and free is not None and memory > SAFE * free:
        return (
            f"its processes and batches need {size(memory)}, and {SAFE:.0%} of {size(free)} are "
            "allowed"
        )
    return None


def most_prefetch(workers: int, load: Load, machine: Machine) -> int:
    """Batches that each of so many worker processes may fetch ahead; 1 at least."""
    found = 64
    for setting in (
        Setting(loader="DataLoader", workers=workers, prefetch=p) for p in range(1, 65)
    ):
        if too_much(setting, load, machine, None, None) is not None:
            found = setting.prefetch - 1
            break
    return max(found, 1)


def bounds(
    load: Load, machine: Machine, main: int | None, worker: int | None, prefetch: int = 2
) -> list[Bound]:
    """Each limit as a number of worker processes, with how it was computed."""
    found = []
    if machine.shm_free is not None and load.batch_bytes:
        most: int | None = _floor((SAFE * machine.shm_free / load.batch_bytes - 1) / prefetch)
        found.append(Bound(
            name="shared memory", most=most,
            what=f"{size(load.batch_bytes)} a batch, {prefetch} ahead for each worker and one in "
            f"use, within {SAFE:.0%} of {size(machine.shm_free)} free in /dev/shm",
        ))  # fmt: skip
    if machine.memory_free is not None and main is not None:
        each = (worker if worker is not None else main) + prefetch * load.batch_bytes
        most = (
            _floor((SAFE * machine.memory_free - main - load.batch_bytes) / each) if each else None
        )
        how = "measured" if worker is not None else "taken to be as large as the training process"
        found.append(Bound(
            name="memory", most=most,
            what=f"{size(each)} for each worker ({how}) with its batches, and {size(main)} for the "
            f"training process, within {SAFE:.0%} of {size(machine.memory_free)}",
        ))  # fmt: skip
    if machine.open_files is not None and load.tensors:
        most = _floor((machine.open_files - OTHER_FILES) / (prefetch * load.tensors))
        found.append(Bound(
            name="open files", most=most,
            what=f"{load.tensors} a batch, one per tensor, of {machine.open_files:,}",
        ))  # fmt: skip
    if machine.most_workers is not None:
        found.append(Bound(
            name="--max-workers", most=machine.most_workers, what="as you asked",
        ))  # fmt: skip
    return found


def most_workers(found: Iterable[Bound]) -> int | None:
    """The fewest of all bounds; None without any."""
    return min((one.most for one in found if one.most is not None), default=None)


def _floor(found: float) -> int:
    return max(math.floor(found), 0)


def size(count: float) -> str:
    """Bytes in the unit that fits."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.3g} {unit}" if count < 1000 else f"{count:,.0f} {unit}"
        count /= 1000
    raise AssertionError
