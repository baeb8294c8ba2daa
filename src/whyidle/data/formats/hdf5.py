"""HDF5: a data set a field and a row a sample, one sample a chunk.

Arrays of one shape and class numbers lie in data sets of their own type, in chunks that HDF5
itself checks (Fletcher-32); everything else as bytes of variable length, for which HDF5 has no
checksum, so that only ours protects them. A row that does not fit the type of its field's data set
lies in ``FIELD:bytes``. A sample without a field has no chunk there. The keys are in ``__key__``.

A shard cannot be gone on with after a kill: it is written again from its first sample. Equal
samples are equal bytes: no times, one version of the file format (1.10), and nothing is flushed
before the end.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from whyidle.data.formats import Options, Place
from whyidle.data.formats.array_field import Layout, content_of, layout_of
from whyidle.data.formats.base import PlacedReader
from whyidle.data.records import BadSample, in_order
from whyidle.errors import MissingPackage

VERSION = ("v110", "v110")
"""The file format, which HDF5 1.10 (2016) and all later ones read."""

ROWS = 4096
"""Rows by which data sets grow while they are written; at the end they are cut to size."""

TOGETHER, TOGETHER_BYTES = 256, 4 << 20
"""Rows, and bytes, that are handed to HDF5 at once."""

LARGEST = (1 << 32) - (1 << 16)
"""Bytes that a chunk, or bytes of variable length, may have."""

KEYS = "__key__"

RAW = Layout("bytes", "", ())
"""A field as bytes of variable length."""

_OPEN: dict[int, Any] = {}
"""Files that are open for reading: a forked process must not close those of its parent."""


def _h5py() -> Any:
    try:
        import h5py
    except ImportError as error:
        raise MissingPackage("h5py", "HDF5") from error
    return h5py


class Writer:
    """Writes ``shard-00000.h5`` and those that follow it."""

    def __init__(self, path: Path, options: Options, resume: dict[str, Any] | None) -> None:
        """Begin, or remove every shard that was not whole at ``resume``."""
        self._h5py = _h5py()
        self._folder, self._options = path, options
        self._counts: list[int] = list(resume["counts"]) if resume else []
        self._columns: list[dict[str, int]] = list(resume["columns"]) if resume else []
        for file in path.glob("shard-*.h5"):
            number = file.stem[len("shard-") :]
            if number.isdecimal() and int(number) >= len(self._counts):
                file.unlink()
        self._shard: _ShardWriter | None = None

    def append(self, key: str, fields: Mapping[str, bytes]) -> Place:
        """Append one sample as the next row of its shard."""
        if any(len(content) > LARGEST for content in fields.values()):
            raise BadSample(key, "a field has 4 GiB or more, which HDF5 cannot hold in one chunk")
        if self._shard is not None and self._options.full(self._shard.count, self._shard.bytes):
            self._end_shard()
        if self._shard is None:
            path = self._folder / _name(len(self._counts))
            self._shard = _ShardWriter(self._h5py, path)
        self._shard.append(key, fields)
        length = sum(map(len, fields.values()))
        return Place(len(self._counts), self._shard.count - 1, length)

    def _end_shard(self) -> None:
        if self._shard is not None:
            self._counts.append(self._shard.count)
            self._columns.append(self._shard.finish())
            self._shard = None

    def flush(self) -> None:
        """Nothing: a shard reaches the disk when it is whole, or its bytes would depend on when."""

    def position(self) -> dict[str, Any]:
        """The samples and columns of whole shards."""
        return {
            "samples": sum(self._counts),
            "counts": list(self._counts),
            "columns": list(self._columns),
        }

    def finish(self) -> dict[str, Any]:
        """End the last shard and list all of them; ``columns``: per shard, rows of each set."""
        if self._shard is None and not self._counts:
            self._shard = _ShardWriter(self._h5py, self._folder / _name(0))
        self._end_shard()
        return {
            "shards": [
                {"file": _name(shard), "samples": samples}
                for shard, samples in enumerate(self._counts)
            ],
            "columns": self._columns,
        }

    def close(self) -> None:
        """Close the file that is being written; it is written again by who goes on."""
        if self._shard is not None:
            self._shard.close()


def _name(shard: int) -> str:
    return f"shard-{shard:05d}.h5"


class _Column:
    """One data set while it is written: neighbouring rows go to HDF5 together."""

    def __init__(self, h5py: Any, data: Any, layout: Layout) -> None:
        self._h5py, self.data, self.rows = h5py, data, 0
        self._layout = layout
        self._first = self._bytes = 0
        self._pending: list[bytes] = []

    def add(self, row: int, values: bytes) -> None:
        if self._pending and row != self._first + len(self._pending):
            self.write()
        if not self._pending:
            self._first = row
        self._pending.append(values)
        self._bytes += len(values)
        self.rows += 1
        if len(self._pending) == TOGETHER or self._bytes >= TOGETHER_BYTES:
            self.write()

    def write(self) -> None:
        """Hand the pending rows over; when that is depends on nothing but the rows."""
        count = len(self._pending)
        rows: Any = np.empty(count, self.data.dtype)
        if self._layout.kind == "key":
            rows[:] = self._pending
        elif self._layout.kind == "bytes":
            for at, values in enumerate(self._pending):
                rows[at] = np.frombuffer(values, np.uint8)
        else:
            rows = np.frombuffer(b"".join(self._pending), self._layout.type)
            rows = rows.reshape((count, *self._layout.shape))
        if count:  # not data[...] = rows, which takes rows of equal length for a table
            space = self.data.id.get_space()
            start = (self._first,) + (0,) * len(self._layout.shape)
            space.select_hyperslab(start, rows.shape)
            self.data.id.write(self._h5py.h5s.create_simple(rows.shape), space, rows)
        self._pending, self._bytes = [], 0


class _ShardWriter:
    """One file while it is written."""

    def __init__(self, h5py: Any, path: Path) -> None:
        self._h5py, self._path = h5py, path
        self._file = h5py.File(path, "w", libver=VERSION, locking=False)
        self.count = self.bytes = 0
        self._columns: dict[str, _Column] = {}
        self._layouts: dict[str, Layout] = {}
        self._keys = self._column(KEYS, Layout("key", "", ()))

    def append(self, key: str, fields: Mapping[str, bytes]) -> None:
        row = self.count
        if row and row % ROWS == 0:
            for column in (*self._columns.values(), self._keys):
                column.data.resize(row + ROWS, 0)
        spelled = key.encode("utf-8", "surrogateescape")
        self._keys.add(row, spelled.replace(b"\0", b"%00"))  # a string of HDF5 ends at a zero
        for name, content in in_order(fields):
            layout, values = layout_of(name, content) or (RAW, content)
            if layout.kind == "array" and not layout.bytes:
                layout, values = RAW, content
            if self._layouts.setdefault(name, layout) != layout and layout != RAW:
                layout, values = RAW, content
            place = name if self._layouts[name] == layout else f"{name}:bytes"
            if place not in self._columns:
                self._columns[place] = self._column(place, layout)
            self._columns[place].add(row, values)
            self.bytes += len(content)
        self.count += 1

    def _column(self, name: str, layout: Layout) -> _Column:
        """A data set with room for more rows than there are."""
        size = self.count // ROWS * ROWS + ROWS
        chunk: tuple[int, ...]
        if layout.kind == "key":
            chunk, type = (256,), self._h5py.string_dtype()
        elif layout.kind == "bytes":
            chunk, type = (1,), self._h5py.vlen_dtype(np.uint8)
        else:
            chunk, type = (1, *layout.shape), np.dtype(layout.type)
        data = self._file.create_dataset(
            name,
            (size, *layout.shape),
            dtype=type,
            maxshape=(None, *layout.shape),
            chunks=chunk,
            fletcher32=layout.kind in ("array", "number"),
            track_times=False,
        )
        return _Column(self._h5py, data, layout)

    def finish(self) -> dict[str, int]:
        """Cut the data sets to size, close the file, bring it to disk; rows of each set."""
        for column in (*self._columns.values(), self._keys):
            column.write()
            column.data.resize(self.count, 0)
        self._file.close()
        with open(self._path, "rb") as file:
            os.fsync(file.fileno())
        return {name: column.rows for name, column in sorted(self._columns.items())}

    def close(self) -> None:
        self._file.close()


class Reader(PlacedReader):
    """Reads rows through HDF5, which checks the chunks of arrays; a file is opened per process."""

    def open_shard(self, path: Path) -> Any:
        """Open one file and its data sets."""
        shard = int(path.stem[len("shard-") :])
        file = _h5py().File(path, "r", locking=False, rdcc_nbytes=1 << 20)
        _OPEN[id(file)] = file
        count = self.manifest.shards[shard]["samples"]
        rows = self.manifest.facts["columns"][shard]
        sets = [(name.partition(":")[0], file[name], rows[name] == count) for name in rows]
        return file, sets

    def close_shard(self, opened: Any) -> None:
        """Close one file."""
        _OPEN.pop(id(opened[0]), None)
        opened[0].close()

    def load(self, opened: Any, place: Place) -> dict[str, bytes]:
        """Row ``place.offset`` of each data set that has it."""
        fields = {}
        for name, data, everywhere in opened[1]:
            if everywhere or _has(data, place.offset):
                fields[name] = _content(data, place.offset)
        return fields


def _has(data: Any, row: int) -> bool:
    """Whether a data set with one row a chunk has this row."""
    if data.shape[0] <= row:
        return False
    try:
        data.id.read_direct_chunk((row,) + (0,) * (data.ndim - 1))
    except RuntimeError as error:
        if "isn't defined" in str(error) or "not allocated" in str(error):
            return False
        raise ValueError(str(error)) from error
    return True


def _content(data: Any, row: int) -> bytes:
    try:
        values = data[row]
    except (RuntimeError, MemoryError, OverflowError) as error:
        raise ValueError(str(error)) from error
    if data.dtype.kind == "O":
        return bytes(memoryview(values).cast("B")) if len(values) else b""
    values = np.asarray(values)
    kind = "number" if data.name.endswith("cls") else "array"
    return content_of(Layout(kind, data.dtype.str, values.shape), values.tobytes())
