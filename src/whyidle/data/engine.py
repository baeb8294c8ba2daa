"""Reads samples in several processes and hands them over in one fixed order, in bounded memory.

Process k of n reads the chunks k, k + n, k + 2n, ... of the order, and waits once it holds
``HELD_BYTES`` that nobody has taken. Nothing is handed out, so the order depends on nothing but the
source and the seed. The processes end when the one that reads from them does, however it ends.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import numpy as np

from whyidle.data.order import permuted
from whyidle.data.records import FIELD_NAME, BadSample
from whyidle.data.sources import Source
from whyidle.errors import DataError, WhyidleError

CHUNK = 64
MESSAGE_BYTES = 1 << 20
HELD_BYTES = 16 << 20


class Read(NamedTuple):
    """One sample in order: its fields, or why there are none; ``note`` is the treatment's."""

    position: int
    key: str
    fields: dict[str, bytes] | None
    reason: str | None
    note: Any


Treat = Callable[[int, str, dict[str, bytes]], tuple[dict[str, bytes], Any]]
"""(position, key, fields) -> the fields to keep and a note; picklable; may raise BadSample."""


class Reading(NamedTuple):
    """What to read: a source, in listed order or in that of a seed, and what to do to it."""

    source: Source
    seed: int | None
    treat: Treat | None


def read_all(reading: Reading, start: int, workers: int) -> Iterator[Read]:
    """Every sample from position ``start`` on; with 0 ``workers`` in this process."""
    if workers == 0 or len(reading.source) - start <= CHUNK:
        for at in range(start, len(reading.source), CHUNK):
            yield from read_chunk(reading, at)
        return
    yield from _read_by_processes(reading, start, workers)


def read_chunk(reading: Reading, at: int) -> Iterator[Read]:
    """The samples of the chunk that begins at position ``at``."""
    count = len(reading.source)
    positions = np.arange(at, min(at + CHUNK, count), dtype=np.uint64)
    order = positions if reading.seed is None else permuted(positions, count, reading.seed)
    for position, i in zip(positions.tolist(), order.tolist(), strict=True):
        yield _read_one(reading, position, i)


def _read_one(reading: Reading, position: int, i: int) -> Read:
    key = f"sample {i}"
    try:
        key = reading.source.key(i)
        fields, note = reading.source.read(i), None
        if reading.treat is not None:
            fields, note = reading.treat(position, key, fields)
        for name in fields:
            if not FIELD_NAME.fullmatch(name):
                raise BadSample(key, f"the field name {name!r} fits no format")
    except BadSample as bad:
        return Read(position, bad.key, None, bad.reason, None)
    except OSError as error:
        return Read(position, key, None, error.strerror or str(error), None)
    except WhyidleError:
        raise
    except Exception as error:  # noqa: BLE001  a user's data set may raise anything
        told = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        return Read(position, key, None, told, None)
    return Read(position, key, fields, None, note)


def _read_by_processes(reading: Reading, start: int, workers: int) -> Iterator[Read]:
    context = multiprocessing.get_context("spawn")
    ends: list[Connection] = []
    staff = []
    try:
        for number in range(workers):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=_work, args=(theirs, reading, start, number, workers), daemon=True
            )
            process.start()
            theirs.close()
            ends.append(ours)
            staff.append(process)
        chunks = range(start, len(reading.source), CHUNK)
        for turn, at in enumerate(chunks):
            left = min(CHUNK, len(reading.source) - at)
            while left:
                message = _received(ends[turn % workers], staff[turn % workers])
                left -= len(message)
                yield from message
    finally:
        for end in ends:
            end.close()
        for process in staff:
            process.terminate()
        for process in staff:
            process.join()


def _received(end: Connection, process: Any) -> list[Read]:
    try:
        message = end.recv()
    except (EOFError, OSError) as error:
        process.join(5)
        raise DataError(
            f"A process that reads samples died (exit code {process.exitcode}).\n"
            "If memory ran out, use fewer --workers. The same command goes on where it ended."
        ) from error
    if isinstance(message, WhyidleError):
        raise message
    if isinstance(message, str):
        raise DataError(message)
    read: list[Read] = message
    return read


class _Outbox:
    """Sends messages from a thread of its own, and lets its caller wait while it holds much."""

    def __init__(self, end: Connection) -> None:
        self._end = end
        self._waiting: queue.SimpleQueue[tuple[Any, int] | None] = queue.SimpleQueue()
        self._held = 0
        self._room = threading.Condition()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def put(self, message: Any, size: int) -> None:
        with self._room:
            self._room.wait_for(lambda: self._held < HELD_BYTES)
            self._held += size
        self._waiting.put((message, size))

    def end(self) -> None:
        self._waiting.put(None)
        self._thread.join()

    def _send(self) -> None:
        while (next := self._waiting.get()) is not None:
            message, size = next
            try:
                self._end.send(message)
            except OSError:  # nobody reads any more
                os._exit(0)
            with self._room:
                self._held -= size
                self._room.notify()


def _work(end: Connection, reading: Reading, start: int, number: int, workers: int) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    outbox = _Outbox(end)
    with suppress(KeyboardInterrupt):
        try:
            for at in range(start + number * CHUNK, len(reading.source), workers * CHUNK):
                _send_chunk(outbox, reading, at)
        except WhyidleError as error:
            outbox.put(error, 0)
        except Exception as error:  # noqa: BLE001  told by the process that writes
            told = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            outbox.put(f"A process that reads samples failed: {told}.\nReport it with --debug.", 0)
        outbox.end()


def _send_chunk(outbox: _Outbox, reading: Reading, at: int) -> None:
    message: list[Read] = []
    size = 0
    for read in read_chunk(reading, at):
        message.append(read)
        size += sum(map(len, (read.fields or {}).values()))
        if size >= MESSAGE_BYTES:
            outbox.put(message, size)
            message, size = [], 0
    if message:
        outbox.put(message, size)


def _end_with_parent() -> None:
    """Leave at once when the parent is gone, also when it was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
