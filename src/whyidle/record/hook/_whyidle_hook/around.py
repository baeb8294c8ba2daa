"""Wrapping functions of the job's libraries so that the job does not notice."""

import functools

UNSEEN = "<whyidle: importlib._bootstrap>"
"""The file that wrappers claim to be from. Python's ``warnings`` pass over frames of files with
these two words when they count ``stacklevel``, so a warning keeps the place it would have had."""


def unseen(function):
    """The function, as one that warnings and ``place_of`` look through."""
    function.__code__ = function.__code__.replace(co_filename=UNSEEN)
    return function


def put(owner, name, wrapper, original):
    """Replace ``owner.name``, which is ``original``, by a wrapper that looks like it."""
    setattr(owner, name, functools.wraps(original)(unseen(wrapper)))


def after(owner, name, note):
    """Call ``note(result, args, options)`` after each call of ``owner.name``; it must not raise."""
    original = getattr(owner, name)

    def call(*args, **options):
        result = original(*args, **options)
        note(result, args, options)
        return result

    put(owner, name, call, original)


class Guard:
    """A context in which a failure is noted once, and which is off from then on.

    Only what derives from Exception is held back: what ends the job still ends it.
    """

    __slots__ = ("_problem", "_where", "on")

    def __init__(self, where, problem):
        self._where = where
        self._problem = problem
        self.on = True

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is None:
            return False
        if not isinstance(error, Exception):
            return False
        self.on = False
        self._problem(self._where, error)
        return True
