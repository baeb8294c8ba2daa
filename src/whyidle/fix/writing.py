"""Writes a changed file whole, beside a backup that is never overwritten."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from whyidle.errors import OutputError


def replace(path: Path, before: bytes, after: bytes) -> Path:
    """Write ``after`` to the file that holds ``before``; returns the backup.

    A link stays a link: the file that it points at is written. Mode bits are kept.
    """
    real = path.resolve()
    try:
        if real.read_bytes() != before:
            raise OutputError(f"{path} changed while it was read; nothing was written to it.")
        backup = _backup(real, before)
        _swap(real, after)
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror or error}.") from error
    return backup


def _backup(path: Path, before: bytes) -> Path:
    number = 0
    while True:
        end = f".{number}" if number else ""
        backup = path.with_name(f"{path.name}.whyidle-backup{end}")
        try:
            with backup.open("xb") as file:
                file.write(before)
        except FileExistsError:
            number += 1
            continue
        shutil.copymode(path, backup)
        return backup


def _swap(path: Path, after: bytes) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(after)
            file.flush()
            os.fsync(file.fileno())
        shutil.copymode(path, name)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
