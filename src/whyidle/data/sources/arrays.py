"""NumPy arrays: the rows of a .npy, of the arrays in a .npz, or of the .npy files in a folder.

Nothing is read before it is asked for: files are memory-mapped, also the members of an .npz that
are stored and not compressed.
"""

from __future__ import annotations

import io
import os
import re
import struct
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np

from whyidle.data.sources.listing import digest_of_files
from whyidle.errors import DataError

LABELS = frozenset(("label", "labels", "y", "target", "targets", "cls", "class", "classes"))

Array = np.ndarray[Any, Any]


class Arrays:
    """One sample a row: ``npy`` for a single array, else ``NAME.npy``, and ``cls`` for labels.

    Labels are whole numbers in one dimension under a name such as labels or y. All arrays have
    the same number of rows.
    """

    def __init__(self, path: Path) -> None:
        """Map the arrays, and see that they have the same number of rows."""
        self.name, self._path = str(path), path
        self.classes: list[str] | None = None
        self._open: dict[str, Array] | None = None
        arrays = self._arrays()
        rows = {name: len(array) for name, array in arrays.items()}
        if len(set(rows.values())) != 1:
            told = ", ".join(f"{name} {count}" for name, count in rows.items()) or "none"
            raise DataError(f"{path}: arrays with different numbers of rows: {told}.")
        self._count = next(iter(rows.values()))
        files = _files(path)
        self.digest = digest_of_files(files[0].parent, [os.fsencode(file.name) for file in files])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": None}

    def __len__(self) -> int:
        return self._count

    def key(self, i: int) -> str:
        """The number of the row."""
        return f"{i:09d}"

    def read(self, i: int) -> dict[str, bytes]:
        """Row ``i`` of each array, each as the bytes of a .npy file."""
        arrays = self._arrays()
        fields = {}
        for name, array in arrays.items():
            if name in LABELS and array.ndim == 1 and array.dtype.kind in "iu":
                fields["cls"] = str(int(array[i])).encode()
            else:
                field = "npy" if len(arrays) == 1 or name == "npy" else f"{name}.npy"
                fields[field] = npy(np.asarray(array[i]))
        return fields

    def _arrays(self) -> dict[str, Array]:
        if self._open is None:
            self._open = {}
            for file in _files(self._path):
                if file.suffix == ".npz":
                    self._open.update(_members(file))
                else:
                    self._open[_field(file.stem)] = _mapped(file)
        return self._open


def npy(array: Array) -> bytes:
    """The array as the bytes of a .npy file."""
    out = io.BytesIO()
    np.lib.format.write_array(out, np.ascontiguousarray(array).reshape(array.shape), version=(1, 0))
    return out.getvalue()


def _field(stem: str) -> str:
    return re.sub(r"[^a-z0-9_]", "_", stem.lower()).lstrip("_") or "array"


def _files(path: Path) -> list[Path]:
    return sorted(path.glob("*.npy")) if path.is_dir() else [path]


def _mapped(path: Path) -> Array:
    try:
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path}: cannot be read as an array ({error}).") from error
    if array.ndim == 0:
        raise DataError(f"{path}: holds one number, not rows of samples.")
    return array


def _members(path: Path) -> dict[str, Array]:
    """The arrays of an .npz, mapped where they lie in the file."""
    found = {}
    try:
        with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
            for member in archive.infolist():
                if member.compress_type != zipfile.ZIP_STORED:
                    raise DataError(
                        f"{path}: {member.filename} is compressed, so its rows cannot be read "
                        "one by one.\nSave it with numpy.savez or as .npy files."
                    )
                file.seek(member.header_offset)
                name, extra = struct.unpack("<26x2H", file.read(30))
                file.seek(name + extra, os.SEEK_CUR)
                found[_field(Path(member.filename).stem)] = _member(path, file)
    except (OSError, ValueError, struct.error, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: cannot be read as an .npz ({error}).") from error
    return found


def _member(path: Path, file: IO[bytes]) -> Array:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0
    if version != (1, 0):
        read = np.lib.format.read_array_header_2_0
    shape, by_column, kind = read(file)
    if kind.hasobject or not shape:
        raise ValueError("a member is not rows of numbers")
    order: Any = "F" if by_column else "C"
    return np.memmap(path, kind, "r", offset=file.tell(), shape=shape, order=order)


def knows(spec: str) -> bool:
    """Whether it is a .npy, a .npz, or a folder with .npy files and no manifest of ours."""
    if os.path.isdir(spec):
        return any(Path(spec).glob("*.npy"))
    return spec.lower().endswith((".npy", ".npz")) and os.path.isfile(spec)


def opened(spec: str, wishes: dict[str, Any]) -> Arrays:
    """The arrays."""
    return Arrays(Path(spec))
