"""npy: one memory-mapped array a field, with a row a sample; for samples of one shape and type.

Fields that are ``npy`` files become rows of ``FIELD.npy``, class numbers 64-bit integers, and
``bin`` fields of equal length rows of bytes. ``numpy.load(file, mmap_mode="r")`` reads them.
Anything else is refused with the format that can hold it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, NoReturn

from whyidle.data.formats import Options, Place
from whyidle.data.formats.array_field import Layout, content_of, header_of, layout_of
from whyidle.data.formats.base import PlacedReader
from whyidle.data.formats.mapped import close, mapped
from whyidle.data.records import in_order
from whyidle.errors import DataError, clear


class Writer:
    """Appends a row to the file of each field; the first sample says which fields there are."""

    def __init__(self, path: Path, options: Options, resume: dict[str, Any] | None) -> None:
        """Begin, or cut every file off after the rows of ``resume``."""
        self._folder = path
        self._count: int = resume["samples"] if resume else 0
        told = resume["columns"] if resume else {}
        self._columns = {name: _layout(facts) for name, facts in told.items()}
        for file in path.glob("*.npy"):
            if file.name[: -len(".npy")] not in self._columns:
                file.unlink()
        self._files = {name: self._opened(name) for name in self._columns}

    def _opened(self, name: str) -> IO[bytes]:
        layout = self._columns[name]
        path = self._folder / f"{name}.npy"
        path.touch()
        file = open(path, "r+b")  # noqa: SIM115  lives as long as its writer
        head = _head(layout, 0)
        end = len(head) + self._count * layout.bytes if self._count else 0
        file.seek(0, os.SEEK_END)
        if file.tell() < end:
            file.close()
            raise ValueError(f"{path.name} is shorter than the journal says")
        file.truncate(end)
        file.seek(end)
        if not end:
            file.write(head)
        return file

    def append(self, key: str, fields: Mapping[str, bytes]) -> Place:
        """Append one sample; all rows are looked at before the first is written."""
        ordered = in_order(fields)
        rows = [_row(key, name, content) for name, content in ordered]
        if not self._files:
            if not ordered:
                _refuse(key, "the first sample has no fields")
            self._columns = {
                name: layout for (name, _), (layout, _) in zip(ordered, rows, strict=True)
            }
            self._files = {name: self._opened(name) for name in self._columns}
        names = [name for name, _ in ordered]
        if names != sorted(self._columns):
            _refuse(
                key,
                f"it has the fields {', '.join(names) or 'none'}, and the first sample "
                f"{', '.join(sorted(self._columns))}",
            )
        for name, (layout, _) in zip(names, rows, strict=True):
            if layout != self._columns[name]:
                _refuse(
                    key,
                    f"its field {name} is {layout.shown()}, "
                    f"and that of the first sample {self._columns[name].shown()}",
                )
        for name, (_, row) in zip(names, rows, strict=True):
            self._files[name].write(row)
        self._count += 1
        return Place(0, self._count - 1, sum(map(len, fields.values())))

    def flush(self) -> None:
        """Bring all rows to disk."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())

    def position(self) -> dict[str, Any]:
        """How many rows there are, and what each field is."""
        return {"samples": self._count, "columns": _told(self._columns)}

    def finish(self) -> dict[str, Any]:
        """Write the number of rows into each header, and list the files."""
        for name, file in self._files.items():
            file.seek(0)
            file.write(_head(self._columns[name], self._count))
        self.flush()
        self.close()
        names = [f"{name}.npy" for name in sorted(self._columns)]
        return {
            "shards": [{"file": file, "samples": self._count} for file in names[:1]],
            "columns": _told(self._columns),
        }

    def close(self) -> None:
        """Close all files; what lies on disk stays as it is."""
        for file in self._files.values():
            file.close()


def _row(key: str, name: str, content: bytes) -> tuple[Layout, bytes]:
    found = layout_of(name, content)
    if found is None and name.rpartition(".")[2] == "bin" and content:
        found = Layout("bytes", "|u1", (len(content),)), content
    if found is None or not found[0].bytes:
        _refuse(key, f"its field {name} ({len(content)} bytes) is no such array")
    return found


def _refuse(key: str, found: str) -> NoReturn:
    raise DataError(
        f"{clear(key)}: npy holds only arrays of one shape and type, and {found}.\n"
        "Use --to blob or --to hdf5, which hold samples of any size."
    )


def _head(layout: Layout, rows: int) -> bytes:
    """The header for so many rows; it has the same length for any number of them."""
    return header_of(layout.type, (rows, *layout.shape))


def _told(columns: Mapping[str, Layout]) -> dict[str, list[Any]]:
    return {
        name: [column.kind, column.type, list(column.shape)]
        for name, column in sorted(columns.items())
    }


def _layout(facts: list[Any]) -> Layout:
    return Layout(facts[0], facts[1], tuple(facts[2]))


class Reader(PlacedReader):
    """Reads rows of memory-mapped files, in any order, at the same cost."""

    def file_of(self, shard: int) -> str:
        """The files of all fields: a sample's hash does not tell which of them was changed."""
        return ", ".join(f"{name}.npy" for name in self.manifest.facts["columns"])

    def open_shard(self, path: Path) -> Any:
        """Map the files of all fields; their headers must be those that were written."""
        files = {}
        for name, facts in self.manifest.facts["columns"].items():
            layout = _layout(facts)
            head = _head(layout, self.manifest.shards[0]["samples"])
            held = mapped(path.parent / f"{name}.npy")
            if held[: len(head)] != head:
                raise ValueError(f"the header of {name}.npy was changed")
            files[name] = (layout, len(head), held)
        return files

    def close_shard(self, opened: Any) -> None:
        """Unmap the files."""
        for _, _, held in opened.values():
            close(held)

    def load(self, opened: Any, place: Place) -> dict[str, bytes]:
        """Row ``place.offset`` of each file."""
        fields = {}
        for name, (layout, start, held) in opened.items():
            at = start + place.offset * layout.bytes
            row = held[at : at + layout.bytes]
            if len(row) != layout.bytes:
                raise ValueError(f"{name}.npy is cut short")
            fields[name] = content_of(layout, row)
        return fields
