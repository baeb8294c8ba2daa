"""Files named by a table: a CSV with a column of paths and, if there is one, a column of labels."""

from __future__ import annotations

import csv
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from whyidle.data.pictures import ENDINGS
from whyidle.data.sources.listing import Names
from whyidle.errors import DataError

PATHS = ("path", "file", "filename", "file_name", "filepath", "image", "image_path", "img")
LABELS = ("label", "class", "target", "cls", "category", "class_name")


class CsvIndex:
    """One sample a row: the file's bytes, ``cls``, and ``json`` with the row's other columns.

    Labels that are all whole numbers stay what they are; others are numbered in the order of
    their names. Paths are relative to the folder of the CSV, or to ``root``.
    """

    def __init__(self, path: Path, root: str | None) -> None:
        """Read the table; the files it names are opened when they are read."""
        self.name = str(path)
        self._root = os.fsencode(root if root is not None else path.parent)
        try:
            content = path.read_bytes()
            text = content.decode("utf-8-sig", "surrogateescape")
            rows = list(csv.DictReader(text.splitlines(), strict=True))
        except (OSError, csv.Error) as error:
            raise DataError(f"{path}: cannot be read as CSV ({error}).") from error
        if not rows:
            raise DataError(f"{path}: the table has no rows.\nIts first line names the columns.")
        self.digest = "blake2b-256:" + hashlib.blake2b(content, digest_size=32).hexdigest()
        columns = [name for name in rows[0] if name is not None]
        paths = _column(columns, PATHS)
        if paths is None:
            raise DataError(
                f"{path}: no column of paths among {', '.join(columns)}.\n"
                f"Call it one of: {', '.join(PATHS)}."
            )
        labels = _column(columns, LABELS)
        self._paths = Names(_bytes(row[paths]) for row in rows)
        rest = [name for name in columns if name not in (paths, labels)]
        self._rest = Names(_json(row, rest) for row in rows) if rest else None
        self._numbers: list[int] | None = None
        self.classes: list[str] | None = None
        if labels is not None:
            self._number([row[labels] or "" for row in rows])

    def _number(self, labels: list[str]) -> None:
        try:
            self._numbers = [int(label) for label in labels]
        except ValueError:
            self.classes = sorted(set(labels))
            order = {label: number for number, label in enumerate(self.classes)}
            self._numbers = [order[label] for label in labels]

    def __len__(self) -> int:
        return len(self._paths)

    def key(self, i: int) -> str:
        """The path as the table has it; a path that is listed twice is two samples."""
        return os.fsdecode(self._paths[i])

    def read(self, i: int) -> dict[str, bytes]:
        """The file's bytes, the label, and the other columns."""
        name = self._paths[i]
        ending = os.path.splitext(os.fsdecode(name))[1].lower()
        with open(os.path.join(self._root, name), "rb") as file:
            fields = {ENDINGS.get(ending, ending[1:] or "bin"): file.read()}
        if self._numbers is not None:
            fields["cls"] = str(self._numbers[i]).encode()
        if self._rest is not None:
            fields["json"] = self._rest[i]
        return fields


def _column(columns: list[str], wanted: tuple[str, ...]) -> str | None:
    by_name = {name.strip().lower(): name for name in reversed(columns)}
    return next((by_name[name] for name in wanted if name in by_name), None)


def _bytes(text: str | None) -> bytes:
    return (text or "").encode("utf-8", "surrogateescape")


def _json(row: dict[str, str], names: list[str]) -> bytes:
    return json.dumps({name: row[name] for name in names}, sort_keys=True).encode()


def knows(spec: str) -> bool:
    """Whether its name ends in .csv."""
    return spec.lower().endswith(".csv") and os.path.isfile(spec)


def opened(spec: str, wishes: dict[str, Any]) -> CsvIndex:
    """The table; the wish ``root`` is the folder that paths are relative to."""
    return CsvIndex(Path(spec), wishes.get("root"))
