"""What a command printed, as text: UTF-8 or UTF-16, with or without colours.

PowerShell writes UTF-16, terminals colour headers, logs hold bytes that are no text at all. A
reader of samples sees none of that; what had to be replaced is said in a note.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from whyidle.errors import UnreadableEvidence
from whyidle.readers.source_bytes import BLOCK, SourceBytes

Progress = Callable[[int, int], None]

TEXT_LIMIT = 256 << 20
"""Bytes of text that are held at once; a longer series is read block by block."""

PART = 32 << 20
"""Bytes of a block of lines of a series."""

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]")
_ANSI_BYTES = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]")
_UTF8_MARK = b"\xef\xbb\xbf"


class Printed(NamedTuple):
    """A file's text, the digest of its bytes, and what to say about both."""

    text: str
    digest: str
    notes: list[str]


def encoding_of(head: bytes) -> str:
    """UTF-16 where a mark or the zero bytes of Latin text say so, else UTF-8."""
    if head.startswith(b"\xff\xfe") or head[1:4:2] == b"\x00\x00" != head[0:4:2]:
        return "utf-16-le"
    if head.startswith(b"\xfe\xff") or head[0:4:2] == b"\x00\x00" != head[1:4:2]:
        return "utf-16-be"
    return "utf-8"


@lru_cache(maxsize=4)
def decoded(head: bytes) -> str:
    """Bytes as text without marks, colours and carriage returns; bad bytes are replaced."""
    text = head.decode(encoding_of(head), errors="replace").removeprefix("\ufeff")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def printed(path: Path, progress: Progress | None = None) -> Printed:
    """The whole text of a file; raises an EvidenceError when it cannot be had."""
    blocks: list[bytes] = []
    with SourceBytes(path) as source:
        for block in _blocks(source):
            blocks.append(block)
            if source.given > TEXT_LIMIT:
                raise UnreadableEvidence(
                    str(path),
                    f"more than {TEXT_LIMIT >> 20} MiB of this kind of text",
                    "Split the file and give the part of the job that matters.",
                )
            if progress is not None:
                progress(source.at, source.size)
        notes, digest = list(source.notes), source.digest()
    text = decoded.__wrapped__(b"".join(blocks))
    if "\ufffd" in text:
        notes.append(f"{text.count(chr(0xFFFD))} bytes that are no text were replaced")
    return Printed(text, digest, notes)


class Series:
    """A file of lines, however long, in blocks of whole lines; ``digest`` is known at the end."""

    def __init__(self, path: Path, progress: Progress | None = None) -> None:
        """Read ``path`` once, when asked for its parts."""
        self.path = path
        self.digest: str | None = None
        self._progress = progress

    def parts(self) -> Iterator[tuple[bytes, float]]:
        """Blocks of whole lines as UTF-8 without colours, and the share of the file read then."""
        with SourceBytes(self.path) as source:
            rest, encoding = b"", None
            for block in _blocks(source, PART):
                encoding = encoding or encoding_of(block)
                end = _line_end(rest + block, encoding)
                whole, rest = (rest + block)[:end], (rest + block)[end:]
                if whole:
                    yield _plain(whole, encoding), source.at / max(source.size, 1)
                if self._progress is not None:
                    self._progress(source.at, source.size)
            if rest:
                yield _plain(rest, encoding or "utf-8"), 1.0
            self.digest = source.digest()


def _line_end(data: bytes, encoding: str) -> int:
    newline = "\n".encode(encoding)
    at = data.rfind(newline)
    while at >= 0 and at % len(newline):
        at = data.rfind(newline, 0, at)
    return at + len(newline) if at >= 0 else 0


def _plain(lines: bytes, encoding: str) -> bytes:
    if encoding != "utf-8":
        lines = lines.decode(encoding, errors="replace").removeprefix("\ufeff").encode()
    lines = lines.removeprefix(_UTF8_MARK)
    if b"\x1b" in lines:
        lines = _ANSI_BYTES.sub(b"", lines)
    if b"\r" in lines:
        lines = lines.replace(b"\r\n", b"\n")
    return lines if lines.endswith(b"\n") else lines + b"\n"


def _blocks(source: SourceBytes, size: int = BLOCK) -> Iterator[bytes]:
    buffer = bytearray(size)
    view = memoryview(buffer)
    filled = 0
    while True:
        count = source.read_into(view[filled:])
        filled += count
        if filled == size or (not count and filled):
            yield bytes(view[:filled])
            filled = 0
        if not count:
            return
