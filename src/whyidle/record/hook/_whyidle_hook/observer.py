"""Counts steps, times what they wait for, and profiles a few of them."""

import gc
import os
import sys
import threading
import time

from _whyidle_hook.events import Events, now_ns
from _whyidle_hook.host import about_process, about_torch
from _whyidle_hook.places import place_of
from _whyidle_hook.windows import Windows

LONG_COLLECTION_NS = 1_000_000
LONG_START_NS = 1_000_000
LOSSES_HELD = 50
"""Losses are kept as tensors and read together, since each read makes the host wait."""


class Observer:
    """Everything known of this process; one per process, made when torch has been imported."""

    def __init__(self, bundle, options):
        self._bundle = bundle
        self._options = options
        self._started_ns = now_ns()
        self._forked_off = False
        self._reset()

    def _reset(self):
        self._process = os.getpid()
        self.events = Events(self._bundle, self._started_ns)
        self.windows = Windows(self._bundle, self._options, self.events)
        self._steps = 0
        self._last_ns = self._started_ns
        self._wait_ns = 0
        self._cpu_ns = 0
        self._cpu_sum_ns = 0
        self._optimizer = None
        self._said = False
        self._loaders = {}
        self._losses = []
        self._collecting_ns = 0
        self._broken = set()
        self._ended = False
        self._begun = False

    def install(self):
        """Put every hook in place; one that cannot be is noted, and the others go on."""
        import torch

        self.events.say("process", **about_process(self._started_ns))
        self.events.say("torch", **about_torch(torch))
        for name, put in (
            ("steps", self._hook_steps),
            ("loader", self._hook_loader),
            ("checkpoints", self._hook_save),
            ("collector", self._hook_collector),
            ("loss", self._hook_loss),
            ("fork", self._hook_fork),
        ):
            try:
                put(torch)
            except Exception as error:  # noqa: BLE001  an unknown torch costs one hook, not the job
                self._problem(name, error)
        import atexit

        atexit.register(self.end, "exit")

    def _problem(self, where, error):
        if where not in self._broken:
            self._broken.add(where)
            self.events.say("problem", where=where, error=repr(error)[:300])

    # Steps

    def _hook_steps(self, torch):
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(self._optimizer_stepped)

    def _optimizer_stepped(self, optimizer, *_):
        if self._said or "steps" in self._broken:
            return
        try:
            import weakref

            mine = self._optimizer() if self._optimizer is not None else None
            if mine is None:
                self._optimizer = weakref.ref(optimizer)
                self._describe(optimizer)
            elif mine is not optimizer:
                return
        except Exception as error:  # noqa: BLE001
            self._problem("steps", error)
            return
        self._stepped()

    def said_step(self):
        """The job calls ``whyidle.step()``: steps end where it says, not at the optimizer."""
        self._said = True
        self._stepped()

    def _describe(self, optimizer):
        groups = optimizer.param_groups
        parameters = [p for group in groups for p in group["params"]]
        file, line = place_of(sys._getframe(2))
        self.events.say(
            "optimizer",
            name=type(optimizer).__name__,
            lr=_number(groups[0].get("lr")),
            foreach=groups[0].get("foreach"),
            fused=groups[0].get("fused"),
            groups=len(groups),
            parameters=sum(p.numel() for p in parameters),
            bytes=sum(p.numel() * p.element_size() for p in parameters),
            types=sorted({str(p.dtype) for p in parameters}),
            file=file,
            line=line,
        )

    def _stepped(self):
        cpu_ns = time.thread_time_ns()
        stop = False
        try:
            at_ns = now_ns()
            number = self._steps
            self._steps += 1
            if not self._begun:
                self._begin()
            self._cpu_sum_ns += self._cpu_ns
            row = [number, self._last_ns, at_ns, self._wait_ns, self._cpu_ns]
            self.events.row("steps", row)
            self._wait_ns = self._cpu_ns = 0
            if len(self._losses) >= LOSSES_HELD:
                self._read_losses()
            stop = self._steps == self._options.get("stop_after")
            self.events.breathe(at_ns)
            self._last_ns = at_ns
            self._cpu_ns += time.thread_time_ns() - cpu_ns
            self._windows(stop)
        except Exception as error:  # noqa: BLE001  the job must not be harmed by what watches it
            self._problem("steps", error)
        if stop:
            self.end("stop_after")
            if threading.current_thread() is threading.main_thread():
                raise SystemExit(0)

    def _windows(self, stop):
        """Start or end a profile; the time that takes is a pause and in no step."""
        if self.windows.boundary(self._steps, stop):
            ended_ns = now_ns()
            self.events.row("pauses", ["profiler", self._last_ns, ended_ns, None, None, None])
            self._last_ns = ended_ns

    def _begin(self):
        """At the first step: multiprocessing's children leave without atexit."""
        from multiprocessing import util

        self._begun = True
        util.Finalize(None, self.end, args=("exit",), exitpriority=10)

    # What steps wait for

    def _hook_loader(self, torch):
        from torch.utils.data import dataloader

        base, loader = dataloader._BaseDataLoaderIter, dataloader.DataLoader
        get_next, get_iterator = base.__next__, loader.__iter__

        def __next__(iterator):
            begin_ns = now_ns()
            try:
                return get_next(iterator)
            finally:
                self._wait_ns += now_ns() - begin_ns

        def __iter__(owner):
            begin_ns = now_ns()
            found = get_iterator(owner)
            self._loader_started(owner, begin_ns, now_ns())
            return found

        base.__next__ = __next__
        loader.__iter__ = __iter__

    def _loader_started(self, loader, begin_ns, end_ns):
        try:
            file, line = place_of(sys._getframe(2))
            if id(loader) not in self._loaders:
                self._loaders[id(loader)] = len(self._loaders)
                self.events.say(
                    "loader",
                    loader=self._loaders[id(loader)],
                    batch_size=loader.batch_size,
                    num_workers=loader.num_workers,
                    prefetch_factor=loader.prefetch_factor,
                    pin_memory=bool(loader.pin_memory),
                    persistent_workers=bool(loader.persistent_workers),
                    dataset=type(loader.dataset).__name__,
                    method=getattr(loader.multiprocessing_context, "_name", None),
                    file=file,
                    line=line,
                )
            if end_ns - begin_ns >= LONG_START_NS:
                what = "loader %d" % self._loaders[id(loader)]
                row = ["loader_start", begin_ns, end_ns, file, line, what]
                self.events.row("pauses", row)
        except Exception as error:  # noqa: BLE001
            self._problem("loader", error)

    # Pauses

    def _hook_save(self, torch):
        import functools

        save = torch.save

        @functools.wraps(save)
        def timed(*args, **options):
            begin_ns = now_ns()
            try:
                return save(*args, **options)
            finally:
                file, line = place_of(sys._getframe(1))
                self.events.row("pauses", ["checkpoint", begin_ns, now_ns(), file, line, None])

        torch.save = timed

    def _hook_collector(self, torch):
        def called(phase, info):
            if phase == "start":
                self._collecting_ns = now_ns()
            elif self._collecting_ns:
                lasted_ns = now_ns() - self._collecting_ns
                if lasted_ns >= LONG_COLLECTION_NS:
                    what = "generation %s" % info.get("generation")
                    end_ns = self._collecting_ns + lasted_ns
                    row = ["collector", self._collecting_ns, end_ns, None, None, what]
                    self.events.row("pauses", row)

        gc.callbacks.append(called)

    # Loss

    def _hook_loss(self, torch):
        if not self._options.get("loss"):
            return
        backward = torch.Tensor.backward

        def noted(tensor, *args, **options):
            if tensor.numel() == 1 and "loss" not in self._broken:
                self._losses.append((self._steps, tensor.detach()))
            return backward(tensor, *args, **options)

        torch.Tensor.backward = noted

    def _read_losses(self):
        held, self._losses = self._losses, []
        try:
            sums = {}
            for step, tensor in held:
                sums.setdefault(step, []).append(float(tensor))
            for step, values in sums.items():
                value = sum(values) / len(values)
                if value - value == 0:
                    self.events.row("loss", [step, value])
        except Exception as error:  # noqa: BLE001
            self._problem("loss", error)

    # Ends

    def _hook_fork(self, torch):
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=lambda: self.events.flush(), after_in_child=self._forked)

    def _forked(self):
        """A child has a file of its own, made when it has something to say."""
        self._started_ns = now_ns()
        self._forked_off = True
        self._reset()
        self.events.on_first(lambda: self.events.say("process", **about_process(self._started_ns)))

    def end(self, reason):
        """Finish what is open and write what waits; called once, at the latest at exit."""
        if self._ended or os.getpid() != self._process:
            return
        self._ended = True
        if self._forked_off and not self._begun:
            self.events.flush()
            return
        try:
            self.windows.finish()
            self._read_losses()
            self.events.say(
                "end", t_ns=now_ns(), reason=reason, steps=self._steps, hook_cpu_ns=self._cpu_sum_ns
            )
        except Exception as error:  # noqa: BLE001
            self._problem("end", error)


def _number(value):
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
