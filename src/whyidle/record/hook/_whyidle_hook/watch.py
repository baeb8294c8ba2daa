"""Notices that no step ends any more, and writes where every thread of the process stands."""

import sys
import threading

from _whyidle_hook.events import now_ns
from _whyidle_hook.places import frames_of, is_users

LEAST_S = 60.0
TIMES_MEDIAN = 20
"""A step may take a minute, or so many times the median of the last ones where that is longer."""

BEFORE_STEPS_S = 300.0
"""From the making of an optimizer to the end of the first step, which compiles and warms up."""

MOST_THREADS = 64


class Quiet:
    """A context in which no step is expected: a profile is being written."""

    def __init__(self):
        self.on = False

    def __enter__(self):
        self.on = True

    def __exit__(self, *_):
        self.on = False
        return False


class Watch:
    """A thread that wakes when a step is overdue; it sleeps until then and is no one's cost.

    It stands back before the process forks, as Python warns of forks with several threads.
    """

    def __init__(self, observer):
        self._observer = observer
        self._guard = observer.guard("watch")
        self.quiet = Quiet()
        asked = observer.options.get("hang")
        self._asked_s = float(asked) if asked else None
        self.reset()

    def reset(self):
        """As at the start, in a child that was forked off: no thread came with it."""
        self._thread = None
        self._wake = threading.Event()
        self._overdue = None
        self._dumped = False
        self._since_ns = 0

    def install(self, torch):
        """Nothing to put in place: the first optimizer or step starts the watch."""

    def prepare(self):
        """An optimizer was made: steps are to be expected."""
        if self._thread is None and not self._dumped and not self._observer.works_for_loader:
            self._since_ns = self._since_ns or now_ns()
            self._start()

    def _start(self):
        with self._guard:
            self._wake = threading.Event()
            self._thread = threading.Thread(
                target=self._run, args=(self._wake,), name="whyidle", daemon=True
            )
            self._thread.start()

    def stand_back(self):
        """Before a fork: end the thread; the next step starts it again."""
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            self._wake.set()
            thread.join(1.0)

    def stepped(self, at_ns):
        """A step ends: it was overdue if the watch has said so."""
        if self._overdue is not None:
            self._told(at_ns)
        if self._thread is None and not self._dumped and self._guard.on:
            self._since_ns = self._since_ns or at_ns
            self._start()

    def finish(self, at_ns):
        """The job ends, and a step that was overdue never came."""
        if self._overdue is not None:
            self._told(at_ns)
        self._wake.set()

    def _told(self, at_ns):
        (begin_ns, file, line, what), self._overdue = self._overdue, None
        self._observer.events.row("pauses", ["stalled", begin_ns, at_ns, file, line, what])

    def _limit_s(self):
        steps = self._observer.steps
        if self._asked_s is not None:
            return self._asked_s
        if not steps.done:
            return BEFORE_STEPS_S
        lengths = sorted(steps.lengths_ns)
        return max(LEAST_S, TIMES_MEDIAN * lengths[len(lengths) // 2] / 1e9)

    def _run(self, wake):
        """Sleep until a step would be overdue; then look whether one has ended meanwhile."""
        with self._guard:
            steps = self._observer.steps
            while not self._dumped:
                since_ns = steps.last_ns if steps.done else self._since_ns
                limit_s = self._limit_s()
                left_s = limit_s - (now_ns() - since_ns) / 1e9
                idle = self.quiet.on or self._observer.evaluations.open
                if left_s > 0 or idle:
                    if wake.wait(max(left_s, 1.0 if idle else 0.01)):
                        return
                    continue
                self._dumped = True
                self._dump(since_ns, limit_s)

    def _dump(self, since_ns, limit_s):
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        mine = threading.get_ident()
        main = self._observer.steps.thread
        threads = []
        place = (None, None)
        for ident, frame in sys._current_frames().items():
            if ident == mine or len(threads) >= MOST_THREADS:
                continue
            frames = frames_of(frame)
            threads.append({"name": names.get(ident), "steps": ident == main, "frames": frames})
            if ident == main:
                place = next(((f, n) for f, n, _ in frames if is_users(f)), place)
        done = self._observer.steps.done
        what = "no step ended after step %d" % (done - 1) if done else "no step ended"
        self._overdue = (since_ns, place[0], place[1], what)
        self._observer.events.say(
            "stacks",
            t_ns=now_ns(),
            since_ns=since_ns,
            limit_s=limit_s,
            steps=done,
            file=place[0],
            line=place[1],
            threads=threads,
        )
