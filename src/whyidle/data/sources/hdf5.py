"""HDF5 files that others wrote: every data set with as many rows as the others is a field.

Rows of numbers become ``npy`` (class numbers ``cls`` where the name says so), rows of bytes what
their first bytes say (``jpg``, ``png``, ...), strings ``txt``. Files are opened for reading only,
once in each process, and never across a fork.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from whyidle.data.formats.array_field import NUMBERS, header_of
from whyidle.data.records import BadSample
from whyidle.data.sources.shard_files import (
    LARGEST,
    any_fits,
    digest_of,
    labels_of,
    listed,
)
from whyidle.data.sources.tfrecords import extension_of
from whyidle.errors import DataError, MissingPackage, clear

MAGIC = b"\x89HDF\r\n\x1a\n"
SUFFIXES = (".h5", ".hdf5", ".hdf", ".he5")
LABELS = re.compile(r"(^|[/_.])(cls|class|label|labels|target|targets|y)$", re.IGNORECASE)
"""Names of data sets whose integers are class numbers."""

CACHE = 64 << 20
"""Bytes of unpacked chunks kept a data set: a chunk of many samples is unpacked once, in order."""

_OPEN: list[Any] = []
"""Files opened in this process or a parent: a fork must not close what is its parent's."""


def _h5py() -> Any:
    try:
        import h5py
    except ImportError as error:
        raise MissingPackage("h5py", "HDF5") from error
    return h5py


def _fits(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def knows(spec: str) -> bool:
    """Whether these are HDF5 files: by name, or by the first bytes."""
    if any_fits(spec, _fits):
        return True
    try:
        with open(spec, "rb") as file:
            return file.read(8) == MAGIC
    except OSError:
        return False


def opened(spec: str, wishes: dict[str, Any]) -> HDF5Source:
    """The source; ``largest``: bytes of a row beyond which it counts as bad."""
    return HDF5Source(spec, wishes.get("largest", LARGEST))


class HDF5Source:
    """The rows of files, one file after another."""

    classes: list[str] | None = None

    def __init__(self, spec: str, largest: int = LARGEST) -> None:
        """Look into each file for its data sets; no row is read."""
        self.name, self.largest = spec, largest
        self.files = listed(spec, _fits)
        self.digest = digest_of(self.files)
        self._labels = labels_of(self.files)
        self._sets: list[list[str]] = []
        self._broken: dict[int, str] = {}
        counts = []
        for number, file in enumerate(self.files):
            try:
                names, rows = _data_sets(file)
            except (OSError, RuntimeError, ValueError, KeyError) as error:
                names, rows = [], 1  # one bad sample stands for the file
                self._broken[number] = f"{file.name} cannot be read ({error})"
            self._sets.append(names)
            counts.append(rows)
        self._ends = np.cumsum(counts, dtype=np.int64)
        self._process = os.getpid()
        self._opened: dict[int, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": {}}

    def __len__(self) -> int:
        return int(self._ends[-1])

    def _at(self, i: int) -> tuple[int, int]:
        file = int(np.searchsorted(self._ends, i, "right"))
        return file, i - (int(self._ends[file - 1]) if file else 0)

    def key(self, i: int) -> str:
        """The file's name without its endings, and the number of the row."""
        file, row = self._at(i)
        return f"{self._labels[file]}/{row:08d}"

    def read(self, i: int) -> dict[str, bytes]:
        """Row ``i`` of every data set."""
        file, row = self._at(i)
        if file in self._broken:
            raise BadSample(self.key(i), self._broken[file])
        fields: dict[str, bytes] = {}
        name = ""
        try:
            held = self._file(file)
            for name in self._sets[file]:
                data = held[name]
                if data.dtype.kind != "O" and _row_bytes(data) > self.largest:
                    raise ValueError(f"{_row_bytes(data)} bytes are more than {self.largest}")
                field, content = _field(name, data[row], data.dtype)
                if len(content) > self.largest:
                    raise ValueError(f"{len(content)} bytes are more than {self.largest}")
                fields[field if field not in fields else f"{len(fields)}_{field}"] = content
        except (OSError, RuntimeError, ValueError, KeyError, TypeError, MemoryError) as error:
            where = f"{self.files[file].name}, row {row} of {name or 'the file'}"
            raise BadSample(self.key(i), f"{where}: {error}") from error
        return fields

    def _file(self, file: int) -> Any:
        if self._process != os.getpid():
            self._process, self._opened = os.getpid(), {}
        if file not in self._opened:
            h5py = _h5py()
            held = h5py.File(self.files[file], "r", locking=False, rdcc_nbytes=CACHE)
            _OPEN.append(held)
            self._opened[file] = held
        return self._opened[file]


def _row_bytes(data: Any) -> int:
    return int(np.prod(data.shape[1:], dtype=np.int64)) * int(data.dtype.itemsize)


def _data_sets(file: Path) -> tuple[list[str], int]:
    """The names of the data sets that hold samples, and how many rows they have."""
    h5py = _h5py()
    rows: dict[str, int] = {}

    def look(name: str, found: Any) -> None:
        if isinstance(found, h5py.Dataset) and found.ndim and name != "__key__":
            rows[name] = int(found.shape[0])

    with h5py.File(file, "r", locking=False) as held:
        held.visititems(look)
    if not rows:
        raise DataError(
            f"{clear(str(file))}: holds no data set with rows.\nGive a file in which each field "
            "is a data set with one row a sample."
        )
    (count, names), *others = Counter(rows.values()).most_common()
    if others and others[0][1] == names:
        shown = ", ".join(f"{name} ({size})" for name, size in list(rows.items())[:6])
        raise DataError(
            f"{clear(str(file))}: which data sets hold the samples is not clear: {shown}.\n"
            "Write the ones that belong together into a file of their own."
        )
    return sorted(name for name, size in rows.items() if size == count), count


def _field(name: str, value: Any, dtype: Any) -> tuple[str, bytes]:
    """One row as a field: its name with an ending, and its bytes."""
    if isinstance(value, str):
        return _named(name, "txt"), value.encode("utf-8", "surrogateescape")
    if isinstance(value, bytes):
        return _named(name, extension_of(value)), value
    array = np.asarray(value)
    if array.dtype.kind in "SV" and not array.shape and array.dtype.names is None:
        content = array.tobytes()
        return _named(name, extension_of(content)), content
    if dtype.kind == "O" and array.dtype == np.uint8 and array.ndim == 1:
        content = array.tobytes()
        return _named(name, extension_of(content)), content
    if array.dtype.kind not in NUMBERS:
        raise ValueError(f"values of type {array.dtype} have no field that could hold them")
    if not array.shape and array.dtype.kind in "iu" and LABELS.search(name):
        return _named(name, "cls"), b"%d" % int(array)
    array = np.ascontiguousarray(array).reshape(array.shape)
    return _named(name, "npy"), header_of(array.dtype.str, array.shape) + array.tobytes()


def _named(name: str, extension: str) -> str:
    """The data set's name in plain letters, with the ending."""
    plain = re.sub(r"[^a-z0-9_.]+", "_", name.lower()).strip("_.")[:50] or "x"
    if plain in ("label", "labels", "y", "target", "targets", "class") and extension == "cls":
        return "cls"
    return plain if plain.rpartition(".")[2] == extension else f"{plain}.{extension}"
