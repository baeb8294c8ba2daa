"""A whole file as bytes in memory, read only when touched: an empty file is no error."""

from __future__ import annotations

import mmap
from pathlib import Path


def mapped(path: Path) -> mmap.mmap | bytes:
    """The file, mapped for reading; an empty file cannot be mapped and is empty bytes."""
    with open(path, "rb") as file:
        if not file.seek(0, 2):
            return b""
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def close(held: mmap.mmap | bytes) -> None:
    """Let go of what ``mapped`` gave."""
    if isinstance(held, mmap.mmap):
        held.close()
