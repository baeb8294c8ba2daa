"""What the hook wrote into a bundle's ``processes`` folder, process by process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

MOST_BYTES = 1 << 30
"""A larger event file is not read: at one row per step it would be of ten million steps."""

LONGEST_LINE = 16 * 2**20
"""Bytes of one event above which it is not ours."""


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
    stacks: list[dict[str, Any]] = field(default_factory=list)
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
    if path.stat().st_size > MOST_BYTES:
        return found
    for event in events_of(path):
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
        elif kind == "stacks":
            found.stacks.append(event)
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


def events_of(path: Path) -> Iterator[dict[str, Any]]:
    """The events of one file; what cannot be read, as the last line after a kill, is left out."""
    with path.open("rb") as stream:
        while line := stream.readline(LONGEST_LINE):
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(event, dict):
                yield event
