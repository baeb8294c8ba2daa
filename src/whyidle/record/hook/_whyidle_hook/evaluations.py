"""Evaluations: from the model's ``eval()`` until ``train()`` calls it back."""

import sys
import time
import weakref

from _whyidle_hook.around import put
from _whyidle_hook.events import now_ns
from _whyidle_hook.places import place_of


class Evaluations:
    """Evaluations of the model that holds what the optimizer trains; parts of it do not count.

    Where nobody calls ``train()`` before the next step, an evaluation ends with the last loader
    that was exhausted in it; without one nobody knows when it ended, and none is told.
    """

    def __init__(self, observer):
        self._observer = observer
        self._guard = observer.guard("evaluation")
        self._switching = False
        self.reset()

    def reset(self):
        """As at the start, in a child that was forked off."""
        self._optimizer = None
        self._begin = None
        self._exhausted_ns = None
        self._models = {}

    @property
    def open(self):
        """Whether an evaluation is under way."""
        return self._begin is not None

    def install(self, torch):
        """Notice ``train()`` and ``eval()``, which calls it, of whole models."""
        original = torch.nn.Module.train

        def train(module, mode=True):
            if self._switching:
                return original(module, mode)
            self._switching = True
            try:
                found = original(module, mode)
            finally:
                self._switching = False
            if self._guard.on and (self._begin is not None) == bool(mode):
                with self._guard:
                    self._switched(module, mode)
            return found

        put(torch.nn.Module, "train", train, original)

    def made(self, optimizer):
        """An optimizer was constructed; the first one tells the model until one has stepped."""
        if self._optimizer is None or self._optimizer() is None:
            self._optimizer = weakref.ref(optimizer)

    def _switched(self, module, mode):
        cpu_ns = time.thread_time_ns()
        at_ns = now_ns()
        if self._is_model(module):
            if mode:
                self._end(at_ns)
            else:
                self._begin = (at_ns, place_of(sys._getframe(2)), type(module).__name__)
                self._exhausted_ns = None
        self._observer.steps.cpu_ns += time.thread_time_ns() - cpu_ns

    def _is_model(self, module):
        trained = self._observer.steps.optimizer()
        if trained is None and self._optimizer is not None:
            trained = self._optimizer()
        if trained is None:
            return next(module.parameters(), None) is not None
        key = (id(module), id(trained))
        known = self._models.get(key)
        if known is None or known[0]() is not module:
            forget = self._models.pop
            own = {id(parameter) for parameter in module.parameters()}
            trains = (id(p) for group in trained.param_groups for p in group["params"])
            known = (weakref.ref(module, lambda _: forget(key, None)), own.issuperset(trains))
            self._models[key] = known
        return known[1]

    def said(self, begins):
        """A framework's callback says that an evaluation begins, or has ended."""
        with self._guard:
            if begins and self._begin is None:
                self._begin = (now_ns(), place_of(sys._getframe(3)), None)
                self._exhausted_ns = None
            elif not begins and self._begin is not None:
                self._end(now_ns())

    def loader_ended(self, at_ns):
        """A loader was exhausted; waits from here on may be those of the next step."""
        if self._begin is not None:
            self._exhausted_ns = at_ns
            if self._observer.steps.done:
                self._observer.steps.wait_ns = 0

    def stepped(self, at_ns):
        """A step ends at ``at_ns``; an evaluation that is still open ended at the latest before."""
        if self._begin is not None:
            if self._exhausted_ns is not None:
                self._end(self._exhausted_ns)
            self._begin = None

    def finish(self, at_ns):
        """The job ends."""
        if self._begin is not None:
            self._end(at_ns)

    def _end(self, at_ns):
        begin_ns, place, model = self._begin
        self._begin = None
        steps = self._observer.steps
        self._observer.events.row("pauses", ["evaluation", begin_ns, at_ns, *place, model])
        if steps.done:
            if at_ns != self._exhausted_ns:
                steps.wait_ns = 0
            steps.last_ns = at_ns
        self._exhausted_ns = None
