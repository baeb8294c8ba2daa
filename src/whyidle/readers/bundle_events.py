"""The events that the hook of ``whyidle run`` wrote for one process: one JSON object per line.

Rows of steps and batches come by the million, so their text goes to a parser of tables as it
stands; every other event is decoded by itself. A line that cannot be read, such as the last one
of a job that was killed, is counted and left out. Instants are Unix nanoseconds.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from whyidle.errors import UnreadableEvidence
from whyidle.readers.source_bytes import open_regular

MOST_BYTES = 4 << 30
"""A larger event file is not read: ten million steps take 0.7 GiB."""

LONGEST_LINE = 64 << 20
EARLIEST_NS, LATEST_NS = 10**18, 1 << 62
"""Instants outside these (September 2001, the year 2116) are damage, not time."""

STEPS = ("number", "start_ns", "end_ns", "wait_ns", "hook_cpu_ns")
BATCHES = (
    "loader", "worker", "batch", "start_ns", "wall_ns", "cpu_ns", "collate_ns", "read_bytes",
    "items",
)  # fmt: skip
PAUSES: dict[str, Any] = {
    "kind": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64, "file": pl.String,
    "line": pl.Int32, "what": pl.String,
}  # fmt: skip

_TABLE_LINE = re.compile(rb'\{"event":"(steps|batches)","rows":\[\[')
_CELLS = b"0123456789-,[]nul \t\r\n"

Progress = Callable[[int], None]


@dataclass
class ProcessEvents:
    """What one process said. ``about`` is its ``process`` event; ``others`` by kind of event.

    ``waits``: number of a loader -> ns that steps waited for it, and that profiled ones did.
    ``steps`` and ``batches`` have the integer columns named above, ``pauses`` those of PAUSES.
    ``end`` is the ``end`` event, None for a process that was killed; ``broken`` counts lines.
    """

    path: Path
    about: dict[str, Any] = field(default_factory=dict)
    others: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    steps: pl.DataFrame = field(default_factory=lambda: _no_rows(STEPS))
    batches: pl.DataFrame = field(default_factory=lambda: _no_rows(BATCHES))
    pauses: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=PAUSES))
    waits: dict[int | None, tuple[int, int]] = field(default_factory=dict)
    end: dict[str, Any] | None = None
    broken: int = 0

    @property
    def pid(self) -> int | None:
        """The process id, as the process or else its file's name says."""
        return whole(self.about.get("pid")) or _named(self.path, 0)

    @property
    def started_ns(self) -> int | None:
        """When torch had been imported, or a forked process began."""
        stated = instant(self.about.get("started_ns"))
        return stated if stated is not None else _named(self.path, 1)

    @property
    def last_ns(self) -> int | None:
        """The last instant that it said anything of."""
        found = [instant((self.end or {}).get("t_ns")), self.started_ns]
        for table in (self.steps, self.pauses):
            found.append(_latest(table["end_ns"]))
        if self.batches.height:
            found.append(_latest(self.batches["start_ns"] + self.batches["wall_ns"]))
        found += [instant(window.get("end_ns")) for window in self.others.get("window", ())]
        return max((at for at in found if at is not None), default=None)


def whole(value: Any) -> int | None:
    """The value where it is an integer of 64 bits."""
    sound = type(value) is int and abs(value) < 1 << 63
    return value if sound else None


def instant(value: Any) -> int | None:
    """The value where it can be an instant in Unix nanoseconds."""
    found = whole(value)
    return found if found is not None and EARLIEST_NS <= found < LATEST_NS else None


def text(value: Any, most: int = 4096) -> str | None:
    """The value where it is text, without what would make it too long."""
    return value[:most] if isinstance(value, str) else None


def _named(path: Path, part: int) -> int | None:
    """A number in a file's name, PID-START."""
    parts = path.stem.split("-")
    if len(parts) != 2 or not all(p.isascii() and p.isdigit() and len(p) < 19 + 1 for p in parts):
        return None
    return whole(int(parts[part])) if part == 0 else instant(int(parts[part]))


def _latest(times: pl.Series) -> int | None:
    found = times.max()
    return found if isinstance(found, int) else None


def process_events(path: Path, progress: Progress | None = None) -> ProcessEvents:
    """Everything that one file holds. Raises UnreadableEvidence for one that is far too large."""
    found = ProcessEvents(path)
    tables = {"steps": _no_cells(STEPS), "batches": _no_cells(BATCHES)}
    pauses: list[tuple[Any, ...]] = []
    with open_regular(path) as opened, io.BufferedReader(opened, 1 << 20) as stream:  # type: ignore[type-var]
        _refuse_huge(path)
        while line := stream.readline(LONGEST_LINE):
            if progress is not None:
                progress(len(line))
            head = _TABLE_LINE.match(line)
            if head is not None and _plain(line, head.end()):
                rows = line[head.end() : line.rindex(b"]]")]
                tables[head[1].decode()].write(rows.replace(b"],[", b"\n") + b"\n")
            else:
                _take(line, found, tables, pauses)
    found.steps = _steps(_table(tables["steps"], STEPS))
    found.batches = _batches(_table(tables["batches"], BATCHES))
    found.pauses = _pauses(pauses)
    return found


def _refuse_huge(path: Path) -> None:
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise UnreadableEvidence(
            str(path),
            f"{size / 2**30:.1f} GiB of events, more than the {MOST_BYTES >> 30} GiB that are read",
            "Observe a shorter run.",
        )


def _plain(line: bytes, begin: int) -> bool:
    """Whether what follows are rows of integers and nulls alone, whole to the end of the line."""
    rest = line[begin:].rstrip()
    return rest.endswith(b"]]}") and not rest[: -len(b"]}")].translate(None, _CELLS)


def _take(
    line: bytes, found: ProcessEvents, tables: dict[str, io.BytesIO], pauses: list[tuple[Any, ...]]
) -> None:
    """Put one event of any kind where it belongs."""
    try:
        event = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        found.broken += bool(line.strip())
        return
    kind = event.get("event") if isinstance(event, dict) else None
    if not isinstance(kind, str):
        found.broken += 1
    elif kind in tables:
        for row in _rows(event):
            cells = ("null" if whole(cell) is None else str(cell) for cell in row)
            tables[kind].write((",".join(cells) + "\n").encode())
    elif kind == "pauses":
        pauses += [tuple(row) for row in _rows(event) if len(row) == len(PAUSES)]
    elif kind == "waits":
        for row in _rows(event):
            if len(row) == 3 and all(whole(cell) is not None and cell >= 0 for cell in row):
                _add_wait(found, *row)
    elif kind == "process":
        found.about = event
    elif kind == "end":
        found.end = event
    else:
        found.others.setdefault(kind, []).append(event)


def _add_wait(found: ProcessEvents, loader: int, lasted_ns: int, profiled: int) -> None:
    told, profiled_ns = found.waits.get(loader, (0, 0))
    more = lasted_ns if profiled else 0
    found.waits[loader] = (min(told + lasted_ns, 1 << 62), min(profiled_ns + more, 1 << 62))


def _rows(event: dict[str, Any]) -> list[list[Any]]:
    rows = event.get("rows")
    return [row for row in rows if isinstance(row, list) and row] if isinstance(rows, list) else []


def _table(cells: io.BytesIO, names: tuple[str, ...]) -> pl.DataFrame:
    """The integers in lines of cells; null where there is none."""
    if cells.tell() == _no_cells(names).tell():
        return _no_rows(names)
    cells.seek(0)
    found = pl.read_csv(
        cells,
        has_header=False,
        schema=dict.fromkeys(names, pl.Int64),
        null_values=["null"],
        truncate_ragged_lines=True,
        ignore_errors=True,
    )
    return found.slice(1)


def _no_cells(names: tuple[str, ...]) -> io.BytesIO:
    """A first line of nulls: the parser counts columns there, and other lines may be cut."""
    found = io.BytesIO()
    found.write(b",".join([b"null"] * len(names)) + b"\n")
    return found


def _no_rows(names: tuple[str, ...]) -> pl.DataFrame:
    return pl.DataFrame(schema=dict.fromkeys(names, pl.Int64))


def _sound(*names: str) -> pl.Expr:
    return pl.all_horizontal(
        pl.col(name).is_between(EARLIEST_NS, LATEST_NS, closed="left") for name in names
    )


def _steps(rows: pl.DataFrame) -> pl.DataFrame:
    """Steps with sound times, in order of time, none inside another."""
    sound = _sound("start_ns", "end_ns") & (pl.col("end_ns") > pl.col("start_ns"))
    rows = rows.filter(sound.fill_null(False))
    rows = rows if rows["start_ns"].is_sorted() else rows.sort("start_ns", maintain_order=True)
    apart = pl.col("start_ns") >= pl.col("end_ns").cum_max().shift(1)
    return rows.filter(apart.fill_null(True)).with_columns(
        pl.col("wait_ns").fill_null(0).clip(0, pl.col("end_ns") - pl.col("start_ns"))
    )


def _batches(rows: pl.DataFrame) -> pl.DataFrame:
    small = pl.all_horizontal(
        pl.col(name).is_null() | pl.col(name).is_between(0, (1 << 31) - 1)
        for name in ("loader", "worker")
    )
    sound = _sound("start_ns") & pl.col("wall_ns").is_between(0, 1 << 60) & small
    return rows.filter(sound.fill_null(False))


def _pauses(rows: list[tuple[Any, ...]]) -> pl.DataFrame:
    """The rows whose kind and times are sound; cells of another type are null."""
    columns = list(zip(*rows, strict=True)) or [()] * len(PAUSES)
    data = {
        name: pl.Series(name, [_cell(cell, kind) for cell in column], kind)
        for (name, kind), column in zip(PAUSES.items(), columns, strict=True)
    }
    sound = _sound("start_ns", "end_ns") & (pl.col("end_ns") >= pl.col("start_ns"))
    kept = pl.DataFrame(data).filter((sound & pl.col("kind").is_not_null()).fill_null(False))
    return kept.sort("start_ns", maintain_order=True)


def _cell(cell: Any, kind: Any) -> Any:
    if kind == pl.String:
        return text(cell)
    found = whole(cell)
    return found if found is None or kind == pl.Int64 or abs(found) < 1 << 31 else None
