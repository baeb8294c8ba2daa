"""Either side of a comparison: a saved diagnosis as it is, evidence diagnosed here and now."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from whyidle.diagnosis import Diagnosis
from whyidle.reports import saved

Progress = Callable[[str, int, int], None]

_SAVED = re.compile(rb'"schema"\s*:\s*"whyidle\.diagnosis/')
_HEAD_BYTES = 65536


def side(path: str, progress: Progress | None) -> Diagnosis:
    """The diagnosis that ``path`` holds, or that its evidence gives."""
    if is_saved(path):
        return saved(path)
    from whyidle.diagnose import diagnose
    from whyidle.readers import read

    return diagnose(read([path], progress))


def is_saved(path: str) -> bool:
    """Whether the file begins like a saved diagnosis."""
    if not Path(path).is_file():
        return False
    try:
        with open(path, "rb") as file:
            return bool(_SAVED.search(file.read(_HEAD_BYTES)))
    except OSError:
        return False


def name_of(path: str, other: str) -> str:
    """The last part of the path; more of it where both sides end alike."""
    mine, theirs = Path(path).parts, Path(other).parts
    for length in range(1, len(mine)):
        if mine[-length:] != theirs[-length:]:
            return str(Path(*mine[-length:]))
    return path
