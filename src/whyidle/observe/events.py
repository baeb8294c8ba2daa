"""What the hook wrote into a bundle's ``processes`` folder, process by process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

MOST_BYTES = 1 << 30
"""A larger event file is not read: at one row per step it would be of ten million steps."""


@dataclass
class Process:
    """One process of the job. ``steps`` rows: number, start_ns, end_ns, wait_ns, hook_cpu_ns.

    ``pauses`` rows: kind, start_ns, end_ns, file, line, what. Instants are Unix nanoseconds.
    """

    path: Path
    about: dict[str, Any] = field(default_factory=dict)
    torch: dict[str, Any] | None = None
    optimizer: dict[str, Any] | None = None
    loaders: list[dict[str, Any]] = field(default_factory=list)
    windows: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    pauses: list[list[Any]] = field(default_factory=list)
    rows: list[list[int]] = field(default_factory=list)
    end: dict[str, Any] | None = None

    @property
    def steps(self) -> npt.NDArray[np.int64]:
        """The rows of steps as an array of shape (steps, 5)."""
        return np.array(self.rows, np.int64).reshape(-1, 5)


def processes(bundle: Path) -> list[Process]:
    """Every process that wrote events, in order of its file's name; broken lines are left out."""
    return [_process(path) for path in sorted((bundle / "processes").glob("*.jsonl"))]


def _process(path: Path) -> Process:
    found = Process(path)
    for event in _events(path):
        kind = event.get("event")
        if kind == "process":
            found.about = event
        elif kind == "torch":
            found.torch = event
        elif kind == "optimizer":
            found.optimizer = found.optimizer or event
        elif kind == "loader":
            found.loaders.append(event)
        elif kind == "window":
            found.windows.append(event)
        elif kind == "problem":
            found.problems.append(f"{event.get('where')}: {event.get('error')}")
        elif kind == "end":
            found.end = event
        elif kind == "pauses":
            found.pauses += [row for row in _rows(event) if len(row) == 6]
        elif kind == "steps":
            found.rows += [row for row in _rows(event) if _is_step(row)]
    return found


def _rows(event: dict[str, Any]) -> list[list[Any]]:
    rows = event.get("rows")
    return [row for row in rows if isinstance(row, list)] if isinstance(rows, list) else []


def _is_step(row: list[Any]) -> bool:
    return len(row) == 5 and all(type(value) is int for value in row)


def _events(path: Path) -> Iterator[dict[str, Any]]:
    """The events of one file; the last line of a job that was killed may be half written."""
    if path.stat().st_size > MOST_BYTES:
        return
    with path.open("rb") as file:
        for line in file:
            try:
                event = msgspec.json.decode(line)
            except msgspec.DecodeError:
                continue
            if isinstance(event, dict):
                yield event
