"""Profiles a few steps, well after the first, and again every N steps when asked to."""

import os
import tempfile

from _whyidle_hook.events import now_ns
from _whyidle_hook.host import rank

FIRST, LENGTH = 10, 4
"""By default steps 10 to 13 are profiled; the one before them warms the profiler up."""

EARLIEST = 2
"""Step 0 is over before anything is known of steps, and step 1 warms the profiler up."""


class Windows:
    """Starts and ends torch.profiler at steps; leaves the user's own profiler alone."""

    def __init__(self, bundle, options, events):
        chosen = options.get("windows") or {}
        self._first = max(EARLIEST, int(chosen.get("first") or FIRST))
        self._length = max(1, int(chosen.get("length") or LENGTH))
        self._every = chosen.get("every")
        self._on = options.get("profile", True)
        self._stacks = options.get("stacks", True)
        self._folder = os.path.join(bundle, "windows")
        self._events = events
        self._profiler = None
        self._begins = self._first
        self._begin_ns = 0
        self._number = 0
        self._seen = 0

    @property
    def profiling(self):
        """Whether a profile is being recorded, or warms up."""
        return self._profiler is not None

    def boundary(self, steps, last):
        """After ``steps`` steps: True when a profile was started or ended here."""
        if not self._on:
            return False
        try:
            if self._profiler is None:
                return not last and steps == self._begins - 1 and self._start(steps)
            self._seen = max(0, steps - self._begins)
            if self._seen >= self._length or last:
                self._stop()
                return True
            self._profiler.step()
            if steps == self._begins:
                self._begin_ns = now_ns()
            return False
        except Exception:
            self._on = False
            self._profiler = None
            raise

    def finish(self):
        """At the end of the job: keep what an open profile has of whole steps."""
        if self._profiler is not None:
            self._stop()

    def _start(self, steps):
        import torch
        from torch.profiler import ProfilerAction, ProfilerActivity, profile

        if torch.autograd._profiler_enabled():
            where = "window"
            self._events.say("problem", where=where, error="another profiler is already running")
            self._on = False
            return False
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        begins = self._begins

        def action(step):
            return ProfilerAction.WARMUP if step < begins else ProfilerAction.RECORD

        self._seen = 0
        self._profiler = profile(
            activities=activities, schedule=action, record_shapes=True, with_stack=self._stacks
        )
        self._profiler.step_num = steps
        self._profiler.current_action = action(steps)
        self._profiler.start()
        return True

    def _stop(self):
        profiler, self._profiler = self._profiler, None
        end_ns = now_ns()
        profiler.stop()
        begins, self._begins = self._begins, -1
        if self._every:
            self._begins = begins + max(int(self._every), self._length + 2)
        if not self._seen:
            return
        which = rank()
        name = "rank%d-" % which if which is not None else ""
        file = "%s%d-%d.pt.trace.json.gz" % (name, os.getpid(), self._number)
        os.makedirs(self._folder, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._folder, prefix=".") as partial:
            whole = os.path.join(partial, file)
            profiler.export_chrome_trace(whole)
            os.replace(whole, os.path.join(self._folder, file))
        self._events.say(
            "window",
            number=self._number,
            first=begins,
            last=begins + self._seen,
            file=file,
            start_ns=self._begin_ns,
            end_ns=end_ns,
        )
        self._number += 1
