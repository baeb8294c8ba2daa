"""The line of the user's own code that a call came from."""

import os
import sysconfig

_HERE = os.path.join(os.path.abspath(__file__).rsplit(os.sep, 4)[0], "")
"""All of whyidle, whose ``step()`` and callbacks the job calls."""
_PATHS = sysconfig.get_paths()
_LIBRARIES = tuple(
    {os.path.join(_PATHS[name], "") for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_INSTALLED = ("%ssite-packages%s" % (os.sep, os.sep), "%sdist-packages%s" % (os.sep, os.sep))
"""Of a user's own site, of the system, and of an environment below this one."""

_known = {}


def is_users(file):
    """Whether a code object's file is the user's: neither a library's, nor ours, nor no file."""
    known = _known.get(file)
    if known is None:
        libraries = file.startswith(_LIBRARIES) or any(part in file for part in _INSTALLED)
        known = not (libraries or file.startswith(("<", _HERE)))
        _known[file] = known
    return known


def place_of(frame):
    """(file, line) of the innermost frame outside libraries; (None, None) without one."""
    while frame is not None:
        file = frame.f_code.co_filename
        if is_users(file):
            return file, frame.f_lineno
        frame = frame.f_back
    return None, None


def frames_of(frame, most=60):
    """[[file, line, function], ...] from the innermost frame outwards, at most so many."""
    found = []
    while frame is not None and len(found) < most:
        code = frame.f_code
        found.append([code.co_filename, frame.f_lineno, code.co_name])
        frame = frame.f_back
    return found
