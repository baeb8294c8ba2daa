"""The line of the user's own code that a call came from."""

import os
import sysconfig

_HERE = os.path.dirname(os.path.abspath(__file__))
_PATHS = sysconfig.get_paths()
_LIBRARIES = tuple(
    {os.path.join(_PATHS[name], "") for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


def place_of(frame):
    """(file, line) of the innermost frame outside libraries; (None, None) without one."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(("<", _HERE)) and not file.startswith(_LIBRARIES):
            return file, frame.f_lineno
        frame = frame.f_back
    return None, None
