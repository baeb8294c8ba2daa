"""Which files are judged together: all files of one rank, some ranks at a time.

A rank is known from the file's name ("rank3") or from the first bytes of a trace. Files that are
no traces, and traces that say no rank, lie in one batch, since they must be looked at together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path

from whyidle.errors import UsageError
from whyidle.executor import remote
from whyidle.executor.cpus import usable_cpus
from whyidle.readers.combine import RANK_IN_NAME
from whyidle.readers.finding import files_of, knowing
from whyidle.readers.source_bytes import GZIP, head_of, open_regular

MOST_BYTES = 192 << 20
"""Decompressed bytes of traces in one batch, or those of one rank where they are more: what a
worker holds of a batch at its peak is about three times as much."""
MOST_RANKS = 256
LEAST_BYTES = 24 << 20
"""Less than this for each worker is judged sooner in one process than it takes to start others."""
GROWTH = 12
"""A gzipped trace unpacks to about this many times its size."""

_STATED = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}\[\]]*?"rank"\s*:\s*(\d{1,9})')


@dataclass(frozen=True)
class File:
    """One file: where it lies, whether a folder gave it, and how large it is unpacked, about."""

    path: str
    from_folder: bool
    bytes: int
    rank: int | None
    trace: bool


@dataclass(frozen=True)
class Batch:
    """Files that one worker reads and judges together; ``number`` counts from 0.

    ``notes`` tell of files that were passed over.
    """

    number: int
    files: tuple[File, ...]
    notes: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """Decompressed bytes, about."""
        return sum(file.bytes for file in self.files)

    @property
    def ranks(self) -> str:
        """The ranks in it, as a reader of a note wants them."""
        known = sorted({file.rank for file in self.files if file.rank is not None})
        if not known:
            return f"{len(self.files)} files"
        return f"rank {known[0]}" if len(known) == 1 else f"ranks {known[0]} to {known[-1]}"


def planned(paths: Sequence[str | PathLike[str]], jobs: int | None) -> list[Batch]:
    """The batches of a job, for ``jobs`` workers if so many are asked for, else one per CPU."""
    if isinstance(paths, str | PathLike):
        paths = [paths]
    if not paths:
        raise UsageError("No evidence was named. Name a trace, or a folder of traces of one job.")
    texts = [fspath(path) for path in paths]
    far = [path for path in texts if remote.is_url(path)]
    near = [Path(path) for path in texts if not remote.is_url(path)]
    files, notes = _near(near) if near else ([], [])
    files += _far(far) if far else []
    return _batches(files, jobs or usable_cpus(), jobs is not None, tuple(notes))


def _near(paths: list[Path]) -> tuple[list[File], list[str]]:
    found = files_of(paths)
    return [_looked_at(path, path in found.from_folders) for path in found.files], found.notes


def _looked_at(path: Path, from_folder: bool) -> File:
    head = head_of(path)
    size = path.stat().st_size
    with open_regular(path) as file:
        packed = file.read(2) == GZIP
    return _file(str(path), head, from_folder, size * (GROWTH if packed else 1))


def _far(urls: Iterable[str]) -> list[File]:
    found = []
    for url, from_folder in remote.listed(urls):
        size = remote.size_of(url) * (GROWTH if url.endswith(".gz") else 1)
        named = RANK_IN_NAME.search(url.rsplit("/", 1)[-1])
        if named and url.endswith((".json", ".json.gz")):
            found.append(File(url, from_folder, size, int(named.group(1)), True))
        else:
            found.append(_file(url, remote.head_of(url), from_folder, size))
    return found


def _file(path: str, head: bytes, from_folder: bool, size: int) -> File:
    reader = knowing(Path(path), head)
    trace = reader is None or reader.NAME in _TRACES
    stated = _STATED.search(head)
    named = RANK_IN_NAME.search(path.rsplit("/", 1)[-1])
    rank = stated or named
    return File(path, from_folder, size, int(rank.group(1)) if rank and trace else None, trace)


_TRACES = ("torch_trace",)


def _batches(files: list[File], workers: int, wanted: bool, notes: tuple[str, ...]) -> list[Batch]:
    """Whole ranks, in the order of their first files, up to MOST_BYTES and MOST_RANKS together.

    As few batches as that allows, but as many for each worker where starting them pays or is
    ``wanted``. Files of no rank go into the first.
    """
    groups: dict[int, list[File]] = {}
    for file in files:
        if file.rank is not None:
            groups.setdefault(file.rank, []).append(file)
    total = sum(file.bytes for group in groups.values() for file in group)
    count = max(-(-total // MOST_BYTES), -(-len(groups) // MOST_RANKS), 1)
    if wanted or total >= 2 * LEAST_BYTES:
        count = -(-count // workers) * workers
    count = min(count, max(len(groups), 1))
    shared: list[list[File]] = [[] for _ in range(count)]
    shared[0] += [file for file in files if file.rank is None]
    begun = 0
    for group in groups.values():
        shared[min(begun * count // max(total, 1), count - 1)] += group
        begun += sum(file.bytes for file in group)
    filled = [tuple(batch) for batch in shared if batch]
    return [Batch(i, batch, () if i else notes) for i, batch in enumerate(filled)]
