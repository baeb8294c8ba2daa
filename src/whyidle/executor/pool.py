"""A pool of processes on this machine.

Workers are fresh interpreters, never forks: Polars holds threads and locks that do not survive a
fork, and a fresh one does not run the caller's script again. Each has one thread for Polars and
gets one batch at a time through a pipe. A worker that dies costs its batch a second try in a new
process; a batch that kills two workers is given up with a sentence.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import wait

from whyidle.causes import all_causes
from whyidle.errors import ClusterError
from whyidle.executor.batches import LEAST_BYTES, Batch
from whyidle.executor.cpus import usable_cpus
from whyidle.executor.staff import Worker, start, stop
from whyidle.executor.work import Outcome
from whyidle.views.windows import Steps


def workers_for(batches: list[Batch], jobs: int | None) -> int:
    """How many processes to start; 1 means none beside this one."""
    most = min(jobs or usable_cpus(), len(batches))
    small = jobs is None and sum(batch.bytes for batch in batches) < 2 * LEAST_BYTES
    return 1 if small else max(most, 1)


def run(
    batches: list[Batch], workers: int, steps: Steps | None, early: Sequence[Worker] = ()
) -> Iterator[Outcome]:
    """Judge every batch in one of ``workers`` processes; outcomes come as they are done.

    ``early``: workers that were started already.
    """
    waiting = sorted(batches, key=lambda batch: batch.bytes)
    tried: dict[int, int] = {}
    team = [*early, *(start() for _ in range(workers - len(early)))]
    try:
        for worker in team:
            _give(worker, waiting, steps)
        all_causes()  # the merge asks them; they load while the workers work
        while any(worker.batch is not None for worker in team):
            busy = {worker.pipe: worker for worker in team if worker.batch is not None}
            for pipe in wait(list(busy)):
                worker = busy[pipe]  # type: ignore[index]
                batch = worker.batch
                assert batch is not None
                try:
                    outcome: Outcome | None = worker.pipe.recv()
                except (EOFError, OSError):
                    outcome = None
                if outcome is None:
                    tried[batch.number] = _counted(tried, batch, worker)
                    waiting.append(batch)
                    team.remove(worker)
                    stop(worker)
                    worker = start()
                    team.append(worker)
                _give(worker, waiting, steps)
                if outcome is not None:
                    yield _said(outcome, batch, tried)
    finally:
        for worker in team:
            stop(worker)


def _give(worker: Worker, waiting: list[Batch], steps: Steps | None) -> None:
    """The next batch to a worker; one that has died meanwhile is found out when it is awaited."""
    worker.batch = waiting.pop() if waiting else None
    if worker.batch is not None:
        with contextlib.suppress(OSError):
            worker.pipe.send((worker.batch, steps))


def _counted(tried: dict[int, int], batch: Batch, worker: Worker) -> int:
    """One more lost try of a batch. Raises ClusterError when that was the second."""
    times = tried.get(batch.number, 0) + 1
    if times > 1:
        code = worker.process.wait()
        raise ClusterError(
            f"Two processes in a row died while judging {batch.ranks} ({_end(code)}).\n"
            f"Try those files alone, beginning with {batch.files[0].path}; if memory is short, "
            "use --jobs 1."
        )
    return times


def _end(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"


def _said(outcome: Outcome, batch: Batch, tried: dict[int, int]) -> Outcome:
    if batch.number not in tried:
        return outcome
    note = f"A worker process died while judging {batch.ranks}; they were judged again in a new one"
    return replace(outcome, notes=(*outcome.notes, f"{note}."))
