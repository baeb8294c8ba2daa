"""A long list of names in little memory: one run of bytes and where each name ends."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from whyidle.errors import DataError


class Names:
    """An unchanging list of names, about as large as their bytes."""

    def __init__(self, names: Iterable[bytes]) -> None:
        """Keep ``names`` in the order they come."""
        joined, ends = bytearray(), [0]
        for name in names:
            joined += name
            ends.append(len(joined))
        self._joined = bytes(joined)
        self._ends = np.array(ends, np.uint64)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, i: int) -> bytes:
        return self._joined[int(self._ends[i]) : int(self._ends[i + 1])]


def walked(folder: Path) -> Iterator[bytes]:
    """Every file below ``folder``, relative to it: each folder's entries in the order of bytes.

    Links are followed, and no folder is entered again below itself. Hidden files are left out.
    """
    root = os.fsencode(folder)
    yield from _below(root, b"", ())


def _below(root: bytes, inside: bytes, above: tuple[tuple[int, int], ...]) -> Iterator[bytes]:
    here = os.path.join(root, inside)
    try:
        facts = os.stat(here)
        entries = sorted(os.scandir(here), key=lambda entry: entry.name)
    except OSError as error:
        raise DataError(f"{os.fsdecode(here)}: cannot be listed: {error.strerror}.") from error
    me = (facts.st_dev, facts.st_ino)
    if me in above:
        return
    for entry in entries:
        if entry.name.startswith(b"."):
            continue
        path = os.path.join(inside, entry.name)
        if entry.is_dir():
            yield from _below(root, path, (*above, me))
        else:
            yield path


def digest_of_files(folder: Path, names: Iterable[bytes]) -> str:
    """A digest of the names, sizes and times of files: changes when the list or a file does."""
    digest = hashlib.blake2b(digest_size=32)
    root = os.fsencode(folder)
    for name in names:
        try:
            facts = os.stat(os.path.join(root, name))
            told = f"{facts.st_size} {facts.st_mtime_ns}"
        except OSError:
            told = "missing"
        digest.update(name + b"\0" + told.encode() + b"\n")
    return "blake2b-256:" + digest.hexdigest()


def digest_of_one_file(path: Path) -> str:
    """A digest of one file's size and time, for files that are too large to be read for it."""
    return digest_of_files(path.parent, [os.fsencode(path.name)])
