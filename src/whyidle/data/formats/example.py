"""``tf.train.Example`` and the frame that TFRecord puts around it, written and read by ourselves.

A record is its length (u64), the masked CRC-32C of those eight bytes (u32), the bytes, and their
masked CRC-32C; all little-endian. The bytes are a protocol buffer: ``Example {1: Features {1:
repeated {1: name, 2: Feature {1: BytesList | 2: FloatList | 3: Int64List {1: values}}}}}``. What
is written has one spelling: features in the order of their names, each a list of one byte string.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from whyidle.data.formats.crc32c import Bytes, masked

FRAME = 16
"""Bytes around the content of a record."""

LARGEST = (1 << 31) - 1
"""Bytes that a protocol buffer may have."""

VARINT, FIXED64, GROUP, FIXED32 = 0, 1, 2, 5
"""Wire types; a group here is a length and as many bytes."""

NESTED = "a length reaches past the end of what holds it"


class Feature(NamedTuple):
    """One feature: ``kind`` is bytes, float, int64 or empty, with its values."""

    kind: str
    values: Any


def framed(content: bytes) -> bytes:
    """The content as one record."""
    length = struct.pack("<Q", len(content))
    head = length + struct.pack("<I", masked(length))
    return b"".join((head, content, struct.pack("<I", masked(content))))


def length_at(held: Bytes, at: int) -> int:
    """The length of the content of the record at ``at``; ``ValueError`` where it is damaged."""
    head = bytes(held[at : at + 12])
    if len(head) < 12:
        raise ValueError("the file ends inside the head of a record")
    length, crc = struct.unpack("<QI", head)
    if crc != masked(head[:8]):
        raise ValueError("the length of a record does not agree with its checksum")
    return int(length)


def unframed(held: Bytes, at: int) -> bytes:
    """The content of the record at ``at``, both checksums checked; ``ValueError`` if damaged."""
    length = length_at(held, at)
    content = bytes(held[at + 12 : at + 12 + length])
    check = bytes(held[at + 12 + length : at + FRAME + length])
    if len(content) < length or len(check) < 4:
        raise ValueError("the file ends inside a record")
    if struct.unpack("<I", check)[0] != masked(content):
        raise ValueError("the bytes of a record do not agree with its checksum")
    return content


def example_of(features: Mapping[str, bytes]) -> bytes:
    """An Example in which each feature is one byte string."""
    entries = []
    for name, content in sorted(features.items()):
        head, body = _head(1, len(content)), len(content)
        listed = _head(1, len(head) + body)
        spelled = name.encode()
        called = _head(1, len(spelled)) + spelled
        feature = _head(2, len(listed) + len(head) + body)
        entry = len(called) + len(feature) + len(listed) + len(head) + body
        entries += [_head(1, entry), called, feature, listed, head, content]
    inside = sum(map(len, entries))
    return b"".join((_head(1, inside), *entries))


def features_of(example: Bytes) -> dict[str, Feature]:
    """The features of an Example; ``ValueError`` where the bytes are no Example."""
    found: dict[str, Feature] = {}
    view = memoryview(example)
    for number, kind, features in _fields(view):
        if number != 1 or kind != GROUP:
            raise ValueError("the record is no Example")
        for inner, wire, entry in _fields(features):
            if inner != 1 or wire != GROUP:
                raise ValueError("the record is no Example")
            name, feature = "", Feature("empty", [])
            for part, wire_of_part, value in _fields(entry):
                if part == 1 and wire_of_part == GROUP:
                    name = bytes(value).decode()
                elif part == 2 and wire_of_part == GROUP:
                    feature = _feature(value)
                else:
                    raise ValueError("the record is no Example")
            found[name] = feature
    return found


def _feature(content: memoryview) -> Feature:
    feature = Feature("empty", [])
    for number, wire, values in _fields(content):
        if wire != GROUP or number not in (1, 2, 3):
            raise ValueError("the record is no Example")
        if number == 1:
            listed = []
            for inner, kind, value in _fields(values):
                if inner != 1 or kind != GROUP:
                    raise ValueError("the record is no Example")
                listed.append(bytes(value))
            feature = Feature("bytes", listed)
        elif number == 2:
            feature = Feature("float", np.frombuffer(_floats(values), "<f4"))
        else:
            feature = Feature("int64", np.array(list(_integers(values)), np.int64))
    return feature


def _floats(values: memoryview) -> bytes:
    """The floats of a list, packed into one run or one by one."""
    runs = []
    for number, wire, value in _fields(values):
        if number != 1 or wire not in (GROUP, FIXED32) or len(value) % 4:
            raise ValueError("the record is no Example")
        runs.append(bytes(value))
    return b"".join(runs)


def _integers(values: memoryview) -> Iterator[int]:
    for number, wire, value in _fields(values):
        if number != 1 or wire not in (GROUP, VARINT):
            raise ValueError("the record is no Example")
        at = 0
        while at < len(value):
            one, at = _varint(value, at)
            yield one - (1 << 64) if one >> 63 else one


def _fields(content: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """The fields of one message as (number, wire type, its bytes)."""
    at = 0
    while at < len(content):
        tag, at = _varint(content, at)
        wire = tag & 7
        if wire == GROUP:
            length, at = _varint(content, at)
            end = at + length
        elif wire == VARINT:
            _, end = _varint(content, at)
        elif wire in (FIXED32, FIXED64):
            end = at + (4 if wire == FIXED32 else 8)
        else:
            raise ValueError("the record is no protocol buffer")
        if end > len(content):
            raise ValueError(NESTED)
        yield tag >> 3, wire, content[at:end]
        at = end


def _varint(content: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(content) or shift > 63:
            raise ValueError("the record is no protocol buffer")
        byte = content[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7


def _head(number: int, length: int) -> bytes:
    """The tag of a field of bytes, and its length."""
    out = bytearray([number << 3 | GROUP])
    while length > 0x7F:
        out.append(length & 0x7F | 0x80)
        length >>= 7
    out.append(length)
    return bytes(out)
