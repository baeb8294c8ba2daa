"""Text: one sample a line of a file, or of all text files in a folder; as text or as tokens."""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from whyidle.data.records import BadSample
from whyidle.data.sources.listing import digest_of_files
from whyidle.errors import DataError, UsageError

ENDINGS = {".txt": "txt", ".text": "txt", ".jsonl": "json", ".ndjson": "json"}
STRETCH = 1 << 24


class Text:
    """Lines without their line ends, ``json`` for .jsonl; with a tokenizer ``npy``, int32.

    Empty lines are no samples. Where each line begins is found once: 8 bytes a line are kept.
    """

    def __init__(self, path: Path, tokenizer: str | None) -> None:
        """Find the lines; ``tokenizer`` is module:callable, text to numbers."""
        self.name = str(path)
        self.classes: list[str] | None = None
        root = path if path.is_dir() else path.parent
        self._files = _files(path) if path.is_dir() else [path]
        if not self._files:
            raise DataError(f"{path}: no text files ({', '.join(ENDINGS)}).")
        self._tokenizer = tokenizer
        if tokenizer is not None:
            _called(tokenizer)
        self.digest = digest_of_files(root, [os.fsencode(p.relative_to(root)) for p in self._files])
        self._starts = [_lines(file) for file in self._files]
        self._ends = np.cumsum([len(starts) for starts in self._starts])
        if not self._ends[-1]:
            raise DataError(f"{path}: no line with text.")
        self._open: dict[int, Any] = {}
        self._encode: Callable[[str], Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}, "_encode": None}

    def __len__(self) -> int:
        return int(self._ends[-1])

    def key(self, i: int) -> str:
        """The file and where in it the line begins."""
        file, start = self._where(i)
        return f"{self._files[file].name}:{start}"

    def _where(self, i: int) -> tuple[int, int]:
        file = int(np.searchsorted(self._ends, i, side="right"))
        first = int(self._ends[file - 1]) if file else 0
        return file, int(self._starts[file][i - first])

    def read(self, i: int) -> dict[str, bytes]:
        """The line, or its tokens."""
        file, start = self._where(i)
        if file not in self._open:
            with open(self._files[file], "rb") as opened:
                self._open[file] = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        text = self._open[file]
        end = text.find(b"\n", start)
        line: bytes = text[start : end if end >= 0 else len(text)].rstrip(b"\r")
        if self._tokenizer is None:
            return {ENDINGS.get(self._files[file].suffix.lower(), "txt"): line}
        return {"npy": self._tokens(i, line)}

    def _tokens(self, i: int, line: bytes) -> bytes:
        from whyidle.data.sources.arrays import npy

        if self._encode is None:
            self._encode = _called(str(self._tokenizer))
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise BadSample(self.key(i), "the line is no UTF-8") from error
        tokens = np.asarray(self._encode(text))
        if tokens.size == 0:
            tokens = tokens.astype(np.int32)
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise BadSample(self.key(i), "the tokenizer did not give a list of whole numbers")
        if tokens.size and not -(2**31) <= int(tokens.min()) <= int(tokens.max()) < 2**31:
            raise BadSample(self.key(i), "a token does not fit in 32 bits")
        return npy(tokens.astype(np.int32))


def _lines(path: Path) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Where each line that holds text begins, in bytes."""
    found = [np.zeros(1, np.uint64)]
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            at = 0
            while piece := file.read(STRETCH):
                ends = np.flatnonzero(np.frombuffer(piece, np.uint8) == 10)
                found.append(ends.astype(np.uint64) + np.uint64(at + 1))
                at += len(piece)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}.") from error
    starts = np.concatenate(found)
    lengths = np.diff(np.append(starts, np.uint64(size + 1))) - np.uint64(1)
    kept = (lengths > 0) & (starts < size)
    short = np.flatnonzero(kept & (lengths == 1))
    if len(short):
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            kept[short] = np.frombuffer(text, np.uint8)[starts[short].astype(np.int64)] != 13
    lines: np.ndarray[Any, np.dtype[np.uint64]] = starts[kept]
    return lines


def _called(name: str) -> Callable[[str], Any]:
    module, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"--tokenizer {name}: cannot be found ({error}).\nName it as module:callable."
        ) from error
    if not callable(found):
        raise UsageError(f"--tokenizer {name}: is not callable.\nIt takes a str, gives numbers.")
    called: Callable[[str], Any] = found
    return called


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in ENDINGS)


def knows(spec: str) -> bool:
    """Whether it is a text file by its ending, or a folder with nothing but such files."""
    if os.path.isdir(spec):
        names = [entry for entry in os.scandir(spec) if not entry.name.startswith(".")]
        return bool(names) and all(Path(entry.name).suffix.lower() in ENDINGS for entry in names)
    return Path(spec).suffix.lower() in ENDINGS and os.path.isfile(spec)


def opened(spec: str, wishes: dict[str, Any]) -> Text:
    """The lines; the wish ``tokenizer`` is module:callable."""
    return Text(Path(spec), wishes.get("tokenizer"))
