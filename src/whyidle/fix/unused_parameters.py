"""``find_unused_parameters=True`` of DistributedDataParallel: removed."""

from __future__ import annotations

from collections.abc import Iterator

from whyidle.fix.arguments import argument, is_constant, open_ended, without
from whyidle.fix.edits import Edit, Left, at, left, replacing
from whyidle.fix.source import Source

WRAPPER = (
    "torch.nn.parallel.DistributedDataParallel",
    "torch.nn.parallel.distributed.DistributedDataParallel",
)
KEY = "find_unused_parameters"


class UnusedParameters:
    """Removes the argument, so that backward does not search the graph in each step."""

    NAME = "unused_parameters"
    CAUSES = ("communication.wrapper_host_overhead",)
    SAFE = False
    WHY = (
        "The search walks the whole graph in every step. Without it a model that does leave "
        "parameters unused in some step stops with an error."
    )

    def find(self, source: Source) -> Iterator[Edit | Left]:
        """Every wrapper that searches."""
        for call in source.calls_of(*WRAPPER):
            searches = argument(call, KEY)
            if open_ended(call):
                yield left(source, call, "its arguments are decided elsewhere (* or **)")
            elif searches is None or is_constant(searches, "False"):
                continue
            elif not is_constant(searches, "True"):
                yield left(source, call, f"{KEY} is decided elsewhere")
            else:
                edit = at(source, call, f"{KEY}=True removed")
                edit.nodes[call] = replacing(lambda c: without(c, KEY))
                yield edit
