"""Recorded call stacks, innermost call first, one "file(line): function" per line."""

from __future__ import annotations

from functools import lru_cache

from whyidle.views.host import is_user_frame, split_frame


@lru_cache(maxsize=1 << 16)
def user_line(stack: str | None) -> tuple[str | None, int | None]:
    """File and line of the innermost frame in the user's source, else of the innermost in Python.

    (None, None) when no stack was kept or nothing in it is a line of Python.
    """
    frames = [frame for frame in (stack or "").split("\n") if frame]
    python = [frame for frame in frames if _is_python(frame)]
    best = next((frame for frame in python if is_user_frame(frame)), None)
    found = split_frame(best or (python[0] if python else ""))
    return (found[0], found[1]) if found else (None, None)


@lru_cache(maxsize=1 << 16)
def short(stack: str | None, most: int = 3) -> str:
    """The user's innermost frames as one phrase, or what there is; "no stack" without one."""
    frames = [frame for frame in (stack or "").split("\n") if frame]
    user = [frame for frame in frames if _is_python(frame) and is_user_frame(frame)]
    shown = (user or [frame for frame in frames if _is_python(frame)] or frames)[:most]
    return " < ".join(_brief(frame) for frame in shown) or "no stack recorded"


def _brief(frame: str) -> str:
    found = split_frame(frame)
    if found is None:
        return frame[:80]
    file, line, function = found
    return f"{function[:60]} ({file.rsplit('/', 1)[-1]}:{line})"


def _is_python(frame: str) -> bool:
    found = split_frame(frame)
    return found is not None and (found[0].endswith(".py") or found[0].startswith("<"))
