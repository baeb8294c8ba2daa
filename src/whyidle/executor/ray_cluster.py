"""Judges batches on a Ray cluster: one that runs, or one started here for this job.

Ray's own silent retries are switched off; a batch whose worker or machine is lost is handed to
the cluster once more, and that is said.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from whyidle.errors import ClusterError, UsageError
from whyidle.executor.batches import Batch
from whyidle.executor.work import Outcome, sent
from whyidle.views.windows import Steps

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
STORE_BYTES = 100 << 20
"""Shared memory of a Ray started here; only small tables pass through it."""


def run(batches: list[Batch], on: str, steps: Steps | None) -> Iterator[Outcome]:
    """Judge every batch on the cluster ``on``; "ray" starts one on this machine."""
    ray = _ray(on)
    with _connected(ray, on):
        task = ray.remote(max_retries=0)(sent)
        running = {task.remote(batch, steps): batch for batch in batches}
        again: set[int] = set()
        while running:
            (ready, *_), _ = ray.wait(list(running), num_returns=1)
            batch = running.pop(ready)
            try:
                outcome: Outcome = ray.get(ready)
            except _lost(ray) as error:
                if batch.number in again:
                    raise ClusterError(
                        f"Two Ray workers in a row were lost while judging {batch.ranks}: "
                        f"{_one_line(error)}.\nTry those files alone, beginning with "
                        f"{batch.files[0].path}."
                    ) from error
                again.add(batch.number)
                running[task.remote(batch, steps)] = batch
                continue
            except ray.exceptions.RayError as error:
                raise ClusterError(
                    f"A batch failed on {on}: {_one_line(error)}.\n"
                    "Check that its workers have the same whyidle: pip install 'whyidle[ray]'."
                ) from error
            yield _said(outcome, batch) if batch.number in again else outcome


def _said(outcome: Outcome, batch: Batch) -> Outcome:
    note = f"A Ray worker was lost while judging {batch.ranks}; they were judged again on another."
    return replace(outcome, notes=(*outcome.notes, note))


def _lost(ray: Any) -> tuple[type[Exception], ...]:
    known = ray.exceptions
    return (known.WorkerCrashedError, known.NodeDiedError, known.OutOfMemoryError)


def _one_line(error: Exception) -> str:
    """What an error says at its end, without Ray's colours and paths."""
    lines = [line.strip() for line in _COLOURS.sub("", str(error)).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else 'no message'}"[:300]


def _ray(on: str) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise UsageError(
            f"--on {on} needs Ray, which is not installed.\nInstall it: pip install 'whyidle[ray]'."
        ) from None
    return ray


@contextmanager
def _connected(ray: Any, on: str) -> Iterator[None]:
    """Connect to the cluster unless the caller already is; leave as it was found."""
    if ray.is_initialized():
        yield
        return
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if on == "ray":
            from whyidle.executor.cpus import usable_cpus

            os.environ.setdefault("POLARS_MAX_THREADS", "1")
            ray.init(
                address="local", num_cpus=usable_cpus(), include_dashboard=False,
                object_store_memory=STORE_BYTES, **quiet,
            )  # fmt: skip
        else:
            ray.init(address=on, **quiet)
    except (ConnectionError, OSError, ValueError, RuntimeError) as error:
        raise ClusterError(
            f"No Ray cluster answers at {on} ({_one_line(error)}).\n"
            "Check the address and that it runs (ray status)."
        ) from error
    try:
        yield
    finally:
        ray.shutdown()
