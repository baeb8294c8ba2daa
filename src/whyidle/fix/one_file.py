"""Makes the chosen changes to one file, in memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence

import libcst as cst

from whyidle.errors import UsageError
from whyidle.fix.edits import Change, Edit, Left, made
from whyidle.fix.said import NOTHING, Said
from whyidle.fix.source import Source
from whyidle.fix.told import Fixed, Told
from whyidle.fix.wrapping import width_of, wrapped

__all__ = ["Fixed", "Told", "fixed"]


def fixed(
    path: str,
    before: bytes,
    changes: Sequence[Change],
    named: Collection[int] = (),
    start_method: str | None = None,
    said: Said = NOTHING,
) -> Fixed:
    """The file with the changes made. ``named`` are lines, from 1, that a diagnosis points at.

    Where a change could be made at a named line, it is made at named lines only. Lines told are
    those of the file as it is.
    """
    module = _parsed(path, before)
    width = width_of(module.code)
    source = Source(module, start_method, said)
    moved: list[Callable[[int], int]] = []
    done: list[Told] = []
    alone: list[Told] = []
    for change in changes:

        def original(line: int) -> int:
            for back in reversed(moved):
                line = back(line)
            return line

        found = list(change.find(source))
        edits = [f for f in found if isinstance(f, Edit)]
        alone += [
            Told(change.NAME, original(f.line), f.reason) for f in found if isinstance(f, Left)
        ]
        chosen = [e for e in edits if _names(e, named, original)] or edits
        other = "the diagnosis points at other lines"
        alone += [Told(change.NAME, original(e.first), other) for e in edits if e not in chosen]
        done += [Told(change.NAME, original(e.first), e.what) for e in chosen]
        if chosen:
            after, calls = made(source.module, chosen)
            after = wrapped(module.code, cst.parse_module(after.bytes), calls, width)
            moved.append(_back(module.code, after.code))
            module = after
            source = Source(module, start_method, said)
    compile(module.bytes, path, "exec", dont_inherit=True)
    return Fixed(before, module.bytes, sorted(done, key=_line), sorted(alone, key=_line))


def _line(told: Told) -> int:
    return told.line


def _names(edit: Edit, named: Collection[int], original: Callable[[int], int]) -> bool:
    return any(original(edit.first) <= line <= original(edit.last) for line in named)


def _back(before: str, after: str) -> Callable[[int], int]:
    """From a line of the text after an edit to the line of the text before it."""
    from difflib import SequenceMatcher

    matcher = SequenceMatcher(None, before.split("\n"), after.split("\n"), autojunk=False)
    blocks = matcher.get_opcodes()

    def line_before(line: int) -> int:
        for _, old, old_end, new, new_end in blocks:
            if new < line <= new_end:
                return min(old + line - new, max(old_end, 1))
        return line

    return line_before


def _parsed(path: str, text: bytes) -> cst.Module:
    try:
        compile(text, path, "exec", dont_inherit=True, flags=0)
        return cst.parse_module(text)
    except cst.ParserSyntaxError as error:
        raise UsageError(
            f"{path}:{error.raw_line}: this is no Python that can be read, so nothing was changed."
        ) from error
    except SyntaxError as error:
        raise UsageError(
            f"{path}:{error.lineno or 1}: {error.msg}, so nothing was changed.\n"
            f"`python -m py_compile {path}` shows the place. It was read as Python "
            f"{sys.version_info.major}.{sys.version_info.minor}; newer syntax needs whyidle in a "
            "newer Python."
        ) from error
    except (ValueError, UnicodeError, RecursionError) as error:
        raise UsageError(f"{path}: this is no Python text that can be read.") from error
