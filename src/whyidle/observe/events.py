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
    ``waits``: number of a loader -> nanoseconds that steps waited for its batches.
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
    waits: dict[int, int] = field(default_factory=dict)
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
        elif kind == "loader" and _is_text(event.get("file")) and _is_text(event.get("made_file")):
            found.loaders.append(event)
        elif kind == "window":
            found.windows.append(event)
        elif kind == "stacks" and _is_stacks(event):
            found.stacks.append(event)
        elif kind == "problem":
            found.problems.append(f"{event.get('where')}: {event.get('error')}")
        elif kind == "end":
            found.end = event
        elif kind == "pauses":
            found.pauses += [row for row in _rows(event) if _is_pause(row)]
        elif kind == "waits":
            for loader, lasted_ns in _pairs(event):
                found.waits[loader] = found.waits.get(loader, 0) + lasted_ns
        elif kind == "steps":
            found.rows += [row for row in _rows(event) if _is_step(row)]
    return found


def _rows(event: dict[str, Any]) -> list[list[Any]]:
    rows = event.get("rows")
    return [row for row in rows if isinstance(row, list)] if isinstance(rows, list) else []


def _pairs(event: dict[str, Any]) -> Iterator[tuple[int, int]]:
    for row in _rows(event):
        if len(row) == 3 and all(map(is_count, row)):
            yield row[0], row[1]


def _is_step(row: list[Any]) -> bool:
    return len(row) == 5 and all(is_count(value) for value in row)


def _is_pause(row: list[Any]) -> bool:
    kind, *times = row[:3] if len(row) == 6 else (None,)
    return type(kind) is str and all(map(is_count, times)) and _is_text(row[3])


def _is_stacks(event: dict[str, Any]) -> bool:
    """Whether its places and frames can be told."""
    threads = event.get("threads")
    if not isinstance(threads, list) or not all(isinstance(one, dict) for one in threads):
        return False
    return (
        all(_are_frames(thread.get("frames")) for thread in threads)
        and _is_text(event.get("file", 0))
        and is_count(event.get("steps"))
        and type(event.get("limit_s")) in (int, float)
    )


def _are_frames(frames: Any) -> bool:
    return isinstance(frames, list) and all(
        isinstance(one, list) and len(one) == 3 and type(one[0]) is str for one in frames
    )


def is_count(value: Any) -> bool:
    """Whether it is a whole number from 0 that an array of 64-bit integers takes."""
    return type(value) is int and 0 <= value < 1 << 62


def _is_text(value: Any) -> bool:
    return value is None or type(value) is str


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
