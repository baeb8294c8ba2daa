"""``torch.cuda.empty_cache()`` or ``gc.collect()`` in a loop: removed."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst
from libcst import matchers as m

from whyidle.fix.edits import Edit, Left, at, gone, left
from whyidle.fix.source import Source, names_in

CALLS = ("torch.cuda.empty_cache", "torch.cuda.memory.empty_cache", "gc.collect")
WHOLE = re.compile(r"(run_)?(train|fit|main|evaluate|validate)(_(one_)?(epoch|model|fold))?$")
"""Names of functions that run many batches."""

OWN_SCHEDULE = ("gc.disable", "gc.freeze", "gc.set_threshold")


class EmptyCache:
    """Removes the statement where a loop reaches it in each pass."""

    NAME = "empty_cache"
    CAUSES = ("memory.empty_cache_in_loop", "communication.gc_jitter")
    SAFE = True
    WHY = (
        "Emptying the cache gives memory to the driver that the next step asks back, and each call "
        "waits for the device; Python collects garbage by itself."
    )

    def find(self, source: Source) -> Iterator[Edit | Left]:
        """Every call inside a loop; those elsewhere are left."""
        own = bool(source.calls_of(*OWN_SCHEDULE))
        for call in source.calls_of(*CALLS):
            line = source.alone(call)
            reason = self._reason(source, call, own)
            if reason is not None or line is None:
                yield left(source, call, reason or "this line does something else as well")
                continue
            edit = at(source, line, f"{source.meaning(call.func)}() removed from the loop")
            edit.lines[line] = gone
            yield edit

    @staticmethod
    def _reason(source: Source, call: cst.Call, own: bool) -> str | None:
        if own and source.meaning(call.func) == "gc.collect":
            return "this file schedules the collection of garbage itself"
        loop = source.loop(call)
        if loop is None:
            return "no loop of this function holds it, so it may run once"
        for around in source.within_function(call):
            if around is loop:
                break
            if isinstance(around, cst.ExceptHandler):
                return "it frees memory after an error"
            if isinstance(around, cst.If | cst.Else | cst.Match):
                return "it runs only in some passes of the loop"
        if _holds_many_batches(loop):
            return "its loop runs many batches in each pass, so it costs little"
        return None


def _holds_many_batches(loop: cst.For | cst.While) -> bool:
    """Whether a pass of a loop is an epoch or a whole training: it holds a loop, or calls one."""
    if m.findall(loop.body, m.For() | m.While()):
        return True
    calls = m.findall(loop.body, m.Call(func=m.Name() | m.Attribute()))
    names = (names_in(c.func) for c in calls if isinstance(c, cst.Call))
    return any(WHOLE.match(name) for found in names for name in found)
