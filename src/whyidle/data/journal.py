"""How far a pack has come, on disk, so that the same command goes on after a kill.

``DST.partial/journal.json`` is replaced whole and only after all it speaks of is on disk.
``bad.partial`` holds a line for each bad sample: [position, key, reason].
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from whyidle.data import index
from whyidle.errors import DataError, OutputError

NAME = "journal.json"
BAD = "bad.partial"
SCHEMA = "whyidle.journal/1"
OURS = frozenset((NAME, NAME + ".new", BAD, index.ROWS, index.KEYS))


@dataclass
class State:
    """What the journal holds.

    ``job``: what is packed and how. ``next``: the position to read next. ``writer``: the
    writer's position. ``fields``: names seen. ``losses``: [position, PSNR, PSNR] of pictures.
    ``bad_bytes``: the length of ``bad.partial``. ``finished``: only renaming is left.
    """

    job: dict[str, Any]
    next: int = 0
    writer: dict[str, Any] | None = None
    fields: list[str] = field(default_factory=list)
    losses: list[list[float]] = field(default_factory=list)
    bad_bytes: int = 0
    finished: bool = False


class Journal:
    """The folder ``DST.partial``, locked for one process, and the journal in it."""

    def __init__(self, folder: Path, job: dict[str, Any]) -> None:
        """Make the folder or find one of the same job; ``state`` says where to go on."""
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise OutputError(
                f"{folder}: cannot be made: {error.strerror}.\nChoose a folder that can be written."
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise OutputError(
                f"{folder}: another process is packing into it.\n"
                "Wait for it, or choose another name."
            ) from error
        try:
            self.state = self._found(job)
            self.bad = [] if self.state.finished else self._bad()
        except BaseException:
            self.release()
            raise

    def _found(self, job: dict[str, Any]) -> State:
        path = self.folder / NAME
        if not path.exists():
            strange = sorted({entry.name for entry in os.scandir(self.folder)} - OURS)
            if strange:
                raise OutputError(
                    f"{self.folder}: holds {strange[0]!r} and no journal of a pack.\n"
                    "Move it away, or choose another name."
                )
            for name in OURS:
                (self.folder / name).unlink(missing_ok=True)
            state = State(job)
            self._write(state)
            return state
        try:
            told = json.loads(path.read_bytes())
            if told.pop("schema") != SCHEMA:
                raise ValueError("another schema")
            state = State(**told)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise OutputError(
                f"{path}: cannot be read ({error}).\nRemove {self.folder} to begin anew."
            ) from error
        differing = [name for name in job if state.job.get(name) != job[name]]
        if differing:
            raise OutputError(
                f"{self.folder}: was begun with another {' and '.join(differing)}.\n"
                "Give the same command to go on, or remove that folder to begin anew."
            )
        return state

    def _bad(self) -> list[tuple[int, str, str]]:
        path = self.folder / BAD
        path.touch()
        with open(path, "r+b") as file:
            lines = file.read(self.state.bad_bytes)
            if len(lines) < self.state.bad_bytes:
                raise DataError(
                    f"{path}: is shorter than the journal says.\n"
                    f"Remove {self.folder} to begin anew."
                )
            file.truncate(self.state.bad_bytes)
        return [(line[0], line[1], line[2]) for line in map(json.loads, lines.splitlines())]

    def back_to(self, samples: int) -> int:
        """Forget all after so many good samples; returns the position to read next."""
        next = samples
        for position, _, _ in self.bad:
            next += position <= next
        if next < self.state.next:
            self.bad = [one for one in self.bad if one[0] < next]
            lines = b"".join(map(_line, self.bad))
            os.truncate(self.folder / BAD, len(lines))
            self.state.losses = [one for one in self.state.losses if one[0] < next]
            self.state.next, self.state.bad_bytes = next, len(lines)
        return self.state.next

    def add_bad(self, position: int, key: str, reason: str) -> None:
        """List one bad sample."""
        self.bad.append((position, key, reason))
        line = _line((position, key, reason))
        with open(self.folder / BAD, "ab") as file:
            file.write(line)
        self.state.bad_bytes += len(line)

    def save(self) -> None:
        """Bring the list of bad samples and the state to disk."""
        with open(self.folder / BAD, "rb") as file:
            os.fsync(file.fileno())
        self._write(self.state)

    def _write(self, state: State) -> None:
        new = self.folder / (NAME + ".new")
        with open(new, "w", encoding="ascii") as file:
            json.dump({"schema": SCHEMA, **asdict(state)}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self.folder / NAME)
        os.fsync(self._lock)

    def complete(self, target: Path) -> None:
        """Remove what only the packing needed and give the folder its name."""
        for name in (NAME + ".new", index.ROWS, index.KEYS, BAD):
            (self.folder / name).unlink(missing_ok=True)
        os.fsync(self._lock)
        if target.exists():
            raise OutputError(f"{target}: was made by another while this ran.\nMove it away.")
        os.rename(self.folder, target)
        (target / NAME).unlink()
        os.fsync(self._lock)
        _sync_folder(target.parent)

    def release(self) -> None:
        """Unlock the folder."""
        with suppress(OSError):
            os.close(self._lock)


def left_behind(target: Path, job: dict[str, Any]) -> bool:
    """Whether ``target`` is the whole set of this job, with a journal that a kill left in it."""
    path = target / NAME
    try:
        told = json.loads(path.read_bytes())
        whole = bool(told["finished"]) and told["job"] == job
    except (OSError, ValueError, TypeError, KeyError):
        return False
    if whole:
        path.unlink()
    return whole


def _line(bad: tuple[int, str, str]) -> bytes:
    return json.dumps(bad).encode() + b"\n"


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
