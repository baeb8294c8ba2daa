"""Remedies for what interrupts steps: collections, emptied caches, checkpoints."""

import functools
import gc
import sys

from _whyidle_hook.places import _HERE, _LIBRARIES, place_of

SETTLED = 2
"""Optimizer steps after which the collector's schedule is changed."""


def _no_empty_cache(torch, remedy):
    """``gc.collect()`` and ``torch.cuda.empty_cache()`` called by the job's own code do nothing."""

    def silenced(call, nothing):
        @functools.wraps(call)
        def maybe(*args, **options):
            if _from_job(sys._getframe(1)) and remedy.take():
                return nothing
            return call(*args, **options)

        return maybe

    gc.collect = silenced(gc.collect, 0)
    torch.cuda.empty_cache = silenced(torch.cuda.empty_cache, None)


def _from_job(frame):
    """Whether the caller is code of the job, not of a library; our own wrappers do not count."""
    while frame is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return frame is not None and not frame.f_code.co_filename.startswith(("<", *_LIBRARIES))


def _gc_schedule(torch, remedy):
    """What lives after the first steps is never looked at again, and collections are rarer."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    count = [0]

    def stepped(*_):
        count[0] += 1
        if count[0] != SETTLED:
            return
        if not gc.isenabled():
            remedy.refuse("the job has the collector switched off")
        elif remedy.take("threshold %s instead of %d" % (remedy.value, gc.get_threshold()[0])):
            gc.collect()
            gc.freeze()
            gc.set_threshold(int(remedy.value), 20, 100)

    register_optimizer_step_post_hook(stepped)


def _checkpoint_every(torch, remedy):
    """Of the ``torch.save`` calls of one line during training, each Nth is made, and the first."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    every, calls, training = max(1, int(remedy.value)), {}, []
    save = torch.save

    def stepped(*_):
        training[:] = [True]

    register_optimizer_step_post_hook(stepped)

    @functools.wraps(save)
    def sometimes(*args, **options):
        place = place_of(sys._getframe(1))
        before = calls.get(place, 0)
        calls[place] = before + bool(training)
        if before % every and training and remedy.take("one of %d" % every):
            return None
        return save(*args, **options)

    torch.save = sometimes


KNOWN = {
    "no_empty_cache": _no_empty_cache,
    "gc_schedule": _gc_schedule,
    "checkpoint_every": _checkpoint_every,
}
