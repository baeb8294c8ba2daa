"""The history in a memory snapshot, taken in entry by entry while the pickle is read.

A snapshot may hold millions of entries, each a dictionary with a list of frames: as Python objects
ten times its size on disk. So each entry becomes numbers in arrays as soon as it is complete, and
its dictionary is emptied. Frames and stacks are kept once, however often they recur.
"""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from whyidle.errors import UnreadableEvidence
from whyidle.model import ALLOCATIONS, frame
from whyidle.readers.restricted_pickle import told

MOST_FRAMES = 48
MOST_TEXT = 300
MOST_STACK_TEXT = 1 << 28
"""Characters of all distinct stacks together; those that come after are cut to a line."""
_NO_STACK = -1


class Stacks:
    """Distinct call stacks, numbered, and their text."""

    def __init__(self) -> None:
        """Begin without any."""
        self._frames: dict[int, int] = {}  # id of a frame's dictionary -> number
        self._alive: list[Any] = []  # so that no id is used twice
        self._texts: list[str] = []
        self._by_text: dict[str, int] = {}
        self._places: dict[tuple[int, ...], int] = {}  # ids of frames -> number of the stack
        self._numbers: dict[tuple[int, ...], int] = {}  # numbers of frames -> number of the stack
        self._joined: list[str] = []
        self._room = MOST_STACK_TEXT

    def number(self, frames: Any) -> int:
        """The number of a list of frames; -1 when none was kept.

        A list that was seen is replaced in place by its number, since blocks share it with the
        history.
        """
        if type(frames) is not list or not frames:
            return _NO_STACK
        if type(frames[0]) is int:
            return frames[0] if len(frames) == 1 and 0 <= frames[0] < len(self._numbers) else -1
        places = tuple(map(id, frames))
        number = self._places.get(places, -1)
        if number < 0:
            key = tuple([self._frame(found) for found in frames])
            number = self._numbers.setdefault(key, len(self._numbers))
            self._places[places] = number
        frames[:] = [number]
        return number

    def text(self, number: int) -> str | None:
        """The stack as text, innermost first; see ``texts``."""
        return None if number < 0 else self.texts()[number]

    def texts(self) -> list[str]:
        """Every stack as text: its Python frames, or all where it has none."""
        if len(self._joined) < len(self._numbers):
            for key in list(self._numbers)[len(self._joined) :]:
                lines = [self._texts[at] for at in key]
                python = [line for line in lines if _is_python(line)]
                most = MOST_FRAMES if self._room > 0 else 1
                self._joined.append("\n".join((python or lines)[:most]))
                self._room -= len(self._joined[-1])
        return self._joined

    def _frame(self, found: Any) -> int:
        known = self._frames.get(id(found))
        if known is not None:
            return known
        text = "?(0): ?"
        if isinstance(found, dict):
            file = told(found.get("filename", "?"), 2 * MOST_TEXT)
            name = told(found.get("name", "?"), 2 * MOST_TEXT)
            line = found.get("line")
            whole = line if type(line) is int and 0 <= line < 1 << 31 else 0
            text = f"{file[:MOST_TEXT]}({whole}): {name[:MOST_TEXT]}".replace("\n", " ")
            if file == "none" and _is_python(name):  # made from a profile: all is in the name
                text = name[: 2 * MOST_TEXT].replace("\n", " ")
        number = self._by_text.setdefault(text, len(self._by_text))
        if number == len(self._texts):
            self._texts.append(text)
        self._frames[id(found)] = number
        self._alive.append(found)
        return number


def _is_python(line: str) -> bool:
    file = line.partition("(")[0]
    return file.endswith(".py") or file.startswith("<")


class History:
    """Entries of the allocator's history, in the order of the file."""

    def __init__(self) -> None:
        """Begin without any."""
        self.stacks = Stacks()
        self._actions: dict[str, int] = {}
        self._action = array("H")
        self._address = array("Q")
        self._bytes = array("q")
        self._lane = array("q")
        self._time = array("q")
        self._free = array("q")
        self._stack = array("i")
        self._odd = 0

    def absorb(self, entry: dict[Any, Any]) -> None:
        """Take in a dictionary that is an entry, and empty it; others are left alone."""
        action = entry.get("action")
        if action is None:
            return
        get = entry.get
        address, size, lane = get("addr", 0), get("size"), get("stream", 0)
        time, free = get("time_us", -1), get("device_free", -1)
        if (
            type(action) is str
            and type(address) is type(size) is type(lane) is type(time) is type(free) is int
            and 0 <= address < 1 << 64
            and 0 <= size < 1 << 62
            and -(1 << 63) <= lane < 1 << 63
            and -1 <= time < 1 << 53
            and -1 <= free < 1 << 62
        ):
            code = self._actions.setdefault(action, len(self._actions))
            if code < 1 << 10:
                self._action.append(code)
                self._address.append(address)
                self._bytes.append(size)
                self._lane.append(lane)
                self._time.append(time)
                self._free.append(free)
                self._stack.append(self.stacks.number(get("frames")))
                entry.clear()
                return
        self._odd += 1
        entry.clear()
        entry["odd"] = True

    def frame(self, path: Path, traces: list[Any], rank: int | None) -> pl.DataFrame:
        """The ``allocations`` table; ``traces`` tells which entries are of which device."""
        if len(set(map(id, traces))) < len(traces):
            raise UnreadableEvidence(
                str(path), "one history for several devices", "Dump the snapshot again."
            )
        counts = []
        for trace in traces:
            count = 0
            for entry in trace if isinstance(trace, list) else []:
                if isinstance(entry, dict) and "action" in entry:
                    self.absorb(entry)  # a pickle that fills dictionaries key by key
                count += isinstance(entry, dict) and not entry
            counts.append(count)
        total = len(self._action)
        if sum(counts) != total:
            raise UnreadableEvidence(
                str(path),
                f"{total} events of the allocator, but {sum(counts)} in the lists of the devices",
                "The file was changed after it was written: dump the snapshot again.",
            )
        devices = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        starts = np.repeat(np.cumsum(counts, dtype=np.int64) - counts, counts)
        names = pl.Series("action", [a[:40] for a in self._actions], dtype=pl.Categorical)
        texts = pl.Series("stack", self.stacks.texts(), dtype=pl.Categorical)
        time = pl.Series("t_ns", np.asarray(self._time, dtype=np.int64))
        columns = {
            "event": np.arange(total, dtype=np.int64) - starts,
            "device": devices,
            "action": _gathered(names, self._action),
            "t_ns": pl.select(pl.when(time >= 0).then(time * 1000)).to_series(),
            "address": np.asarray(self._address, dtype=np.uint64),
            "bytes": np.asarray(self._bytes, dtype=np.int64),
            "lane": np.asarray(self._lane, dtype=np.int64),
            "free_bytes": np.asarray(self._free, dtype=np.int64),
            "stack": _gathered(texts, self._stack),
        }
        table = pl.DataFrame(columns).with_columns(
            pl.lit(0).alias("source"),
            pl.lit(rank, dtype=pl.Int32).alias("rank"),
            pl.when(pl.col("free_bytes") >= 0).then("free_bytes").alias("free_bytes"),
            pl.when(pl.col("address") > 0).then("address").alias("address"),
        )
        return frame(ALLOCATIONS, table)

    def notes(self) -> list[str]:
        """What a reader of the report should know."""
        return [f"{self._odd} events without what they must hold, left out"] if self._odd else []


def _gathered(values: pl.Series, numbers: array[int]) -> pl.Series:
    """values[numbers], null where a number is below 0."""
    at = np.asarray(numbers, dtype=np.int64)
    if not len(values):
        return pl.Series(values.name, [None] * len(at), dtype=values.dtype)
    found = values.gather(np.maximum(at, 0))
    return pl.select(pl.when(pl.Series(at >= 0)).then(found)).to_series()
