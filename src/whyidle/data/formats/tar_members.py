"""Members of a tar archive as bytes: written in one spelling, and found again with every header.

Written: POSIX ustar, owner 0, mode 0644, no time, so that equal samples are equal bytes. A name
that is not ASCII, or that does not fit, goes into a pax header, whose own name holds a digest of
it. Read: ustar, pax, and GNU's long names and large sizes.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator
from typing import NamedTuple

BLOCK = 512
LARGEST = 8**11 - 1
"""Bytes that the size of a ustar header can say."""

LONGEST_NAME = 1 << 20
"""Bytes of an extended header that are believed; a longer one is damage."""

END = bytes(2 * BLOCK)
"""What ends an archive."""

MAGIC_AT = 257
"""Where a header says ``ustar``."""


class Member(NamedTuple):
    """One member: its headers begin at ``start``, its bytes lie at ``offset``."""

    name: bytes
    start: int
    offset: int
    size: int
    regular: bool

    @property
    def end(self) -> int:
        """Where the next member begins."""
        return self.offset + padded(self.size)


class BrokenMember(ValueError):
    """A header that makes no sense, or a member that reaches past the end; ``at`` is its offset."""

    def __init__(self, at: int, found: str) -> None:
        """Keep where and what."""
        super().__init__(f"at byte {at}: {found}")
        self.at, self.found = at, found


def padded(size: int) -> int:
    """Bytes that a content takes, whole blocks."""
    return -(-size // BLOCK) * BLOCK


def member(name: bytes, content: bytes) -> bytes:
    """One member with its headers, padded to whole blocks."""
    split = _split(name)
    if split is None:
        told = _pax_record(b"path", name)
        digest = hashlib.blake2b(name, digest_size=16).hexdigest().encode()
        extended = _header(b"PaxHeaders/" + digest, b"", len(told), b"x") + _filled(told)
        short = bytes(byte if 32 <= byte < 127 else 95 for byte in name[:100])
        return extended + _header(short, b"", len(content), b"0") + _filled(content)
    return _header(split[1], split[0], len(content), b"0") + _filled(content)


def _filled(content: bytes) -> bytes:
    return content + bytes(-len(content) % BLOCK)


def _split(name: bytes) -> tuple[bytes, bytes] | None:
    """A name as prefix and name of a ustar header, or None where it does not fit."""
    if not name.isascii():
        return None
    if len(name) <= 100:
        return b"", name
    cut = name.find(b"/", max(len(name) - 101, 1))
    return (name[:cut], name[cut + 1 :]) if 0 < cut <= 155 and cut + 1 < len(name) else None


def _pax_record(key: bytes, value: bytes) -> bytes:
    """A record of a pax header: its length, which counts itself, KEY=VALUE, a line's end."""
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    length = rest + len(str(length))
    return b"%d %s=%s\n" % (length, key, value)


def _header(name: bytes, prefix: bytes, size: int, kind: bytes) -> bytes:
    head = b"".join(
        (
            name.ljust(100, b"\0"),
            b"0000644\0" + b"0000000\0" * 2,
            b"%011o\0" % size,
            b"%011o\0" % 0,
            b" " * 8,
            kind + bytes(100),
            b"ustar\00000" + bytes(64),
            b"0000000\0" * 2,
            prefix.ljust(155, b"\0"),
            bytes(12),
        )
    )
    return head[:148] + b"%06o\0 " % sum(head) + head[156:]


def checked(header: bytes) -> bool:
    """Whether a block is a header whose checksum agrees, as signed or as unsigned bytes."""
    if len(header) < BLOCK:
        return False
    try:
        told = int(header[148:156].strip(b"\0 ") or b"x", 8)
    except ValueError:
        return False
    unsigned = sum(header) - sum(header[148:156]) + 256
    if told == unsigned:
        return True
    return told == unsigned - 256 * sum(byte > 127 for byte in header[:148] + header[156:])


def members(held: mmap.mmap | bytes, at: int = 0, end: int | None = None) -> Iterator[Member]:
    """The members from ``at`` on, up to the end of the archive; raises ``BrokenMember``.

    The archive ends with blocks of zeros. Without them it may have been cut short between two
    members, which the caller can see.
    """
    end = len(held) if end is None else end
    start, name, size, shared = at, None, None, {}
    while at < end:
        header = bytes(held[at : at + BLOCK])
        if not any(header):
            return
        if not checked(header):
            cut = "the archive ends inside a header" if len(header) < BLOCK else None
            raise BrokenMember(at, cut or "the header of a member is damaged")
        kind, length = header[156:157], _number(header[124:136], at)
        if kind in b"xgLK" and kind:
            if length > LONGEST_NAME or at + BLOCK + length > end:
                raise BrokenMember(at, "an extended header makes no sense")
            told = bytes(held[at + BLOCK : at + BLOCK + length])
            if kind == b"L":
                name = told.rstrip(b"\0")
            elif kind in b"xg":
                facts = _pax_facts(told, at)
                if kind == b"g":
                    shared.update(facts)
                else:
                    name, size = facts.get(b"path", name), facts.get(b"size", size)
            at += BLOCK + padded(length)
            continue
        if size is None:
            size = shared.get(b"size")
        if size is not None:
            length = _decimal(size, at)
        if kind in (b"1", b"2", b"3", b"4", b"5", b"6"):  # links, devices and folders
            length = 0
        if at + BLOCK + length > end:
            raise BrokenMember(at, f"the archive ends inside {_shown(name or _name(header))}")
        found = Member(
            name or shared.get(b"path") or _name(header),
            start,
            at + BLOCK,
            length,
            kind in (b"0", b"\0", b"7"),
        )
        yield found
        at = start = found.end
        name = size = None


def next_sound(held: mmap.mmap | bytes, at: int) -> int | None:
    """The first sound ustar header that begins after ``at``, a whole number of blocks away.

    After a damaged header this is where the archive can be read again. Where the damaged header
    still says a size that leads to a sound header, that is the one: what lies between may be an
    archive itself.
    """
    header = bytes(held[at : at + BLOCK])
    if len(header) < BLOCK:
        return None
    if any(header):
        try:
            guess = at + BLOCK + padded(_number(header[124:136], at))
        except BrokenMember:
            guess = at
        if at < guess <= len(held) - BLOCK and checked(bytes(held[guess : guess + BLOCK])):
            return guess
    magic = at + BLOCK + MAGIC_AT
    while (magic := held.find(b"ustar", magic)) >= 0:
        start = magic - MAGIC_AT
        if (start - at) % BLOCK == 0 and checked(bytes(held[start : start + BLOCK])):
            return start
        magic += 1
    return None


def _name(header: bytes) -> bytes:
    name, prefix = header[:100].split(b"\0")[0], header[345:500].split(b"\0")[0]
    if prefix and header[257:263] == b"ustar\0":
        return prefix + b"/" + name
    return name


def _number(text: bytes, at: int) -> int:
    if text[0] in (0x80, 0xFF):  # GNU: a large number in binary
        return int.from_bytes(text[1:], "big")
    return _decimal(text.strip(b"\0 ") or b"0", at, 8)


def _decimal(text: bytes, at: int, base: int = 10) -> int:
    try:
        value = int(text, base)
    except ValueError:
        value = -1
    if value < 0:
        raise BrokenMember(at, "the size of a member makes no sense")
    return value


def _pax_facts(told: bytes, at: int) -> dict[bytes, bytes]:
    facts, start = {}, 0
    while start < len(told):
        space = told.find(b" ", start)
        length = _decimal(told[start:space], at) if space > start else 0
        record = told[space + 1 : start + length]
        key, equals, value = record.partition(b"=")
        if not equals or not value.endswith(b"\n") or start + length > len(told):
            raise BrokenMember(at, "an extended header makes no sense")
        facts[key] = value[:-1]
        start += length
    return facts


def _shown(name: bytes) -> str:
    return name[:100].decode("utf-8", "backslashreplace")
