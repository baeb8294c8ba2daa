"""Judges a job of many ranks in batches: in this process, in a pool, or on a cluster.

``diagnose_files`` is ``diagnose(read(paths))`` in batches of ranks. Each batch is read where its
files lie and judged by a worker; only what it leaves behind (``whyidle.partial.Partial``) travels,
so that memory does not grow with the number of ranks. Engines:

================================ ==============================================================
``on`` None                      a pool of processes on this machine, when that pays
``tcp://host:port``, ``tls://``  the Dask cluster whose scheduler listens there
``dask``                         a Dask cluster on this machine, started for this job
``ray://host:port``, ``auto``    the Ray cluster there; the one this machine belongs to
``ray``                          Ray on this machine, started for this job
================================ ==============================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING

from whyidle.errors import UsageError

if TYPE_CHECKING:
    from whyidle.diagnosis import Diagnosis
    from whyidle.executor.batches import Batch
    from whyidle.executor.staff import Worker
    from whyidle.executor.work import Outcome, Refusal
    from whyidle.partial import Partial
    from whyidle.views.windows import Steps

__all__ = ["diagnose_files", "map_batches"]

Progress = Callable[[str, int, int], None]


def diagnose_files(
    paths: Sequence[str | PathLike[str]],
    *,
    on: str | None = None,
    jobs: int | None = None,
    steps: Steps | None = None,
    progress: Progress | None = None,
) -> Diagnosis:
    """One diagnosis of the job in these files and folders; see ``map_batches``."""
    partials = list(map_batches(paths, on=on, jobs=jobs, steps=steps, progress=progress))

    from whyidle.executor.one_job import refuse_nameless
    from whyidle.partial import merged

    refuse_nameless(partials)
    return merged(partials)


def map_batches(
    paths: Sequence[str | PathLike[str]],
    *,
    on: str | None = None,
    jobs: int | None = None,
    steps: Steps | None = None,
    progress: Progress | None = None,
) -> Iterator[Partial]:
    """What each batch of ranks leaves behind, in the order of the batches.

    ``on`` names the engine (see the module), ``jobs`` the processes of a pool on this machine;
    by default as many as there are CPUs to use, and none where starting them would not pay.
    ``steps`` (A, B) narrows every rank's window. ``progress`` gets a name, bytes done and bytes in
    all. Raises what reading and judging raise; ClusterError when an engine fails.
    """
    from whyidle.executor.staff import expected, stop

    early = expected(paths, jobs) if engine_of(on) == "here" else []
    try:
        yield from _judged(paths, on, jobs, steps, progress, early)
    finally:
        for worker in early:
            stop(worker)


def _judged(
    paths: Sequence[str | PathLike[str]],
    on: str | None,
    jobs: int | None,
    steps: Steps | None,
    progress: Progress | None,
    early: Sequence[Worker],
) -> Iterator[Partial]:
    from whyidle.executor.batches import planned

    batches = planned(paths, jobs)
    judged = 0
    empty: list[Refusal] = []
    for outcome in _in_order(_outcomes(batches, on, jobs, steps, progress, early)):
        empty += outcome.empty
        if outcome.partial is not None:
            judged += 1
            notes = (*outcome.partial.notes, *outcome.notes)
            yield replace(outcome.partial, notes=notes) if outcome.notes else outcome.partial
    if not judged:
        raise empty[0].as_error()


def _outcomes(
    batches: list[Batch],
    on: str | None,
    jobs: int | None,
    steps: Steps | None,
    progress: Progress | None,
    early: Sequence[Worker],
) -> Iterator[Outcome]:
    """Outcomes in whatever order they come; each knows the number of its batch."""
    kind = engine_of(on)
    total = sum(batch.bytes for batch in batches)
    done = 0
    for outcome in _engine(kind, batches, on, jobs, steps, progress, early):
        done += batches[outcome.number].bytes
        if progress is not None and (kind != "here" or len(batches) > 1):
            progress(f"{len(batches)} batches of ranks", done, total)
        yield outcome.raised()


def _engine(
    kind: str,
    batches: list[Batch],
    on: str | None,
    jobs: int | None,
    steps: Steps | None,
    progress: Progress | None,
    early: Sequence[Worker],
) -> Iterator[Outcome]:
    if kind == "dask":
        from whyidle.executor import dask_cluster

        return dask_cluster.run(batches, str(on), steps)
    if kind == "ray":
        from whyidle.executor import ray_cluster

        return ray_cluster.run(batches, str(on), steps)
    from whyidle.executor import pool, work

    workers = pool.workers_for(batches, jobs)
    if workers > 1:
        return pool.run(batches, workers, steps, early)
    alone = progress if len(batches) == 1 else None
    return (work.judged(batch, steps, alone) for batch in batches)


def engine_of(on: str | None) -> str:
    """Which module runs it: here, dask or ray. Raises UsageError for anything else."""
    if on is None:
        return "here"
    if on == "dask" or on.startswith(("tcp://", "tls://", "ws://", "wss://", "ucx://")):
        return "dask"
    if on in ("ray", "auto") or on.startswith("ray://"):
        return "ray"
    raise UsageError(
        f"--on {on}: no engine is known by this name.\n"
        "Give tcp://HOST:PORT or dask for Dask, ray://HOST:PORT, auto or ray for Ray, or leave it "
        "out to use this machine."
    )


def _in_order(outcomes: Iterator[Outcome]) -> Iterator[Outcome]:
    """The outcomes by number, each as soon as those before it are there."""
    waiting: dict[int, Outcome] = {}
    following = 0
    for outcome in outcomes:
        waiting[outcome.number] = outcome
        while following in waiting:
            yield waiting.pop(following)
            following += 1
