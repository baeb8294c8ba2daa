"""The event file of one process: one JSON object per line, appended, never rewritten."""

import json
import os
import threading
import time

FLUSH_NS = 1_000_000_000
"""Events wait this long at most, so that a job that is killed loses no more than that."""

_AHEAD_NS = time.time_ns() - time.perf_counter_ns()


def now_ns():
    """Unix nanoseconds of a clock that never goes back."""
    return time.perf_counter_ns() + _AHEAD_NS


class Events:
    """Writes events of this process under ``bundle``/processes; a full disk ends the writing.

    Threads may write at once, and a garbage collection may write in the middle of a writing.
    """

    def __init__(self, bundle, started_ns):
        self._path = os.path.join(bundle, "processes", "%d-%d.jsonl" % (os.getpid(), started_ns))
        self._lock = threading.RLock()
        self._waiting = []
        self._rows = {}
        self._flushed_ns = started_ns
        self._failed = False
        self._first = None

    def on_first(self, then):
        """Call this before the first event, of a process that may never have one."""
        self._first = then

    def say(self, event, **what):
        """One event, written at once."""
        self._introduce()
        what["event"] = event
        with self._lock:
            self._waiting.append(what)
        self.flush()

    def row(self, event, row):
        """One row of an event that comes often; rows are written together."""
        if self._first is not None:
            self._introduce()
        with self._lock:
            rows = self._rows.get(event)
            if rows is None:
                rows = self._rows[event] = []
            rows.append(row)

    def _introduce(self):
        then, self._first = self._first, None
        if then is not None:
            then()

    def breathe(self, at_ns):
        """Write what waits, if it has waited long enough."""
        if at_ns - self._flushed_ns >= FLUSH_NS:
            self.flush()

    def flush(self):
        """Write what waits."""
        with self._lock:
            self._flushed_ns = now_ns()
            rows, self._rows = self._rows, {}
            waiting, self._waiting = self._waiting, []
            if self._failed:
                return
            waiting += [{"event": event, "rows": of} for event, of in rows.items()]
            if not waiting:
                return
            text = "".join(map(_line, waiting))
            try:
                os.makedirs(os.path.dirname(self._path), exist_ok=True)
                with open(self._path, "a", encoding="utf-8", errors="replace") as file:
                    file.write(text)
            except OSError:
                self._failed = True


def _line(event):
    """JSON in UTF-8; what a file's name holds beside Unicode becomes a question mark."""
    return json.dumps(event, separators=(",", ":"), ensure_ascii=False) + "\n"
