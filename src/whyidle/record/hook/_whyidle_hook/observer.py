"""Everything that is known of this process: one observer, made of one part per kind of fact."""

import os

from _whyidle_hook.around import Guard
from _whyidle_hook.batches import Batches
from _whyidle_hook.evaluations import Evaluations
from _whyidle_hook.events import Events, now_ns
from _whyidle_hook.host import about_process, about_torch
from _whyidle_hook.loaders import Loaders
from _whyidle_hook.losses import Losses
from _whyidle_hook.pauses import Pauses
from _whyidle_hook.sites import Sites
from _whyidle_hook.steps import Steps
from _whyidle_hook.watch import Watch
from _whyidle_hook.windows import Windows


class Observer:
    """One per process, made when torch has been imported. Parts know each other through it."""

    def __init__(self, bundle, options, when_imported):
        self.bundle = bundle
        self.options = options
        self.when_imported = when_imported
        self.started_ns = now_ns()
        self.events = Events(bundle, self.started_ns)
        self._guards = []
        self._forked_off = False
        self._renew()
        self.steps = Steps(self)
        self.evaluations = Evaluations(self)
        self.batches = Batches(self)
        self.loaders = Loaders(self)
        self.pauses = Pauses(self)
        self.sites = Sites(self)
        self.losses = Losses(self)
        self.watch = Watch(self)

    @property
    def _parts(self):
        return (
            ("steps", self.steps),
            ("batches", self.batches),
            ("loader", self.loaders),
            ("evaluation", self.evaluations),
            ("pauses", self.pauses),
            ("site", self.sites),
            ("loss", self.losses),
            ("watch", self.watch),
        )

    def _renew(self):
        self._process = os.getpid()
        self.windows = Windows(self.bundle, self.options, self.events)
        self.works_for_loader = False
        self._broken = set()
        self._ended = False

    def install(self):
        """Put every hook in place; one that cannot be is noted, and the others go on."""
        import torch

        self.events.say("process", role="main", **about_process(self.started_ns))
        self.events.say("torch", **about_torch(torch))
        for name, part in self._parts:
            try:
                part.install(torch)
            except Exception as error:  # noqa: BLE001  an unknown torch costs one hook, not the job
                self.problem(name, error)
        self._apply_remedies(torch)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=self._before_fork, after_in_child=self._forked)
        import atexit

        atexit.register(self.end, "exit")

    def _apply_remedies(self, torch):
        """What a trial asked to change in this job, if it is one."""
        if not self.options.get("remedies"):
            return
        try:
            from _whyidle_hook import remedies

            remedies.install(self, torch)
        except Exception as error:  # noqa: BLE001
            self.problem("remedies", error)

    def guard(self, where):
        """A context whose failures switch it off and are noted as those of ``where``."""
        made = Guard(where, self.problem)
        self._guards.append(made)
        return made

    def problem(self, where, error):
        """A hook failed; said once of each."""
        if where not in self._broken:
            self._broken.add(where)
            self.events.say("problem", where=where, error=repr(error)[:300])

    def said_step(self):
        """The job calls ``whyidle.step()``."""
        self.steps.said()

    def is_worker(self, number, loader, trainer):
        """We are a process that makes batches for a loader of another one, which trains."""
        self.works_for_loader = True
        self.watch.stand_back()
        self.events.on_first(None)
        about = about_process(self.started_ns)
        self.events.say(
            "process", role="worker", worker=number, loader=loader, trainer=trainer, **about
        )

    def _before_fork(self):
        self.watch.stand_back()
        self.events.flush()

    def _forked(self):
        """A child has a file of its own, made when it has something to say."""
        self.started_ns = now_ns()
        self.events = Events(self.bundle, self.started_ns)
        self._forked_off = True
        self._renew()
        for _, part in self._parts:
            part.reset()
        about = about_process(self.started_ns)
        self.events.on_first(lambda: self.events.say("process", role="main", **about))

    def end(self, reason):
        """Finish what is open and write what waits; called once, at the latest at exit."""
        if self._ended or os.getpid() != self._process:
            return
        self._ended = True
        steps = self.steps
        try:
            at_ns = now_ns()
            self.evaluations.finish(at_ns)
            self.watch.finish(at_ns)
            if self._forked_off and not steps.done and not self.works_for_loader:
                self.events.flush()
                return
            self.windows.finish()
            self.losses.read()
            steps.tell_waits()
            cpu_ns = steps.cpu_sum_ns
            self.events.say(
                "end", t_ns=now_ns(), reason=reason, steps=steps.done, hook_cpu_ns=cpu_ns
            )
        except Exception as error:  # noqa: BLE001
            self.problem("end", error)
