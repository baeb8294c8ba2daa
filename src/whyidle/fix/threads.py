"""``torch.set_num_threads(64)`` on a machine with fewer CPUs: removed or bounded."""

from __future__ import annotations

import os
from collections.abc import Iterator

import libcst as cst

from whyidle.executor import cpus
from whyidle.fix.arguments import constant
from whyidle.fix.edits import Edit, Left, at, gone, left, replacing
from whyidle.fix.source import Source

SET = "torch.set_num_threads"


class Threads:
    """Takes back a number of threads that this machine has no CPUs for."""

    NAME = "threads"
    CAUSES = ("scheduling.threads_oversubscribed", "scheduling.cpu_allocation")
    SAFE = False
    WHY = (
        "Threads beyond the CPUs that this machine allows take turns and wait for each other. "
        "Sums are split over threads, so another number of them may change last digits."
    )

    def find(self, source: Source) -> Iterator[Edit | Left]:
        """Every call with a number above the CPUs that this process may use."""
        allowed = cpus.usable_cpus()
        for call in source.calls_of(SET):
            (number,) = call.args if len(call.args) == 1 else (None,)
            if number is None or number.star or not isinstance(number.value, cst.Integer):
                yield left(source, call, "the number of threads is decided elsewhere")
                continue
            if number.value.evaluated_value <= allowed:
                continue
            line = source.alone(call)
            if line is None:
                yield left(source, call, "this line does something else as well")
            elif allowed < _affinity():
                what = f"{allowed} threads, as many as the quota of this control group allows"
                edit = at(source, call, what)
                edit.nodes[call] = replacing(
                    lambda c: c.with_changes(
                        args=[c.args[0].with_changes(value=constant(str(allowed)))]
                    )
                )
                yield edit
            else:
                what = f"removed: torch uses the CPUs that it may use, {allowed} here"
                edit = at(source, line, what)
                edit.lines[line] = gone
                yield edit


def _affinity() -> int:
    """CPUs that torch counts by itself: it knows affinity but no quota."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1
