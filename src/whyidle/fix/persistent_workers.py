"""A DataLoader whose workers start anew in each epoch: they live on."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from whyidle.fix import loaders
from whyidle.fix.arguments import argument, is_constant, open_ended, with_value
from whyidle.fix.edits import Edit, Left, at, left, replacing
from whyidle.fix.source import Source

KEY = "persistent_workers"


class PersistentWorkers:
    """Adds persistent_workers=True to loaders that have workers."""

    NAME = KEY
    CAUSES = ("data_loading.worker_restart_per_epoch",)
    SAFE = True
    WHY = (
        "Workers that live on skip their start in each epoch; they keep their memory in between. "
        "From the second epoch on a shuffle comes in another order, one as random."
    )

    def find(self, source: Source) -> Iterator[Edit | Left]:
        """Every loader with workers that end with the epoch."""
        for call in source.calls_of(*loaders.LOADER):
            kept, workers = argument(call, KEY), loaders.workers_of(call)
            if open_ended(call) or workers == 0 or is_constant(kept, "True"):
                continue  # open arguments and no workers are told by loader_workers
            reason = self._reason(source, call, kept, workers)
            if reason is not None:
                yield left(source, call, reason)
                continue
            edit = at(source, call, f"{KEY}=True")
            edit.nodes[call] = replacing(lambda c: with_value(c, argument(c, KEY), KEY, "True"))
            yield edit

    @staticmethod
    def _reason(
        source: Source, call: cst.Call, kept: cst.Arg | None, workers: int | None
    ) -> str | None:
        if kept is not None and not is_constant(kept, "False"):
            return f"{KEY} is decided elsewhere"
        if workers is None:
            return "num_workers is decided elsewhere and may be 0"
        if argument(call, "worker_init_fn") is not None:
            return "worker_init_fn would run once instead of in each epoch"
        return loaders.keeps_workers(source, call)
