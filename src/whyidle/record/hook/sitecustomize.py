"""Starts whyidle's observer in a Python process of an observed job, then hands on.

Python imports the first ``sitecustomize`` on its path. Ours comes first, so the one that it
shadows, if there is one, is run from here, and is what ``sys.modules`` holds afterwards.
"""

import os
import sys


def _observe():
    try:
        import _whyidle_hook

        _whyidle_hook.start()
    except Exception as error:  # noqa: BLE001  the job must not be harmed by what watches it
        print("whyidle: this process is not observed: %r" % (error,), file=sys.stderr)


def _hand_on():
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.dirname(os.path.abspath(__file__))
    others = [path for path in sys.path if os.path.abspath(path or ".") != here]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_observe()
_hand_on()
