"""What each batch cost the process that made it: the training process, or a loader's worker.

A worker learns which loader it works for from the ``_config`` that every process made by
``multiprocessing`` gets from its parent, however it is started.
"""

import multiprocessing
import os
import time
from contextlib import contextmanager

from _whyidle_hook.around import put, unseen
from _whyidle_hook.events import now_ns

CONFIG = "whyidle_loader"

SHORT_NS = 4_000_000
SELDOM = 8
"""After a batch that took less than that, what the next one reads is asked at every eighth only:
asking takes about 13 microseconds, more than all else that is noted of a batch."""


@contextmanager
def told_to_children(number):
    """While this lasts, children that are started know the loader's number and who trains."""
    try:
        config = multiprocessing.current_process()._config
        config[CONFIG] = [number, os.getpid()]
    except Exception:  # noqa: BLE001  a Python without it: workers do not know their loader
        config = {}
    try:
        yield
    finally:
        config.pop(CONFIG, None)


def _told():
    """(number of the loader, pid that trains) as the parent said; None where it said nothing."""
    told = getattr(multiprocessing.current_process(), "_config", {}).get(CONFIG)
    return tuple(told) if told else (None, None)


class Batches:
    """Times every batch where it is made."""

    def __init__(self, observer):
        self._observer = observer
        self._guard = observer.guard("batches")
        self.reset()

    def reset(self):
        """As at the start, in a child that was forked off."""
        self._worker = None
        self._loader = None
        self._count = 0
        self._last_ns = 0
        self._reading = Reading()

    def install(self, torch):
        """Time the fetchers, and know the workers' loop."""
        from torch.utils.data._utils import fetch, worker

        self._time_collating(fetch._BaseDatasetFetcher)
        self._time_fetching(fetch._MapDatasetFetcher)
        self._time_fetching(fetch._IterableDatasetFetcher)
        loop = worker._worker_loop
        names = loop.__code__.co_varnames[: loop.__code__.co_argcount]

        def _worker_loop(*args, **options):
            self._enter(dict(zip(names, args), **options).get("worker_id"))
            try:
                return loop(*args, **options)
            finally:
                self._leave()

        put(worker, "_worker_loop", _worker_loop, loop)

    def _enter(self, number):
        with self._guard:
            self._loader, trainer = _told()
            self._worker = number
            self._observer.is_worker(number, self._loader, trainer)

    def _leave(self):
        self._observer.end("exit")

    def _time_collating(self, base):
        """Each fetcher collates by a function that says how long it took, and of how much."""
        initialise = base.__init__

        def __init__(fetcher, *args, **options):
            initialise(fetcher, *args, **options)
            with self._guard:
                collate = fetcher.collate_fn

                def timed(data):
                    begin_ns = time.perf_counter_ns()
                    found = collate(data)
                    lasted_ns = time.perf_counter_ns() - begin_ns
                    items = len(data) if fetcher.auto_collation and type(data) is list else None
                    fetcher._whyidle_collated = (lasted_ns, items)
                    return found

                fetcher.collate_fn = unseen(timed)

        put(base, "__init__", __init__, initialise)

    def _time_fetching(self, kind):
        get = kind.fetch

        def fetch(fetcher, index):
            if not self._guard.on:
                return get(fetcher, index)
            entered_ns = time.thread_time_ns() if self._worker is None else 0
            asks = self._last_ns >= SHORT_NS or not self._count % SELDOM
            read = self._reading.now() if asks else None
            cpu_ns, begin_ns = time.thread_time_ns(), now_ns()
            data = get(fetcher, index)
            end_ns, cpu_ns = now_ns(), time.thread_time_ns() - cpu_ns
            with self._guard:
                self._fetched(fetcher, index, begin_ns, end_ns, cpu_ns, read)
            if self._worker is None:
                self._observer.steps.cpu_ns += time.thread_time_ns() - entered_ns - cpu_ns
            return data

        put(kind, "fetch", fetch, get)

    def _fetched(self, fetcher, index, begin_ns, end_ns, cpu_ns, read):
        held = fetcher.__dict__
        collate_ns, items = held.pop("_whyidle_collated", (0, None))
        if items is None and fetcher.auto_collation and hasattr(index, "__len__"):
            items = len(index)
        loader = self._loader if self._worker is not None else held.get("_whyidle_loader")
        count, self._count = self._count, self._count + 1
        self._last_ns = end_ns - begin_ns
        bytes_read = self._reading.since(read)
        row = [loader, self._worker, count, begin_ns, end_ns - begin_ns, cpu_ns, collate_ns]
        events = self._observer.events
        events.row("batches", [*row, bytes_read, items])
        events.breathe(end_ns)


class Reading:
    """Bytes that this process asked the system to read, from ``/proc``; null where there is none.

    They count whether they came from a disk or from memory; pages of mapped files do not.
    """

    def __init__(self):
        self._process = None
        self._file = None

    def now(self):
        """(bytes read until now, bytes that asking takes); None if unknown."""
        if self._process != os.getpid():
            self._open()
        if self._file is None:
            return None
        try:
            text = os.pread(self._file, 64, 0)
            return int(text[7 : text.index(b"\n")]), len(text)
        except (OSError, ValueError):
            self._file = None
            return None

    def since(self, before):
        """Bytes read since an earlier ``now()``; None if unknown."""
        after = self.now() if before is not None else None
        return max(after[0] - before[0] - before[1], 0) if after is not None else None

    def _open(self):
        self._process = os.getpid()
        try:
            self._file = os.open("/proc/self/io", os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except OSError:
            self._file = None
