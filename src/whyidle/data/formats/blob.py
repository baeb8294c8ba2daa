"""The blob: samples end to end in one memory-mapped file, or in a few.

A file begins with 16 bytes that never differ. A sample is its hash (u64), the number of its fields
(u16), per field the length of its name (u8), the name and the length of its bytes (u64), and then
the bytes of the fields; all integers are little-endian. ``samples.index`` says where each begins.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whyidle.data.formats import Place
from whyidle.data.formats.appended import AppendingWriter
from whyidle.data.formats.base import PlacedReader
from whyidle.data.records import in_order, sample_hash

MAGIC = b"whyidle blob 1\n\0"


class Writer(AppendingWriter):
    """Appends samples to ``shard-00000.blob`` and those that follow it."""

    suffix = ".blob"
    head = MAGIC

    def record(self, key: str, fields: Mapping[str, bytes], offset: int) -> bytes:
        """The sample without its key, which is in the index."""
        ordered = in_order(fields)
        head = [struct.pack("<QH", sample_hash(fields), len(ordered))]
        for name, content in ordered:
            spelled = name.encode()
            head.append(bytes([len(spelled)]) + spelled + struct.pack("<Q", len(content)))
        return b"".join(head + [content for _, content in ordered])


class Reader(PlacedReader):
    """Reads samples from memory-mapped files, in any order, at the same cost."""

    def open_shard(self, path: Path) -> mmap.mmap:
        """Map one file; its first bytes must be those of a blob."""
        with open(path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if mapped[: len(MAGIC)] != MAGIC:
            mapped.close()
            raise ValueError("the first bytes of the file are not those of a blob")
        return mapped

    def load(self, opened: Any, place: Place) -> dict[str, bytes]:
        """The fields at ``place``, read exactly as the record's own head says."""
        record = opened[place.offset : place.offset + place.length]
        if len(record) != place.length:
            raise ValueError("the file is cut short")
        try:
            hash, count = struct.unpack_from("<QH", record)
            at, heads = 10, []
            for _ in range(count):
                end = at + 1 + record[at]
                heads.append(
                    (record[at + 1 : end].decode(), *struct.unpack_from("<Q", record, end))
                )
                at = end + 8
        except struct.error as error:
            raise ValueError("its head makes no sense") from error
        fields = {}
        for name, length in heads:
            fields[name] = record[at : at + length]
            at += length
        if at != place.length or len(fields) != count:
            raise ValueError("its head makes no sense")
        if hash != sample_hash(fields):
            raise ValueError("its bytes do not agree with their hash")
        return fields
