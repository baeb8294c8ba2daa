"""Judges batches on a Dask cluster: one that runs, or one started here for this job.

The scheduler gives the batch of a lost worker to another one by itself; every start of a batch is
logged there, so that a second one is known and said.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from whyidle.errors import ClusterError, UsageError
from whyidle.executor.batches import Batch
from whyidle.executor.work import Outcome, sent
from whyidle.views.windows import Steps

TOPIC = "whyidle"
PATIENCE_S = 30


def run(batches: list[Batch], on: str, steps: Steps | None) -> Iterator[Outcome]:
    """Judge every batch on the cluster ``on``; "dask" starts one on this machine."""
    distributed = _distributed(on)
    with ExitStack() as stack:
        client = _client(distributed, on, len(batches), stack)
        futures = client.map(_logged, batches, steps=steps, pure=False, key="whyidle-batch")
        try:
            for done in distributed.as_completed(futures):
                outcome: Outcome = _result(done, on)
                yield _said(client, outcome, batches[outcome.number])
        finally:
            client.cancel(futures)


def _logged(batch: Batch, steps: Steps | None) -> Outcome:
    """Runs on a worker."""
    from distributed import get_worker

    worker = get_worker()
    worker.log_event(TOPIC, {"batch": batch.number, "worker": worker.address})
    return sent(batch, steps)


def _said(client: Any, outcome: Outcome, batch: Batch) -> Outcome:
    starts = Counter(event["batch"] for _, event in client.get_events(TOPIC))
    if starts[batch.number] < 2:
        return outcome
    note = f"A Dask worker was lost while judging {batch.ranks}; they were judged again on another."
    return replace(outcome, notes=(*outcome.notes, note))


def _result(done: Any, on: str) -> Outcome:
    try:
        found: Outcome = done.result()
    except ModuleNotFoundError as error:
        raise ClusterError(
            f"The workers of {on} cannot import {error.name}.\n"
            "Install the same whyidle there: pip install 'whyidle[dask]'."
        ) from error
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise ClusterError(
            f"A batch failed on {on}: {said}.\nLook into the workers' logs."
        ) from error
    return found


def _distributed(on: str) -> Any:
    try:
        import distributed
    except ImportError:
        raise UsageError(
            f"--on {on} needs Dask, which is not installed.\n"
            "Install it: pip install 'whyidle[dask]'."
        ) from None
    return distributed


def _client(distributed: Any, on: str, batches: int, stack: ExitStack) -> Any:
    if on == "dask":
        from whyidle.executor.cpus import usable_cpus

        os.environ.setdefault("POLARS_MAX_THREADS", "1")
        cluster = distributed.LocalCluster(
            n_workers=min(usable_cpus(), batches), threads_per_worker=1, processes=True,
            dashboard_address=None, silence_logs=50,
        )  # fmt: skip
        return stack.enter_context(distributed.Client(stack.enter_context(cluster)))
    try:
        client = distributed.Client(on, timeout=PATIENCE_S)
    except (OSError, ValueError) as error:
        raise ClusterError(
            f"No Dask scheduler answers at {on} ({error}).\n"
            "Check the address (the scheduler prints it when it starts) and that it runs."
        ) from error
    return stack.enter_context(client)
