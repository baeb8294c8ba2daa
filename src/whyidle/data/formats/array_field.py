"""Fields that formats of arrays can hold as numbers: an ``npy`` file taken apart and put together.

Only what comes back byte for byte is taken apart: version 1.0 of the ``npy`` format as NumPy writes
it, C order, plain numbers; and for ``cls`` a decimal number in its only spelling.
"""

from __future__ import annotations

import functools
import io
from typing import NamedTuple

import numpy as np

NUMBERS = "biufc"
"""Kinds of NumPy types that are plain numbers."""


class Layout(NamedTuple):
    """What a field's content is: ``kind`` is array, number or bytes; ``type`` NumPy's spelling."""

    kind: str
    type: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Bytes of one row."""
        return int(np.dtype(self.type).itemsize * np.prod(self.shape, dtype=np.int64))

    def shown(self) -> str:
        """For a sentence."""
        if self.kind == "array":
            size = "x".join(map(str, self.shape)) or "a single number"
            return f"an array of {size}, {np.dtype(self.type).name}"
        return "a class number" if self.kind == "number" else f"{self.shape[0]} bytes"


NUMBER = Layout("number", "<i8", ())
"""A class number, as eight bytes."""


def layout_of(field: str, content: bytes) -> tuple[Layout, bytes] | None:
    """How a field can be stored as numbers, and the bytes of its row; None where it cannot."""
    extension = field.rpartition(".")[2]
    if extension == "cls":
        row = _number(content)
        return None if row is None else (NUMBER, row)
    if extension != "npy" or len(content) < 10:
        return None
    header = content[: 10 + int.from_bytes(content[8:10], "little")]
    layout = _parsed(bytes(header))
    if layout is None or len(content) != len(header) + layout.bytes:
        return None
    return layout, content[len(header) :]


def content_of(layout: Layout, row: bytes) -> bytes:
    """The field's content again, from the bytes of its row."""
    if layout.kind == "array":
        return header_of(layout.type, layout.shape) + row
    if layout.kind == "number":
        return b"%d" % int.from_bytes(row, "little", signed=True)
    return row


@functools.lru_cache(maxsize=4096)
def header_of(type: str, shape: tuple[int, ...]) -> bytes:
    """The header of an ``npy`` file as NumPy writes it."""
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        out, {"descr": type, "fortran_order": False, "shape": shape}
    )
    return out.getvalue()


@functools.lru_cache(maxsize=4096)
def _parsed(header: bytes) -> Layout | None:
    try:
        file = io.BytesIO(header)
        if np.lib.format.read_magic(file) != (1, 0):
            return None
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
        plain = dtype.kind in NUMBERS and dtype.itemsize <= (16 if dtype.kind == "c" else 8)
        if fortran or not plain or header_of(dtype.str, shape) != header:
            return None
    except (ValueError, TypeError, SyntaxError, OverflowError, MemoryError, RecursionError):
        return None
    return Layout("array", dtype.str, tuple(shape))


def _number(content: bytes) -> bytes | None:
    if not 0 < len(content) <= 20:
        return None
    try:
        value = int(content)
        row = value.to_bytes(8, "little", signed=True)
    except (ValueError, OverflowError):
        return None
    return row if b"%d" % value == content else None
