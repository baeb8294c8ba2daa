"""Data loaders: what they are, how long a step waits for them, how long they take to start."""

import sys
import weakref

from _whyidle_hook import batches
from _whyidle_hook.around import put, unseen
from _whyidle_hook.events import now_ns
from _whyidle_hook.places import place_of

LONG_START_NS = 1_000_000
MOST_TOLD = 200
"""Loaders told of one process; a job that makes a new kind of loader forever tells no more."""


class Loaders:
    """The loaders of this process, each with a running number from 0.

    Loaders made at one line, iterated at one line and chosen alike share a number, so that one
    made anew in every epoch is one loader.
    """

    def __init__(self, observer):
        self._observer = observer
        self._guard = observer.guard("loader")
        self.reset()

    def reset(self):
        """As at the start, in a child that was forked off."""
        self._numbers = {}
        self._alike = {}
        self._made = {}

    def install(self, torch):
        """Time ``__next__`` of every loader's iterator, and the making of iterators."""
        from torch.utils.data import dataloader

        base, loader = dataloader._BaseDataLoaderIter, dataloader.DataLoader
        get_next, get_iterator = base.__next__, loader.__iter__
        steps, evaluations = self._observer.steps, self._observer.evaluations

        def __next__(iterator):
            begin_ns = now_ns()
            try:
                found = get_next(iterator)
            except StopIteration:
                end_ns = now_ns()
                steps.waited(begin_ns, end_ns, iterator.__dict__.get("_whyidle_loader"))
                evaluations.loader_ended(end_ns)
                raise
            steps.waited(begin_ns, now_ns(), iterator.__dict__.get("_whyidle_loader"))
            return found

        def __iter__(owner):
            number, place = self._starting(owner)
            begin_ns = now_ns()
            with batches.told_to_children(number):
                found = get_iterator(owner)
            self._started(number, place, begin_ns, now_ns(), found)
            return found

        put(base, "__next__", unseen(__next__), get_next)
        put(loader, "__iter__", unseen(__iter__), get_iterator)

    def made(self, loader, place):
        """A loader was constructed at this place."""
        self._remember(self._made, loader, place)

    @staticmethod
    def _remember(held, loader, value):
        """Keep a value by a loader's identity for as long as it lives."""
        key = id(loader)
        held[key] = (weakref.ref(loader, lambda _: held.pop(key, None)), value)

    @staticmethod
    def _recall(held, loader):
        found = held.get(id(loader))
        return found[1] if found is not None and found[0]() is loader else None

    def _starting(self, loader):
        """The number of a loader that is about to be iterated, and where; None if unknown."""
        if not self._guard.on:
            return None, (None, None)
        with self._guard:
            place = place_of(sys._getframe(2))
            number = self._recall(self._numbers, loader)
            if number is None:
                number = self._number(loader, place)
                self._remember(self._numbers, loader, number)
            return number, place
        return None, (None, None)

    def _number(self, loader, place):
        made = self._recall(self._made, loader) or (None, None)
        about = {
            "batch_size": loader.batch_size,
            "num_workers": loader.num_workers,
            "prefetch_factor": loader.prefetch_factor,
            "pin_memory": bool(loader.pin_memory),
            "persistent_workers": bool(loader.persistent_workers),
            "dataset": type(loader.dataset).__name__,
            "method": getattr(loader.multiprocessing_context, "_name", None),
            "file": place[0],
            "line": place[1],
            "made_file": made[0],
            "made_line": made[1],
        }
        key = tuple(map(repr, about.values()))
        number = self._alike.get(key)
        if number is None:
            number = len(self._alike)
            self._alike[key] = number
            if number < MOST_TOLD:
                try:
                    length = len(loader)
                except Exception:  # noqa: BLE001  an endless dataset, or one that cannot say
                    length = None
                self._observer.events.say("loader", loader=number, length=length, **about)
        return number

    def _started(self, number, place, begin_ns, end_ns, iterator):
        if number is None:
            return
        with self._guard:
            iterator._whyidle_loader = number
            fetcher = getattr(iterator, "_dataset_fetcher", None)
            if fetcher is not None:
                fetcher._whyidle_loader = number
            if end_ns - begin_ns >= LONG_START_NS:
                what = "loader %d" % number
                row = ["loader_start", begin_ns, end_ns, place[0], place[1], what]
                self._observer.events.row("pauses", row)
