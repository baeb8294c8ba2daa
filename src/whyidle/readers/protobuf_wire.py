"""Protobuf on the wire, field by field, without a schema compiler: bounded and never trusted."""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class BrokenMessage(ValueError):
    """Bytes that are no message."""


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at a place, and the place after it."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise BrokenMessage("a number without an end")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & ((1 << 64) - 1), at
        shift += 7


def signed(value: int) -> int:
    """A number of 64 bits as a signed one."""
    return value - (1 << 64) if value >> 63 else value


def fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """(number, wire type, value) of every field of a message, in its order."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, at = varint(data, at)
            yield number, kind, value
            continue
        if kind == BYTES:
            size, at = varint(data, at)
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
        else:
            raise BrokenMessage(f"wire type {kind}")
        if size > len(data) - at:
            raise BrokenMessage("a field longer than its message")
        yield number, kind, data[at : at + size]
        at += size


def blobs(data: bytes, wanted: int) -> Iterator[bytes]:
    """The bytes of every field of this number."""
    for number, _, value in fields(data):
        if number == wanted and isinstance(value, bytes):
            yield value
