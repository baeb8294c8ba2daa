"""Counts steps, with what each waited for, and starts and ends profiles between them."""

import threading
import time
import weakref

from _whyidle_hook.events import FLUSH_NS, now_ns

REMEMBERED = 64
"""So many last steps are behind the median that tells how long a step may take."""


class Steps:
    """The steps of this process: a step ends at the optimizer's, or where the job says."""

    def __init__(self, observer):
        self._observer = observer
        self._guard = observer.guard("steps")
        self._profiling = observer.guard("window")
        self.reset()

    def reset(self):
        """As at the start, in a child that was forked off."""
        self.done = 0
        self.last_ns = self._observer.started_ns
        self.wait_ns = 0
        self.cpu_ns = 0
        self.cpu_sum_ns = 0
        self.thread = threading.main_thread().ident
        self.lengths_ns = []
        self._waited_for = {}
        self._waits_told_ns = self.last_ns
        self._optimizer = None
        self._said = False

    def install(self, torch):
        """Notice every step of every optimizer."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(self._optimizer_stepped)

    def optimizer(self):
        """The optimizer whose steps count; None before the first step and once it is gone."""
        return self._optimizer() if self._optimizer is not None else None

    def _optimizer_stepped(self, optimizer, *_):
        if self._said or not self._guard.on:
            return
        with self._guard:
            mine = self.optimizer()
            if mine is None:
                self._optimizer = weakref.ref(optimizer)
                self._observer.sites.describe(optimizer)
            elif mine is not optimizer:
                return
        self._stepped()

    def will_be_said(self):
        """The job will call ``whyidle.step()``; until it does there is no step."""
        self._said = True

    def said(self):
        """The job calls ``whyidle.step()``: steps end where it says, not at the optimizer."""
        self._said = True
        self._stepped()

    def waited(self, begin_ns, end_ns, loader=None):
        """The thread that steps got a batch of a loader; other threads' waits hold no step up."""
        if threading.get_ident() == self.thread:
            self.wait_ns += end_ns - begin_ns
            if self.done and not self._observer.evaluations.open:
                key = (loader, self._observer.windows.profiling)
                self._waited_for[key] = self._waited_for.get(key, 0) + end_ns - begin_ns

    def tell_waits(self):
        """Write for which loaders steps waited since this was called last."""
        waited, self._waited_for = self._waited_for, {}
        for (loader, profiled), lasted_ns in waited.items():
            if loader is not None:
                self._observer.events.row("waits", [loader, lasted_ns, int(profiled)])

    def begin_at(self, at_ns):
        """A pause has ended: the step under way begins here, and has waited for nothing yet."""
        self.last_ns = at_ns
        self.wait_ns = 0

    def _stepped(self):
        cpu_ns = time.thread_time_ns()
        stop = False
        with self._guard:
            at_ns = now_ns()
            observer = self._observer
            observer.evaluations.stepped(at_ns)
            observer.watch.stepped(at_ns)
            number = self.done
            self.done += 1
            if not number:
                self._begin()
            self.cpu_sum_ns += self.cpu_ns
            begun_ns = self.last_ns
            observer.events.row("steps", [number, begun_ns, at_ns, self.wait_ns, self.cpu_ns])
            self.wait_ns = self.cpu_ns = 0
            self._remember(number, at_ns - begun_ns)
            observer.losses.stepped()
            stop = self.done == observer.options.get("stop_after")
            self.last_ns = at_ns
            if at_ns - self._waits_told_ns >= FLUSH_NS:
                self._waits_told_ns = at_ns
                self.tell_waits()
            observer.events.breathe(at_ns)
        self.cpu_ns += time.thread_time_ns() - cpu_ns
        with self._profiling:
            self._profile(stop)
        if stop:
            self._observer.end("stop_after")
            if threading.current_thread() is threading.main_thread():
                raise SystemExit(0)

    def _remember(self, number, length_ns):
        if number < REMEMBERED:
            self.lengths_ns.append(length_ns)
        else:
            self.lengths_ns[number % REMEMBERED] = length_ns

    def _profile(self, stop):
        """Start or end a profile; the time that takes is a pause and in no step."""
        if not self._profiling.on:
            return
        with self._observer.watch.quiet:
            changed = self._observer.windows.boundary(self.done, stop)
        if changed:
            ended_ns = now_ns()
            row = ["profiler", self.last_ns, ended_ns, None, None, None]
            self._observer.events.row("pauses", row)
            self.last_ns = ended_ns

    def _begin(self):
        """At the first step: multiprocessing's children leave without atexit."""
        from multiprocessing import util

        self.thread = threading.get_ident()
        util.Finalize(None, self._observer.end, args=("exit",), exitpriority=10)
