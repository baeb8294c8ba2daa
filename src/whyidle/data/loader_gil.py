"""Does reading a sample drop the GIL? Measured, since threads help only where it does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from whyidle.data.loader_crew import Seen

FEW_BATCHES = 8
SOON_S = 1.0
"""An epoch shorter than this gives no hint: it would not be worth a change."""
LATE_S = 0.001
"""Getting the GIL back takes microseconds where nobody holds it; the interpreter takes it from a
thread that runs Python after 5 ms."""
ONE_CPU = 1.3


class LoaderHint(UserWarning):
    """Something measured while loading that is worth a change."""


@dataclass(frozen=True)
class Scaling:
    """Samples per second of one thread, and of ``threads`` together."""

    threads: int
    one: float
    all: float

    @property
    def times(self) -> float:
        """How many times faster the threads are than one."""
        return self.all / self.one

    @property
    def drops_gil(self) -> bool:
        """Whether threads reach most of what as many CPUs would."""
        return self.times >= 1 + 0.6 * (self.threads - 1)


def scaling(
    read: Callable[[int], object], indexes: Sequence[int], threads: int, seconds: float = 0.5
) -> Scaling:
    """Read samples by one thread, by ``threads``, and by one again; ``seconds`` in all.

    The two turns of one thread are averaged, which meets a machine that drifts.
    """
    part = seconds / 3
    first = _rate(read, indexes, 1, part)
    many = _rate(read, indexes, threads, part)
    again = _rate(read, indexes, 1, part)
    return Scaling(threads, (first + again) / 2, many)


def _rate(
    read: Callable[[int], object], indexes: Sequence[int], threads: int, seconds: float
) -> float:
    counts = [0] * threads
    spent = [0.0] * threads
    errors: list[BaseException] = []
    began = time.perf_counter()

    def go(number: int) -> None:
        try:
            at, now = number, began
            while now - began < seconds or not counts[number]:
                read(indexes[at % len(indexes)])
                at += threads
                counts[number] += 1
                now = time.perf_counter()
            spent[number] = now - began
        except BaseException as error:  # noqa: BLE001  raised below
            errors.append(error)

    crew = [threading.Thread(target=go, args=(n,), daemon=True) for n in range(threads)]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()
    if errors:
        raise errors[0]
    return sum(count / took for count, took in zip(counts, spent, strict=True))


def hint(seen: Seen, threads: int) -> str | None:
    """What to say of threads that wait for each other's GIL; None where they do not."""
    wall = seen.ended - seen.began
    if threads < 2 or seen.batches < FEW_BATCHES or wall < SOON_S:
        return None
    late, cpus = seen.gil_s / seen.batches, seen.cpu_s / wall
    if late < LATE_S or cpus > ONE_CPU:
        return None
    return (
        f"Reading a sample holds the GIL: {threads} threads used {cpus:.1f} CPUs, and waited "
        f"{late * 1e3:.1f} ms for the GIL after each batch. Processes would use more CPUs: "
        f"torch.utils.data.DataLoader(..., num_workers={threads})."
    )
