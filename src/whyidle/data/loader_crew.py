"""The threads of a loader: each takes a task, fetches a whole batch, and puts it where it is asked.

Nothing here refers to the loader or to its iterator, so an iterator that is dropped can stop its
threads.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from whyidle.errors import DataError

LEAVE_S = 30.0
"""How long to wait for threads that are asked to go and still read; they are daemons beyond it."""


@dataclass(frozen=True)
class Task:
    """One batch to fetch: its number in the epoch, that of its first sample, and its indexes."""

    number: int
    first: int
    indexes: Any


@dataclass(frozen=True)
class Fetched:
    """What became of a task: a batch, an error of the user's code, or the end of the data.

    ``state`` is that of an iterable data set right after the batch was drawn from it.
    """

    batch: Any = None
    error: BaseException | None = None
    end: bool = False
    state: Any = None


@dataclass
class Seen:
    """What threads noticed, summed over them; seconds."""

    batches: int = 0
    busy_s: float = 0.0
    cpu_s: float = 0.0
    gil_s: float = 0.0
    began: float = 0.0
    ended: float = 0.0


Fetch = Callable[[Task], Fetched]


class Crew:
    """Threads that fetch batches until they are stopped."""

    def __init__(self, threads: int, fetch: Fetch, inside: Callable[[int], Any]) -> None:
        """Start them; ``inside`` gives what each thread works within (a context manager)."""
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._done = threading.Condition(self._lock)
        self._tasks: deque[Task] = deque()
        self._fetched: dict[int, Fetched] = {}
        self._failed: BaseException | None = None
        self._stopped = False
        self._ready = 0
        self.seen = Seen(began=time.perf_counter())
        self._threads = [
            threading.Thread(
                target=self._run, args=(number, fetch, inside), name=f"loader-{number}", daemon=True
            )
            for number in range(threads)
        ]
        try:
            for thread in self._threads:
                thread.start()
            with self._lock:
                while self._ready < threads:
                    self._done.wait()
        except BaseException:
            self.stop()
            raise

    def give(self, task: Task) -> None:
        """One more batch to fetch."""
        with self._lock:
            self._tasks.append(task)
            self._work.notify()

    def take(self, number: int | None, timeout_s: float) -> tuple[int, Fetched]:
        """The batch of that number, or any that is there (the lowest); waits for it."""
        until = time.monotonic() + timeout_s if timeout_s else None
        with self._lock:
            while True:
                if self._failed is not None:
                    raise self._failed
                found = number if number is not None else min(self._fetched, default=None)
                if found is not None and found in self._fetched:
                    return found, self._fetched.pop(found)
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    raise DataError(
                        f"The loader waited {timeout_s:g} s for a batch and none came.\n"
                        "Raise timeout, or look for what the data set waits for with py-spy dump."
                    )
                self._done.wait(left)

    def stop(self, wait_s: float = LEAVE_S) -> None:
        """Let threads finish the sample they read, drop what is fetched, and wait for them."""
        with self._lock:
            self._stopped = True
            self._tasks.clear()
            self._fetched.clear()
            self._work.notify_all()
        until = time.monotonic() + wait_s
        for thread in self._threads:
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))

    @property
    def stopped(self) -> bool:
        """Whether threads were asked to go; long reads look at it between samples."""
        return self._stopped

    def _run(self, number: int, fetch: Fetch, inside: Callable[[int], Any]) -> None:
        try:
            with inside(number):
                self._say_ready()
                while (task := self._next()) is not None:
                    self._put(task.number, self._timed(fetch, task))
        except BaseException as error:  # noqa: BLE001  raised in the main thread
            with self._lock:
                self._failed = error
                self._ready = len(self._threads)
                self._done.notify_all()

    def _say_ready(self) -> None:
        with self._lock:
            self._ready += 1
            self._done.notify_all()

    def _next(self) -> Task | None:
        with self._lock:
            while not self._tasks and not self._stopped:
                self._work.wait()
            return None if self._stopped else self._tasks.popleft()

    def _put(self, number: int, fetched: Fetched) -> None:
        with self._lock:
            if not self._stopped:
                self._fetched[number] = fetched
                self._done.notify_all()

    def _timed(self, fetch: Fetch, task: Task) -> Fetched:
        began, cpu = time.perf_counter(), time.thread_time()
        fetched = fetch(task)
        ended, used = time.perf_counter(), time.thread_time() - cpu
        time.sleep(0)  # lets the GIL go; how late it comes back tells who holds it
        late = time.perf_counter() - ended
        with self._lock:
            seen = self.seen
            seen.batches += 1
            seen.busy_s += ended - began
            seen.cpu_s += used
            seen.gil_s += late
            seen.ended = ended
        return fetched
