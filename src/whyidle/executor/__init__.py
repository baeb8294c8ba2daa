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
    from whyidle.readers.collector import collector_paused

    refuse_nameless(partials)
    with collector_paused():
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
        from whyidle.executor.batches import planned

        batches = planned(paths, jobs)
        outcomes = _outcomes(batches, on, jobs, steps, progress, early)
        yield from _judged(_in_order(outcomes), batches)
    finally:
        for worker in early:
            stop(worker)


def _judged(outcomes: Iterator[Outcome], batches: list[Batch]) -> Iterator[Partial]:
    """What was left behind, with notes; a batch that lacks the steps asked for is left out.

    Each waits for the one after it, since the last batch may be one that a note must tell of.
    """
    held: Partial | None = None
    refused: list[Refusal] = []
    lacking: list[str] = []
    for outcome in outcomes:
        refused += outcome.empty
        if outcome.lacks_steps and outcome.refusal is not None:
            refused.insert(0, outcome.refusal)
            lacking.append(_left_out(batches[outcome.number]))
        if outcome.partial is not None:
            if held is not None:
                yield held
            held = _noted(outcome.partial, outcome.notes)
    if held is None:
        raise refused[0].as_error()
    yield _noted(held, lacking)


def _noted(partial: Partial, notes: Sequence[str]) -> Partial:
    return replace(partial, notes=(*partial.notes, *notes)) if notes else partial


def _left_out(batch: Batch) -> str:
    from whyidle.views.flight_words import ranks_text
    from whyidle.views.windows import WITHOUT_STEPS

    ranks = {file.rank for file in batch.files if file.rank is not None}
    return WITHOUT_STEPS.format(ranks_text(sorted(ranks)) if ranks else batch.ranks)


def _outcomes(
    batches: list[Batch],
    on: str | None,
    jobs: int | None,
    steps: Steps | None,
    progress: Progress | None,
    early: Sequence[Worker],
) -> Iterator[Outcome]:
    """Outcomes in whatever order they come; each knows the number of its batch.

    Raises what a batch raised, but for want of the steps asked for: another batch may have them.
    """
    kind = engine_of(on)
    total = sum(batch.bytes for batch in batches)
    done = 0
    for outcome in _engine(kind, batches, on, jobs, steps, progress, early):
        done += batches[outcome.number].bytes
        if progress is not None and (kind != "here" or len(batches) > 1):
            progress(f"{len(batches)} batches of ranks", done, total)
        yield outcome if outcome.lacks_steps else outcome.raised()


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
    return (work.here(batch, steps, alone) for batch in batches)


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
