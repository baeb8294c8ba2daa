"""Pauses that lie inside steps: checkpoints, garbage collections, emptied caches."""

import gc
import sys

from _whyidle_hook.around import put
from _whyidle_hook.events import now_ns
from _whyidle_hook.places import place_of

LONG_COLLECTION_NS = 1_000_000
"""Collections that Python starts itself are told from this length on; explicit ones all."""


class Pauses:
    """Rows of ``pauses``: kind, start_ns, end_ns, file, line, what."""

    def __init__(self, observer):
        self._observer = observer
        self._guard = observer.guard("pauses")
        self.reset()

    def reset(self):
        """As at the start, in a child that was forked off."""
        self._collecting_ns = 0
        self._asked = 0

    def install(self, torch):
        """Time ``torch.save``, ``gc.collect``, ``torch.cuda.empty_cache`` and the collector."""
        self._time(torch, "save", "checkpoint", None)
        self._time(gc, "collect", "collector", "gc.collect")
        self._time(torch.cuda, "empty_cache", "collector", "empty_cache")
        torch.cuda.memory.empty_cache = torch.cuda.empty_cache
        gc.callbacks.append(self._collected)

    def _time(self, owner, name, kind, what):
        original = getattr(owner, name)

        def timed(*args, **options):
            self._asked += 1
            begin_ns = now_ns()
            try:
                return original(*args, **options)
            finally:
                end_ns = now_ns()
                self._asked -= 1
                if self._guard.on:
                    with self._guard:
                        place = place_of(sys._getframe(1))
                        row = [kind, begin_ns, end_ns, place[0], place[1], what]
                        self._observer.events.row("pauses", row)

        put(owner, name, timed, original)

    def _collected(self, phase, info):
        if phase == "start":
            self._collecting_ns = 0 if self._asked else now_ns()
        elif self._collecting_ns and self._guard.on:
            with self._guard:
                begin_ns, end_ns = self._collecting_ns, now_ns()
                if end_ns - begin_ns >= LONG_COLLECTION_NS:
                    what = "generation %s" % info.get("generation")
                    row = ["collector", begin_ns, end_ns, None, None, what]
                    self._observer.events.row("pauses", row)
