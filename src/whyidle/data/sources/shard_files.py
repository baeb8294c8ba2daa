"""The files behind what a user gave: one file, a folder, a pattern with ``*`` or ``{000..009}``."""

from __future__ import annotations

import glob
import hashlib
import itertools
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from whyidle.errors import DataError, NotFound, UsageError, clear

RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
"""``{000..009}`` as WebDataset and shells write it."""

MANY = 1_000_000
"""More files than a pattern may stand for."""

LARGEST = 1 << 30
"""Bytes of one sample unless told otherwise: what a worker may hold in memory at once."""

OURS = "whyidle-pack.json"
"""What lies in a folder that we packed, whose reader knows more than the files say."""


def listed(spec: str, fits: Callable[[str], bool]) -> list[Path]:
    """The files in the order of their names (of the pattern, for ranges), or our error."""
    if os.path.isdir(spec):
        with os.scandir(spec) as entries:
            found = [entry.path for entry in entries if fits(entry.name) and entry.is_file()]
        found.sort(key=os.fsencode)
    elif os.path.lexists(spec):
        found = [spec]
    else:
        found = [
            name
            for pattern in _ranges(spec)
            for name in (sorted(glob.glob(pattern)) if glob.has_magic(pattern) else [pattern])
        ]
    missing = [name for name in found if not os.path.isfile(name)]
    if missing == found == [spec] or not found:
        raise NotFound(spec)
    if missing:
        raise DataError(
            f"{clear(missing[0])}: no such file, and {len(missing)} of {len(found)} files that "
            f"{clear(spec)} stands for are missing.\nCheck the range."
        )
    return [Path(name) for name in found]


def any_fits(spec: str, fits: Callable[[str], bool]) -> bool:
    """Whether a file, folder or pattern is about such files; a folder that we packed is not."""
    if os.path.isdir(spec):
        if os.path.exists(os.path.join(spec, OURS)):
            return False
        try:
            with os.scandir(spec) as entries:
                return any(fits(entry.name) for entry in entries)
        except OSError:
            return False
    return fits(os.path.basename(spec))


def _ranges(spec: str) -> Iterator[str]:
    parts: list[list[str]] = []
    count, at = 1, 0
    for found in RANGE.finditer(spec):
        first, last, width = int(found[1]), int(found[2]), len(found[1])
        count *= abs(last - first) + 1
        if count > MANY:
            raise UsageError(f"{spec}: stands for over {MANY} files.\nGive a smaller range.")
        step = 1 if last >= first else -1
        numbers = [f"{n:0{width}d}" for n in range(first, last + step, step)]
        parts += [[spec[at : found.start()]], numbers]
        at = found.end()
    parts.append([spec[at:]])
    return ("".join(choice) for choice in itertools.product(*parts))


def digest_of(files: list[Path]) -> str:
    """A digest of names, sizes and times: enough to notice another set of files."""
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        facts = file.stat()
        digest.update(os.fsencode(file.name) + b"\0%d %d\n" % (facts.st_size, facts.st_mtime_ns))
    return "blake2b-128:" + digest.hexdigest()


def labels_of(files: list[Path]) -> list[str]:
    """A short name a file, different for each: its name without endings, or with its folder."""
    for parts in (1, 2, 3):
        labels = ["/".join((*file.parts[-parts:-1], file.name.split(".")[0])) for file in files]
        if len(set(labels)) == len(labels):
            return labels
    return [str(file) for file in files]


class OpenFiles:
    """File descriptors opened when first read, in each process again."""

    def __init__(self, files: list[Path]) -> None:
        """Nothing is opened yet."""
        self.files = files
        self._process = os.getpid()
        self._open: dict[int, int] = {}

    def __getstate__(self) -> dict[str, object]:
        return {"files": self.files, "_process": -1, "_open": {}}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)

    def read(self, file: int, offset: int, length: int) -> bytes:
        """The bytes there are; fewer where the file ends, even one that was cut meanwhile."""
        if self._process != os.getpid():  # reading at offsets shares no position with the parent
            self._process, self._open = os.getpid(), {}
        if file not in self._open:
            if len(self._open) >= 64:
                os.close(self._open.pop(next(iter(self._open))))
            self._open[file] = os.open(self.files[file], os.O_RDONLY | os.O_CLOEXEC)
        pieces, at = [], offset
        while at < offset + length:
            piece = os.pread(self._open[file], min(offset + length - at, 1 << 30), at)
            if not piece:
                break
            pieces.append(piece)
            at += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class Spans:
    """Where samples lie in files, in a few arrays, however many samples there are."""

    def __init__(self) -> None:
        """Begin with none."""
        self._spans: list[tuple[int, int, int]] = []
        self._array = np.zeros((0, 3), np.int64)
        self.broken: dict[int, str] = {}

    def add(self, file: int, start: int, end: int, broken: str | None = None) -> None:
        """Add a sample, or in place of one what was found instead of it."""
        if broken is not None:
            self.broken[len(self)] = broken
        self._spans.append((file, start, end))
        if len(self._spans) >= 1 << 16:
            self.settle()

    def settle(self) -> None:
        """Put what was added last into the array."""
        if self._spans:
            self._array = np.concatenate([self._array, np.array(self._spans, np.int64)])
            self._spans = []

    def __len__(self) -> int:
        return len(self._array) + len(self._spans)

    def __getitem__(self, i: int) -> tuple[int, int, int]:
        """File, first byte, and the byte after the last."""
        file, start, end = self._array[i].tolist()
        return file, start, end
