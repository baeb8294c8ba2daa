"""A DataLoader without workers, or with too few: gets a bounded number, which live on."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from whyidle.fix import loaders, said
from whyidle.fix.arguments import argument, open_ended, with_keyword, with_value
from whyidle.fix.edits import Edit, Left, at, left, replacing
from whyidle.fix.source import Source

TOO_FEW = "data_loading.loader_workers_too_few"


class LoaderWorkers:
    """Adds num_workers, and persistent_workers where nothing was said of it."""

    NAME = "loader_workers"
    CAUSES = (
        TOO_FEW,
        "data_loading.sample_work_too_heavy",
        "data_loading.tokenise_on_the_fly",
        "data_loading.slow_storage",
    )
    SAFE = True
    WHY = (
        "Worker processes load the next batches while the device computes. Content of batches "
        "and how they are drawn stay; random augmentation, and from the second epoch on a shuffle, "
        "draw other numbers than in one process."
    )

    def find(self, source: Source) -> Iterator[Edit | Left]:
        """Every loader that loads in the training process, or was diagnosed to have too few."""
        for call in source.unclear_calls(*loaders.LOADER):
            yield left(source, call, "this DataLoader may be another than that of torch")
        for call in source.calls_of(*loaders.LOADER):
            reason = self._reason(source, call)
            if reason is not None:
                yield left(source, call, reason)
            else:
                found = self._count(source, call)
                if found is not None:
                    yield found

    @staticmethod
    def _reason(source: Source, call: cst.Call) -> str | None:
        if open_ended(call):
            return "its arguments are decided elsewhere (* or **)"
        workers = loaders.workers_of(call)
        if workers is None:
            return "num_workers is decided elsewhere"
        if workers > 0 and TOO_FEW not in source.said.causes:
            return None
        special = loaders.sensitive(call, started=workers > 0)
        if special is not None:
            return f"{special} is set, whose meaning depends on workers"
        return loaders.against_workers(source, call)

    @staticmethod
    def _count(source: Source, call: cst.Call) -> Edit | Left | None:
        """The number of a diagnosis, else a bounded one; more only where a diagnosis asks."""
        now, most = loaders.workers_of(call), said.advised_workers(source.said)
        if now == 0:
            return LoaderWorkers._edit(source, call, most)
        if now is None or TOO_FEW not in source.said.causes:
            return None
        if now < most:
            return LoaderWorkers._edit(source, call, most)
        limit = f"it has {now}, and {most} are the most that suit the CPUs"
        return left(source, call, limit) if now >= most else None

    @staticmethod
    def _edit(source: Source, call: cst.Call, count: int) -> Edit:
        old = argument(call, "num_workers", loaders.WORKERS)
        keep = argument(call, "persistent_workers") is None and (
            loaders.keeps_workers(source, call) is None
        )

        def changed(now: cst.Call) -> cst.Call:
            current = argument(now, "num_workers", loaders.WORKERS) if old else None
            more = with_value(now, current, "num_workers", str(count))
            return with_keyword(more, "persistent_workers", "True") if keep else more

        edit = at(source, call, f"num_workers={count}")
        edit.nodes[call] = replacing(changed)
        return edit
