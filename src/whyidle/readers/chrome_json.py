"""Streams a Chrome trace: the events in chunks that are whole JSON arrays, the other keys apart.

A chunk is cut where one event seems to end and the next to begin. The cut is proven by decoding:
a piece of valid JSON that itself decodes as an array can only end between two events. When no
guess decodes, the chunk is scanned bracket by bracket, which finds the true cut and tells broken
JSON from a wrong guess. Memory holds one chunk, never the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NoReturn, TypeVar

import msgspec

from whyidle.errors import UnknownEvidence, UnreadableEvidence
from whyidle.readers.json_text import (
    BRACKET,
    SCALAR,
    SPACE,
    STRING,
    diagnose_json,
    null_for_no_number,
    scan_elements,
)
from whyidle.readers.source_bytes import SourceBytes

Decoded = TypeVar("Decoded")

CHUNK = 1 << 20
EVENT_LIMIT = 64 << 20
"""One event, or one value beside the events, may have this many bytes."""

_FIRST_KEYS = (b'"ph"', b'"name"', b'"cat"', b'"pid"', b'"tid"', b'"ts"', b'"args"')
_GUESSES = 3


class NoEvents(Exception):
    """A JSON object without traceEvents; ``keys`` has its raw values."""

    def __init__(self, keys: dict[str, bytes]) -> None:
        """Keep the keys, from which a reader can say what the file is."""
        super().__init__("no traceEvents")
        self.keys = keys


class EventStream:
    """The top level of one trace. ``keys`` fills with the other keys' raw JSON values."""

    def __init__(self, source: SourceBytes, chunk: int = CHUNK) -> None:
        """Read from an open source, about ``chunk`` bytes at a time; nothing is read yet."""
        self.source = source
        self._chunk = chunk
        self.keys: dict[str, bytes] = {}
        self.is_list = False
        self.repaired = 0
        self._buffer = bytearray(chunk + 4096)
        self._start = self._end = 1  # one spare byte in front, for the opening bracket
        self._offset = 0  # decompressed bytes before the buffer
        self._ended = False

    def batches(self, decode: Callable[[memoryview], Decoded]) -> Iterator[Decoded]:
        """What ``decode`` makes of each chunk of events, in order.

        ``decode`` gets a JSON array and raises msgspec.DecodeError when it is malformed. Raises
        UnreadableEvidence for broken JSON and UnknownEvidence for JSON that is not a trace.
        """
        self._skip_mark()
        first = self._next()
        if first == b"[":
            self.is_list = True
            self._start += 1
            yield from self._events(decode)
        elif first == b"{":
            self._start += 1
            yield from self._object(decode)
        else:
            self._broken("the text is not JSON")
        self._nothing_more()

    # -- the top level

    def _object(self, decode: Callable[[memoryview], Decoded]) -> Iterator[Decoded]:
        seen = False
        while (found := self._next()) != b"}":
            if self.keys or seen:
                if found != b",":
                    self._broken("a comma was expected")
                self._start += 1
            key = self._key()
            if key != "traceEvents":
                self.keys[key] = self._value()
                continue
            if seen:
                self._broken("a second traceEvents list")
            if self._next() != b"[":
                raise UnknownEvidence(
                    str(self.source.path),
                    "JSON whose traceEvents is not a list",
                    "Name a trace written by torch.profiler (export_chrome_trace).",
                )
            seen = True
            self._start += 1
            yield from self._events(decode)
        self._start += 1
        if not seen:
            raise NoEvents(self.keys)

    def _key(self) -> str:
        self._next()
        match = self._matched(STRING)
        if match is None:
            self._broken("a key was expected")
        self._start = match.end()
        if self._next() != b":":
            self._broken("a colon was expected")
        self._start += 1
        return match.group(1).decode("utf-8", "replace")

    def _value(self) -> bytes:
        first = self._next()
        if first in (b"{", b"["):
            depth, at = 0, self._start
            while True:
                found = BRACKET.match(self._buffer, at, self._end)
                if found is None:
                    at = self._more_from(at)
                    continue
                depth += 1 if found.group(1) in b"[{" else -1
                at = found.end()
                if depth == 0:
                    break
        else:
            match = self._matched(STRING if first == b'"' else SCALAR)
            if match is None:
                self._broken("a value was expected")
            at = match.end()
        value = bytes(self._buffer[self._start : at])
        self._start = at
        return value

    def _matched(self, pattern: re.Pattern[bytes]) -> re.Match[bytes] | None:
        """The pattern at the cursor; reads on while the text could still complete it."""
        while True:
            found = pattern.match(self._buffer, self._start, self._end)
            if found is not None or self._ended or self._end - self._start > EVENT_LIMIT:
                return found
            self._fill(2 * (self._end - self._start) + 4096)

    def _more_from(self, at: int) -> int:
        """Read on inside a value; where ``at`` lies afterwards."""
        if self._ended:
            self._cut_off()
        if self._end - self._start > EVENT_LIMIT:
            self._broken(f"one value of more than {EVENT_LIMIT >> 20} MiB beside the events")
        done = at - self._start
        self._fill(2 * (self._end - self._start) + 4096)
        return self._start + done

    def _nothing_more(self) -> None:
        while True:
            rest = bytes(self._buffer[self._start : self._end]).lstrip(SPACE + b"\x00")
            if rest:
                self._start = self._end - len(rest)
                self._broken("more data after the end of the JSON")
            if self._ended:
                return
            self._start = self._end
            self._fill(self._chunk)

    # -- the events

    def _events(self, decode: Callable[[memoryview], Decoded]) -> Iterator[Decoded]:
        target = self._chunk
        while True:
            self._fill(target)
            first = self._next()
            if first == b"]":
                self._start += 1
                return
            if first in b",}":
                self._broken("an event was expected")
            decoded = self._guess(decode)
            if decoded is not None:
                yield decoded
                continue
            span = scan_elements(self._buffer, self._start, self._end)
            stop = span.last if span.closed is None else self._before_closing(span.closed)
            if stop is not None:
                yield self._decode_surely(decode, stop)
                target = self._chunk
                if self._next() == b",":
                    self._start += 1
                continue
            if self._ended:
                self._cut_off()
            if self._end - self._start > EVENT_LIMIT:
                self._broken(f"no event ends within {EVENT_LIMIT >> 20} MiB")
            target = 2 * (self._end - self._start)

    def _before_closing(self, closed: int) -> int:
        """Where the last event ends: at the closing bracket, or at a comma left before it."""
        at = closed - 1
        while at > self._start and self._buffer[at] in SPACE:
            at -= 1
        return at if self._buffer[at] == 0x2C else closed

    def _guess(self, decode: Callable[[memoryview], Decoded]) -> Decoded | None:
        """Decode up to a likely cut; None when no guess decodes. Consumes what it decoded."""
        guesses, at = 0, self._end
        for _ in range(64):
            at = self._buffer.rfind(b"},", self._start, at)
            if at < 0 or guesses == _GUESSES:
                return None
            head = bytes(self._buffer[at + 2 : at + 34]).lstrip(SPACE)
            if not head.startswith(b"{") or not head[1:].lstrip(SPACE).startswith(_FIRST_KEYS):
                continue
            guesses += 1
            try:
                decoded = decode(self._bracketed(at + 1))
            except (msgspec.DecodeError, RecursionError):
                self._buffer[at + 1] = 0x2C  # the comma that the closing bracket replaced
                continue
            self._start = at + 2
            return decoded
        return None

    def _decode_surely(self, decode: Callable[[memoryview], Decoded], stop: int) -> Decoded:
        """Decode up to a cut known to be right; repairs NaN and infinities, else raises."""
        before = self._buffer[stop : stop + 1]
        try:
            decoded = decode(self._bracketed(stop))
        except (msgspec.DecodeError, RecursionError) as error:
            text, count = null_for_no_number(bytes(self._buffer[self._start : stop]))
            if not count:
                self._explain(error, stop)
            try:
                decoded = decode(memoryview(b"[" + text + b"]"))
            except (msgspec.DecodeError, RecursionError) as again:
                self._explain(again, stop)
            self.repaired += count
        self._buffer[stop : stop + 1] = before
        self._start = stop
        return decoded

    def _bracketed(self, stop: int) -> memoryview:
        """The events before ``stop`` between brackets, written over the bytes around them."""
        self._buffer[self._start - 1] = 0x5B
        self._buffer[stop] = 0x5D
        return memoryview(self._buffer)[self._start - 1 : stop + 1]

    # -- the buffer

    def _fill(self, wanted: int) -> None:
        """Have at least ``wanted`` bytes from the cursor on, or all that is left."""
        kept = self._end - self._start
        if self._ended or kept >= wanted:
            return
        self._offset += self._start - 1
        if wanted + 2 > len(self._buffer):
            larger = bytearray(wanted + 4096)
            larger[1 : 1 + kept] = self._buffer[self._start : self._end]
            self._buffer = larger
        elif self._start > 1:
            self._buffer[1 : 1 + kept] = self._buffer[self._start : self._end]
        self._start, self._end = 1, 1 + kept
        view = memoryview(self._buffer)
        while self._end < 1 + wanted:
            count = self.source.read_into(view[self._end : len(self._buffer) - 1])
            if not count:
                self._ended = True
                return
            self._end += count

    def _next(self) -> bytes:
        """The next byte that is not white space, with the cursor on it."""
        while True:
            while self._start < self._end and self._buffer[self._start] in SPACE:
                self._start += 1
            if self._start < self._end:
                return bytes(self._buffer[self._start : self._start + 1])
            if self._ended:
                self._cut_off()
            self._fill(self._chunk)

    def _skip_mark(self) -> None:
        self._fill(self._chunk)
        if self._buffer.startswith(b"\xef\xbb\xbf", self._start):
            self._start += 3

    # -- errors

    def _position(self, at: int) -> int:
        return self._offset + at - 1

    def _cut_off(self) -> NoReturn:
        raise UnreadableEvidence(
            str(self.source.path),
            f"the JSON ends early, at byte {self._position(self._end)}",
            "The file was cut: copy it again, or record again and let the profiler finish.",
        )

    def _broken(self, what: str) -> NoReturn:
        raise UnreadableEvidence(
            str(self.source.path),
            f"not valid JSON: {what} at byte {self._position(self._start)}",
            "Check that the file is a trace written by torch.profiler, and copy it again.",
        )

    def _explain(self, error: Exception, stop: int) -> NoReturn:
        """Say what is wrong with events that do not decode, and at which byte."""
        at, what, next_step = diagnose_json(error, bytes(self._buffer[self._start : stop]))
        where = "" if at is None else f" at byte {self._position(self._start) + at}"
        raise UnreadableEvidence(
            str(self.source.path), f"not valid JSON: {what}{where}", next_step
        ) from error
