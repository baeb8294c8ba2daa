"""An Nsight Systems SQLite export as tables of whole numbers, read in bulk and never trusted.

``nsys export --type sqlite`` writes one table per kind of record; which columns a table has
depends on the version that wrote it, so a column that is not there reads as ``ABSENT``. Only real
tables are read: a view or a virtual table could hide any computation behind a known name.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from whyidle.errors import UnreadableEvidence

MAGIC = b"SQLite format 3\x00"
ABSENT = -(1 << 63)
"""Stands for NULL and for a column that the file does not have."""

BATCH = 1 << 18
LEAST_ROW = 4
"""Bytes that a row takes at least. Pages of a damaged file may lead in circles to more rows."""

MOST_TABLES = 10_000
TEXT_LIMIT = 1 << 26
"""Bytes of the longest text or blob that is read."""

EXPORT = "nsys export --type sqlite {report}"
_AGAIN = f"Export the report again: {EXPORT.format(report='REPORT.nsys-rep')}."
_BROKEN = (ValueError, TypeError, OverflowError, UnicodeError)


class Tables:
    """The tables of one export. Raises UnreadableEvidence, with a sentence, for a broken file."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        """Learn which tables and columns there are; use ``opened``."""
        self.path = path
        self._connection = connection
        self.columns: dict[str, tuple[str, ...]] = {}
        self._most_rows = path.stat().st_size // LEAST_ROW
        rows = self._rows(
            f"SELECT name, sql FROM sqlite_master WHERE type = 'table' LIMIT {MOST_TABLES}"
        )
        for name, sql in rows:
            if isinstance(name, str) and isinstance(sql, str) and "VIRTUAL" not in sql[:40].upper():
                described = self._rows(f"PRAGMA table_info({_quoted(name)})")
                self.columns[name] = tuple(str(column[1]) for column in described)

    def has(self, table: str, *columns: str) -> bool:
        """Whether the table is there and has all these columns."""
        return set(columns) <= set(self.columns.get(table, ())) and table in self.columns

    def numbers(self, table: str, **wanted: str) -> Iterator[pl.DataFrame]:
        """Batches of Int64 columns: our name = column, or product ``a*b*c`` of columns.

        A product with a part that is not there, and a column that is not there, is null.
        """
        have = set(self.columns.get(table, ()))
        terms = [
            "*".join(map(_quoted, parts)) if set(parts) <= have else "NULL"
            for parts in (column.split("*") for column in wanted.values())
        ]
        whole = ", ".join(f"ifnull({term}, {ABSENT})" for term in terms)
        if table not in self.columns:
            return
        with self._speaking(f"table {table}"):
            rows = self._bounded(f"SELECT {whole} FROM {_quoted(table)}")
            while True:
                flat = chain.from_iterable(islice(rows, BATCH))
                found = np.fromiter(flat, dtype=np.int64).reshape(-1, len(terms))
                if not found.size:
                    return
                yield pl.DataFrame({name: found[:, at] for at, name in enumerate(wanted)}).select(
                    pl.when(pl.col(name) != ABSENT).then(name).alias(name) for name in wanted
                )

    def texts(self, table: str, column: str) -> Iterator[pl.Series]:
        """The same batches of one column of texts; what is no text is null."""
        term = f"CASE typeof({_quoted(column)}) WHEN 'text' THEN {_quoted(column)} END"
        with self._speaking(f"table {table}"):
            rows = self._bounded(f"SELECT {term} FROM {_quoted(table)}")
            while batch := list(chain.from_iterable(islice(rows, BATCH))):
                yield _decoded(column, batch)

    def few(self, table: str, *columns: str, limit: int = 100_000) -> list[tuple[object, ...]]:
        """Rows of a small table as they are; None for a column that is not there."""
        have = set(self.columns.get(table, ()))
        if not have:
            return []
        terms = ", ".join(_quoted(name) if name in have else "NULL" for name in columns)
        return self._rows(f"SELECT {terms} FROM {_quoted(table)} LIMIT {limit}")

    def strings(self, ids: Iterable[int]) -> dict[int, str]:
        """Texts of StringIds by id; an id that is not there is left out."""
        if not self.has("StringIds", "id", "value"):
            return {}
        wanted = sorted({int(number) for number in ids})
        found: dict[int, str] = {}
        for start in range(0, len(wanted), 500):
            listed = ", ".join(map(str, wanted[start : start + 500]))
            query = f"SELECT id, value FROM StringIds WHERE id IN ({listed})"
            for key, text in self._rows(query):
                if isinstance(key, int) and isinstance(text, str):
                    found[key] = text
        return found

    def height(self, table: str) -> int:
        """About how many rows a table has, without counting them; 0 when it is not there."""
        if table not in self.columns:
            return 0
        try:
            found = self._connection.execute(f"SELECT max(rowid) FROM {_quoted(table)}").fetchone()
        except sqlite3.Error:
            return 0
        return found[0] if found and isinstance(found[0], int) else 0

    def _bounded(self, query: str) -> Iterator[tuple[Any, ...]]:
        """The rows, as many as the file has room for; one more raises ValueError."""
        rows = iter(self._connection.execute(query))
        yield from islice(rows, self._most_rows)
        if next(rows, None) is not None:
            raise ValueError(f"more rows than {self._most_rows}, all that a file so small can hold")

    def _rows(self, query: str) -> list[tuple[object, ...]]:
        with self._speaking("a table"):
            rows = self._connection.execute(query).fetchall()
        return [tuple(_text(v) if isinstance(v, bytes) else v for v in row) for row in rows]

    @contextmanager
    def _speaking(self, what: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise UnreadableEvidence(
                str(self.path), f"a broken SQLite database ({error})", _AGAIN
            ) from error
        except _BROKEN as error:
            raise UnreadableEvidence(
                str(self.path),
                f"{what} holds something other than it should ({error})",
                _AGAIN,
            ) from error


@contextmanager
def opened(path: Path) -> Iterator[Tables]:
    """The tables of an export, opened so that nothing in its folder changes."""
    refuse_unfinished(path)
    where = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
    try:
        connection = sqlite3.connect(where, uri=True)
    except sqlite3.Error as error:
        raise UnreadableEvidence(
            str(path), f"an SQLite database that cannot be opened ({error})", _AGAIN
        ) from error
    with closing(connection):
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, TEXT_LIMIT)
        connection.text_factory = bytes  # decoded in bulk, or where it is looked at
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        yield Tables(path, connection)


def refuse_unfinished(path: Path) -> None:
    """Raise when the file is compressed or cut, or part of it lies in a file beside it."""
    with path.open("rb") as file:
        head, size = file.read(100), path.stat().st_size
    if head.startswith(b"\x1f\x8b"):
        raise UnreadableEvidence(
            str(path), "an SQLite database compressed with gzip", f"Unpack it: gunzip {path}."
        )
    if size < (whole := stated_size(head)):
        raise UnreadableEvidence(
            str(path), f"an SQLite database that was cut: {size} of {whole} bytes", _AGAIN
        )
    for ending in ("-wal", "-journal"):
        beside = path.with_name(path.name + ending)
        try:
            size = beside.stat().st_size
        except OSError:
            continue
        if size:
            raise UnreadableEvidence(
                str(path),
                f"an SQLite database of which {size} bytes still lie in {beside.name}",
                f"Let the program that writes it finish, or run: sqlite3 {path} 'PRAGMA "
                "wal_checkpoint(TRUNCATE);'.",
            )


def stated_size(head: bytes) -> int:
    """Bytes that the header says the database has; 0 when it does not say.

    See "The Database Header" in SQLite's description of its file format: the count of pages holds
    only where the counters at 24 and 92 agree.
    """
    if len(head) < 100 or head[24:28] != head[92:96]:
        return 0
    page = int.from_bytes(head[16:18], "big")
    return (1 << 16 if page == 1 else page) * int.from_bytes(head[28:32], "big")


def has_tables(path: Path, names: Sequence[str]) -> bool | None:
    """Whether a database has any of these tables; None when it cannot be read at all."""
    try:
        where = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
        with closing(sqlite3.connect(where, uri=True)) as connection:
            rows = connection.execute(
                f"SELECT name FROM sqlite_master WHERE type = 'table' LIMIT {MOST_TABLES}"
            )
            return any(name in names for (name,) in rows)
    except (sqlite3.Error, OSError, ValueError):
        return None


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _decoded(name: str, batch: list[bytes | None]) -> pl.Series:
    try:
        return pl.Series(name, batch, dtype=pl.Binary).cast(pl.String)
    except pl.exceptions.PolarsError:  # some text is no UTF-8
        texts = [None if raw is None else _text(raw) for raw in batch]
        return pl.Series(name, texts, dtype=pl.String)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", errors="replace")
