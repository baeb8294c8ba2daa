"""What observes a training job from inside: steps, loader waits, pauses, profiled windows.

Runs in every Python process of the job, on the standard library and on the torch that the job has
itself; written for Python 3.9 and later. It does nothing until the process imports torch, and
nothing at all without ``WHYIDLE_BUNDLE``, the folder to write to. ``WHYIDLE_OPTIONS`` is a JSON
object: ``profile``, ``stacks``, ``loss`` (bool), ``windows`` {``first``, ``length``, ``every``},
``stop_after`` (steps or null), ``hang`` (seconds or null), ``remedies`` (what a trial changes).

What it writes is described in ``docs/bundle.md``. Every ``*_ns`` is Unix nanoseconds on a clock
that never goes back: the monotonic one, set to the wall clock once per process.
"""

import json
import os
import sys

_observer = None


def start():
    """Watch for the import of torch; called once per process, from ``sitecustomize``."""
    bundle = os.environ.get("WHYIDLE_BUNDLE")
    if not bundle or sys.flags.isolated:
        return
    options = json.loads(os.environ.get("WHYIDLE_OPTIONS") or "{}")
    if "torch" in sys.modules:
        _observe(bundle, options)
    else:
        sys.meta_path.insert(0, _Watcher("torch", lambda: _observe(bundle, options)))


def step():
    """The end of one training step, said by the job itself; from then on only these count."""
    if _observer is not None:
        _observer.said_step()


def steps_will_be_said():
    """The job will say its steps, so the optimizer's own count for nothing from here on."""
    if _observer is not None:
        _observer.steps.will_be_said()


def evaluation(begins):
    """A framework says that an evaluation begins (True) or has ended (False)."""
    if _observer is not None:
        _observer.evaluations.said(begins)


def _observe(bundle, options):
    global _observer
    try:
        from _whyidle_hook.observer import Observer

        _observer = Observer(bundle, options, when_imported)
        _observer.install()
    except Exception as error:  # noqa: BLE001  the job must not be harmed by what watches it
        print("whyidle: this process is not observed: %r" % (error,), file=sys.stderr)


def when_imported(name, then):
    """Call ``then(module)`` once the module has been imported, which may be now or never."""

    def loaded():
        try:
            then(sys.modules[name])
        except Exception as error:  # noqa: BLE001
            _observer.problem(name, error)

    if name in sys.modules:
        loaded()
    else:
        sys.meta_path.insert(0, _Watcher(name, loaded))


class _Watcher:
    """A finder that lets others find a module and calls back when it has been loaded."""

    def __init__(self, name, then):
        self._name = name
        self._then = then
        self._busy = False

    def find_spec(self, name, path=None, target=None):
        """None for every module but ours, whose loader gets to call back."""
        if name != self._name or self._busy:
            return None
        from importlib.util import find_spec

        self._busy = True
        try:
            spec = find_spec(name)
        finally:
            self._busy = False
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def loaded(module):
            load(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._then()

        try:
            spec.loader.exec_module = loaded
        except AttributeError:
            return None
        return spec
