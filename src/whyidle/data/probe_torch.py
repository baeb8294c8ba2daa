"""Short runs of PyTorch's own loader that a probe measures; imported only where torch is."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate, default_convert

from whyidle.data.probe_storage import waited_for_cpu_s
from whyidle.data.spec import Target, indexed

GRACE_S = 60.0
"""A worker that gives no batch for so long counts as hung."""


@dataclass(frozen=True)
class Run:
    """One short run, in seconds per sample where not said otherwise.

    ``worker_cpu_s`` sums all threads of the workers, ``stalled_s`` is what they were ready to run
    and had no CPU; ``first_s`` are the seconds until the first batch.
    """

    rate: float
    samples: int
    main_cpu_s: float
    worker_cpu_s: float
    stalled_s: float
    first_s: float


class _Again:
    """Gives the same lists of indexes over and over, from where the last run ended."""

    def __init__(self, batches: list[list[int]]) -> None:
        self._endless = itertools.cycle(batches)

    def __iter__(self) -> Iterator[list[int]]:
        return self._endless


class Runs:
    """Runs of one target; ``size`` samples in a batch, fewer than the user's for slow samples."""

    def __init__(self, target: Target, size: int) -> None:
        self._target = target
        self.size = size
        self.collate: Callable[[list[Any]], Any] = target.collate or default_collate
        self._again = None
        if target.batches is not None:
            batches = target.batches
            if size < target.batch_size:
                flat = list(target.flat())
                batches = [flat[at : at + size] for at in range(0, len(flat), size)]
            self._again = _Again(batches)

    def run(self, workers: int, seconds: float) -> Run:
        """Load as fast as it goes for so long, after the first batches of every worker."""
        target = self._target
        options: dict[str, Any] = {"collate_fn": self.collate, "num_workers": workers}
        if workers:
            options |= {
                "worker_init_fn": target.worker_init,
                "multiprocessing_context": target.context,
                "timeout": GRACE_S,
            }
        if self._again is not None:
            loader: Any = DataLoader(target.dataset, batch_sampler=self._again, **options)
        else:
            loader = DataLoader(target.dataset, batch_size=self.size, **options)
        return _timed(loader, workers, seconds, self._count)

    def _count(self, batch: Any) -> int:
        return samples_in(batch) or self.size


def _timed(loader: Any, workers: int, seconds: float, count: Callable[[Any], int]) -> Run:
    begin = time.perf_counter()
    found = iter(loader)
    endless = _endless(loader, found)
    batch = next(endless)
    first_s = time.perf_counter() - begin
    for _ in range(2 * workers):
        batch = next(endless)
    pids = [worker.pid for worker in getattr(found, "_workers", ())]
    main, cpu, stalled = time.process_time(), _cpu_s(pids), _stalled_s(pids)
    samples = batches = 0
    start = time.perf_counter()
    lasted = 0.0
    while lasted < seconds or batches < 3:
        batch = next(endless)
        samples += count(batch)
        batches += 1
        lasted = time.perf_counter() - start
    main, cpu, stalled = (
        time.process_time() - main, _cpu_s(pids) - cpu, _stalled_s(pids) - stalled,
    )  # fmt: skip
    del batch, endless, found
    return Run(
        samples / lasted, samples, main / samples, max(cpu, 0.0) / samples,
        max(stalled, 0.0) / samples, first_s,
    )  # fmt: skip


def _endless(loader: Any, found: Any) -> Iterator[Any]:
    while True:
        empty = True
        for batch in found:
            empty = False
            yield batch
        if empty:
            raise RuntimeError("the loader gave no batch")
        found = iter(loader)


def _cpu_s(pids: list[int]) -> float:
    """CPU seconds of all threads of other processes until now."""
    spent = 0.0
    for pid in pids:
        with suppress(OSError):
            spent += time.clock_gettime((~pid << 3) | 2)
    return spent


def _stalled_s(pids: list[int]) -> float:
    return sum(waited_for_cpu_s(pid) or 0.0 for pid in pids)


class _Ready(IterableDataset[Any]):
    """Has the samples in memory and only collates them: what is left is handing over."""

    def __init__(self, items: list[Any], collate: Callable[[list[Any]], Any]) -> None:
        self._items, self._collate = items, collate

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield self._collate(self._items)


def handed_over(runs: Runs, items: list[Any], seconds: float) -> Run:
    """What one worker can collate and hand over when it has nothing else to do."""
    loader = DataLoader(
        _Ready(items, runs.collate), batch_size=None, num_workers=1, timeout=GRACE_S
    )
    return _timed(loader, 1, seconds, lambda _: len(items))


def collated(runs: Runs, items: list[Any], seconds: float) -> tuple[float, Any]:
    """(seconds per sample to collate in this process, a batch), with memory used before."""
    batch = [runs.collate(items) for _ in range(2)][-1]
    until = time.perf_counter() + seconds
    begin = time.perf_counter()
    times = 0
    while times < 3 or time.perf_counter() < until:
        batch = runs.collate(items)
        times += 1
    return (time.perf_counter() - begin) / times / len(items), batch


def tensors(batch: Any) -> Iterator[torch.Tensor]:
    """All tensors in a batch, however nested."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, dict):
        for one in batch.values():
            yield from tensors(one)
    elif isinstance(batch, list | tuple):
        for one in batch:
            yield from tensors(one)


def samples_in(batch: Any) -> int:
    """The length of the first tensor in a batch; 0 where it has none."""
    for one in tensors(batch):
        if one.dim():
            return int(one.shape[0])
    return 0


def about_tensors(batch: Any, size: int) -> dict[str, Any]:
    """Bytes per sample, tensors, the share that is float32, and whether that looks like 8 bits."""
    found = list(tensors(batch))
    total = sum(one.numel() * one.element_size() for one in found)
    floats = [one for one in found if one.dtype == torch.float32]
    wide = sum(one.numel() * 4 for one in floats)
    largest = max(floats, key=lambda one: one.numel(), default=None)
    return {
        "bytes": total / max(size, 1),
        "tensors": len(found),
        "float_share": wide / total if total else 0.0,
        "eight_bits": largest is not None and eight_bits(largest),
    }


def eight_bits(batch: torch.Tensor) -> bool:
    """Whether float32 pictures hold no more than 256 different values in each channel."""
    if batch.dim() < 3 or batch[0].numel() < 4096:
        return False
    for one in batch[:4]:
        parts = [one] if one.dim() == 2 else [*one] if one.shape[0] <= 4 else [*one.movedim(-1, 0)]
        if len(parts) > 4 or any(len(torch.unique(part)) > 256 for part in parts):
            return False
    return True


def narrow(item: Any) -> Any:
    """The same sample with every float32 tensor or array as 8-bit numbers, for a comparison."""
    if isinstance(item, torch.Tensor):
        return item.to(torch.uint8) if item.dtype == torch.float32 else item
    if isinstance(item, dict):
        return {key: narrow(one) for key, one in item.items()}
    if isinstance(item, tuple):
        made = [narrow(one) for one in item]
        return type(item)(*made) if hasattr(item, "_fields") else tuple(made)
    if isinstance(item, list):
        return [narrow(one) for one in item]
    if getattr(item, "dtype", None) == "float32":
        return item.astype("uint8")
    return item


def converting_s(item: Any) -> float | None:
    """Seconds to make float32 of as many 8-bit numbers as a sample holds, and divide them."""
    convert: Any = default_convert
    wide = [one for one in tensors(convert(item)) if one.dtype == torch.float32]
    if not wide:
        return None
    small = [torch.zeros(one.shape, dtype=torch.uint8) for one in wide]
    begin = time.perf_counter()
    for _ in range(8):
        for small_one in small:
            small_one.to(torch.float32).div_(255)
    return (time.perf_counter() - begin) / 8


def to_device(batch: Any, size: int) -> list[tuple[str, str, float]]:
    """(name, kind, seconds per sample) of pinning and copying to a GPU; empty without one."""
    if not torch.cuda.is_available():
        return []
    found = [one for one in tensors(batch) if one.numel()]
    pinned = [one.pin_memory() for one in found]
    begin = time.perf_counter()
    for _ in range(3):
        pinned = [one.pin_memory() for one in found]
    pin = (time.perf_counter() - begin) / 3 / size
    for one in pinned:
        one.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(3):
        for one in pinned:
            one.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    copy = (time.perf_counter() - begin) / 3 / size
    return [("pin memory", "pin", pin), ("copy to device", "copy", copy)]


def one_thread() -> int:
    """Use one thread for arithmetic, as loader workers do; returns how many it was."""
    had = int(torch.get_num_threads())
    torch.set_num_threads(1)
    return had


def is_indexed(target: Target) -> bool:
    """Whether samples have numbers, now that torch is loaded."""
    return target.batches is not None and indexed(target.dataset)


def copy_rate(size: int = 64 << 20) -> float:
    """Bytes per second that one thread copies into fresh memory."""
    source = bytearray(os.urandom(1 << 16)) * (size >> 16)
    bytes(source)
    begin = time.perf_counter()
    for _ in range(3):
        bytes(source)
    return 3 * size / (time.perf_counter() - begin)
