"""Finds its way in a Chrome trace of any size, by bytes, without parsing the events.

Only brackets outside strings are counted: in bulk inside the event list, and token by token
around it. So the events pass through unchanged, whatever they hold.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO, cast

from whyidle.errors import UnreadableEvidence

CHUNK_BYTES = 4 << 20

_GZIP = b"\x1f\x8b"
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|[\[\]{}:,]|[^\s"\[\]{}:,]+', re.DOTALL)
_NOT_BRACKETS = bytes(sorted(set(range(256)) - set(b"[]{}")))
_STEP = [1 if byte in b"[{" else -1 if byte in b"]}" else 0 for byte in range(256)]
_AGAIN = "Is it the trace that was diagnosed? Record or copy it again."


@dataclass(frozen=True)
class Layout:
    """Where things lie in a trace, as offsets in its decompressed bytes.

    ``end`` is the offset of the bracket that closes the event list; ``empty`` tells whether the
    list holds nothing; ``base_ns`` is the file's ``baseTimeNanoseconds``, 0 when it has none.
    """

    end: int
    empty: bool
    base_ns: int


def opened(path: Path) -> BinaryIO:
    """The decompressed bytes of a plain or gzip file."""
    with path.open("rb") as file:
        packed = file.read(2) == _GZIP
    return cast(BinaryIO, gzip.open(path, "rb")) if packed else path.open("rb")


def chunks(stream: BinaryIO) -> Iterator[bytes]:
    """The bytes of a stream in pieces of bounded size."""
    while piece := stream.read(CHUNK_BYTES):
        yield piece


def find_layout(path: Path) -> Layout:
    """Where the event list of the trace ends, and its base time.

    Raises UnreadableEvidence when the file is no Chrome trace or breaks off.
    """
    scan = _Scan(str(path))
    try:
        with opened(path) as stream:
            for piece in chunks(stream):
                scan.feed(piece)
    except (OSError, EOFError, zlib.error) as error:
        raise UnreadableEvidence(str(path), f"cannot be read ({error})", _AGAIN) from error
    return scan.finish()


@dataclass
class _Scan:
    """Where a pass over the file stands; depth counts open brackets."""

    path: str
    offset: int = 0  # of the first byte of ``rest``
    rest: bytes = b""
    depth: int = 0
    list_depth: int = 0  # depth inside the event list; 0 = not reached yet
    in_list: bool = False
    in_string: bool = False
    end: int = -1
    empty: bool = True
    base_ns: int = 0
    keys: list[bytes] = field(default_factory=list)  # the last two tokens at depth 1

    def feed(self, piece: bytes) -> None:
        """Take in the next bytes of the file."""
        self.rest += piece
        while self.rest:
            before = self.offset
            if self.in_list:
                self._skip_events()
            else:
                self._read_tokens(last=False)
            if self.offset == before:
                return

    def finish(self) -> Layout:
        """The layout, once all bytes were fed."""
        if self.rest and not self.in_list:
            self._read_tokens(last=True)
        if self.end < 0:
            found = "the event list has no end" if self.in_list else "holds no list of events"
            raise UnreadableEvidence(self.path, found, _AGAIN)
        return Layout(self.end, self.empty, self.base_ns)

    def _consume(self, size: int) -> None:
        self.rest = self.rest[size:]
        self.offset += size

    def _read_tokens(self, *, last: bool) -> None:
        """Read around the event list, token by token; the last token may be cut off."""
        for token in _TOKEN.finditer(self.rest):
            if token.end() == len(self.rest) and not last and token[0] not in b"[]{}:,":
                self._consume(token.start())
                return
            self._take(token[0])
            if self.in_list:
                self._consume(token.end())
                return
        self._consume(len(self.rest))

    def _take(self, token: bytes) -> None:
        if token in (b"[", b"{"):
            self.depth += 1
            if token == b"[" and self.end < 0 and self._opens_events():
                self.in_list, self.list_depth = True, self.depth
        elif token in (b"]", b"}"):
            self.depth -= 1
        elif self.depth == 1:
            if self.keys[-2:] == [b'"baseTimeNanoseconds"', b":"]:
                self.base_ns = _whole(token)
            self.keys = [*self.keys[-1:], token]

    def _opens_events(self) -> bool:
        if self.depth == 1:
            return True
        return self.depth == 2 and self.keys[-2:] == [b'"traceEvents"', b":"]

    def _skip_events(self) -> None:
        """Pass over events in bulk, until the chunk in which their list closes."""
        piece = self.rest
        while piece.endswith(b"\\"):  # keep an escape and what it escapes together
            piece = piece[:-1]
        if not piece:
            return
        brackets, ends_in_string = _brackets(piece, self.in_string)
        depths = list(accumulate(map(_STEP.__getitem__, brackets), initial=self.depth))
        if min(depths) < self.list_depth:
            self._close_list(piece)
            return
        if self.empty and piece.strip():
            self.empty = False
        self.depth, self.in_string = depths[-1], ends_in_string
        self._consume(len(piece))

    def _close_list(self, piece: bytes) -> None:
        """Find the closing bracket in the piece that is known to hold it."""
        start = 0
        if self.in_string:
            ended = re.compile(rb'(?:[^"\\]|\\.)*"', re.DOTALL).match(piece)
            start = ended.end() if ended else len(piece)
        for token in _TOKEN.finditer(piece, start):
            self.depth += _STEP[token[0][0]] if len(token[0]) == 1 else 0
            if self.depth < self.list_depth:
                self.empty = self.empty and not piece[: token.start()].strip()
                self.end = self.offset + token.start()
                self.in_list = self.in_string = False
                self._consume(token.end())
                return


def _brackets(piece: bytes, in_string: bool) -> tuple[bytes, bool]:
    """The brackets outside strings, in order, and whether the piece ends inside a string."""
    if b"\\" in piece:
        piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
    parts = piece.split(b'"')
    outside = b"".join(parts[1 if in_string else 0 :: 2])
    return outside.translate(None, _NOT_BRACKETS), in_string ^ (len(parts) % 2 == 0)


def _whole(token: bytes) -> int:
    try:
        return int(token)
    except ValueError:
        return round(float(token)) if re.fullmatch(rb"[-+0-9.eE]+", token) else 0
