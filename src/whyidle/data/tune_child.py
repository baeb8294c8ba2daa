"""Runs one setting of a loader for a while, in a process of its own.

``python -m whyidle.data.tune_child REQUEST RESULT``: both are files of JSON.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from whyidle.data import spec
from whyidle.data.spec import Target
from whyidle.errors import WhyidleError

GRACE_S = 60.0
"""A worker that gives no batch for so long counts as hung."""

MOST_WARM_UP_S = 20.0


class _Endless:
    """The user's batches of indexes, over and over, after some that another run has had."""

    def __init__(self, batches: list[list[int]], skipped: int) -> None:
        self._batches, self._skipped = batches, skipped

    def __iter__(self) -> Iterator[list[int]]:
        begin = self._skipped % len(self._batches)
        return itertools.cycle(self._batches[begin:] + self._batches[:begin])


def loader_of(target: Target, setting: dict[str, Any], skipped: int = 0) -> Any:
    """The target's loader with this setting."""
    from torch.utils.data import DataLoader, default_collate

    from whyidle.data.loader import Loader

    workers = setting["workers"]
    options: dict[str, Any] = {
        "collate_fn": target.collate or default_collate,
        "num_workers": workers,
    }
    if workers:
        options |= {"worker_init_fn": target.worker_init, "prefetch_factor": setting["prefetch"]}
        options["timeout"] = GRACE_S
    if target.batches is not None:
        options["batch_sampler"] = _Endless(target.batches, skipped)
    else:
        options["batch_size"] = target.batch_size
    if setting["loader"] == "Loader":
        return Loader(target.dataset, **options)
    if workers:
        options["multiprocessing_context"] = target.context
    return DataLoader(target.dataset, **options)


def timed(loader: Any, target: Target, setting: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Load as fast as it goes for so long, after the first batches of each worker."""
    from whyidle.data.probe_torch import samples_in

    begin = time.perf_counter()
    found = iter(loader)
    batches = _endless(loader, found)
    next(batches)
    first_s = time.perf_counter() - begin
    for _ in range(setting["workers"] * (setting["prefetch"] + 1)):
        if time.perf_counter() - begin > MOST_WARM_UP_S:
            break
        next(batches)
    samples, lasted, walls = 0, 0.0, list[float]()
    start = before = time.perf_counter()
    while lasted < seconds or len(walls) < 3:
        batch = next(batches)
        now = time.perf_counter()
        walls.append(now - before)
        before, lasted = now, now - start
        samples += samples_in(batch) or target.batch_size
    workers = [one.pid for one in getattr(found, "_workers", ())]
    sizes = [proportional_bytes(pid) for pid in workers]
    walls.sort()
    return {
        "rate": samples / lasted, "first_s": first_s,
        "batch_s": walls[len(walls) // 2], "batch_p95_s": walls[int(0.95 * (len(walls) - 1))],
        "main_bytes": proportional_bytes(os.getpid()),
        "worker_bytes": max((one for one in sizes if one is not None), default=None),
    }  # fmt: skip


def _endless(loader: Any, found: Iterator[Any]) -> Iterator[Any]:
    while True:
        empty = True
        for batch in found:
            empty = False
            yield batch
        if empty:
            raise RuntimeError("the loader gave no batch")
        found = iter(loader)


def proportional_bytes(pid: int) -> int | None:
    """Memory of a process, pages that are shared divided among those that share them."""
    with suppress(OSError):
        found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M)
        if found:
            return int(found[1]) * 1024
    return None


def main(arguments: list[str]) -> None:
    """Read the request, run the setting, write what was seen or why nothing was."""
    request = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    try:
        answer = _answer(request)
    except Exception as error:  # noqa: BLE001  the user's code; the parent tells it
        told = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        answer = {"failed": str(error) if isinstance(error, WhyidleError) else told}
    Path(arguments[1]).write_text(json.dumps(answer), encoding="utf-8")


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    import multiprocessing
    import warnings

    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    target = spec.load(spec.Spec(**request["spec"]), request["batch_size"])
    setting = request["setting"]
    loader = loader_of(target, setting, request["skipped"])
    found = timed(loader, target, setting, request["seconds"])
    context = target.context
    return {
        **found,
        "gpu": torch.cuda.is_available(),
        "start_method": (
            multiprocessing.get_start_method() if context is None
            else context if isinstance(context, str) else context.get_start_method()
        ),
    }  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
