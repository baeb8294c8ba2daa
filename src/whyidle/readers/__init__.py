"""Readers turn files into Evidence. One module per format, found through ``whyidle.readers``.

A reader module has ``NAME``, ``sniff(path, head) -> bool`` and ``read(path, progress) ->
Evidence``; a stranger's package adds one by an entry point of the group ``whyidle.readers``, and
ours are found by the same door.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path

from whyidle.errors import NothingRecorded, UsageError
from whyidle.model import Evidence
from whyidle.readers.combine import combined
from whyidle.readers.finding import files_of, reader_for

__all__ = ["read"]


def read(
    paths: Sequence[str | PathLike[str]],
    progress: Callable[[str, int, int], None] | None = None,
) -> Evidence:
    """The evidence in files and folders, as one run.

    ``progress`` gets a file's path, the bytes read of it, and its size on disk. A folder gives
    every trace that lies directly in it, or, when none does, every trace below it. Raises an
    error of ``whyidle.errors`` with a sentence for whatever cannot be read, and EvidenceConflict
    for files that cannot be one run.
    """
    if isinstance(paths, str | PathLike):
        paths = [paths]
    if not paths:
        raise UsageError("No evidence was named. Name a trace, or a folder of traces of one job.")
    found = files_of([Path(path) for path in paths])
    parts: list[Evidence] = []
    empty: list[NothingRecorded] = []
    for path in found.files:

        def report(done: int, size: int, name: str = str(path)) -> None:
            if progress is not None:
                progress(name, done, size)

        try:
            parts.append(reader_for(path).read(path, report if progress is not None else None))
        except NothingRecorded as error:
            if path not in found.from_folders:
                raise
            empty.append(error)
    if not parts:
        raise empty[0]
    notes = [f"{error.path}: {error.found}; passed over" for error in empty]
    return combined(parts, [*found.notes, *notes])
