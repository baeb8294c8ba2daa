"""The nouns of data sets: a sample, a bad sample, and the hash that proves a sample whole.

Field names are file extensions, as in WebDataset: ``jpg``, ``png``, ``cls`` (a class number in
ASCII decimal), ``json``, ``npy``, ``txt``, ``bin``. Fields are always in the order of their names.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import NamedTuple

from whyidle.errors import DataError, MissingPackage, clear

Fields = Mapping[str, bytes]
"""Field name -> its bytes, as they lie in the source."""

FIELD_NAME = re.compile(r"[a-z0-9][a-z0-9_.]{0,63}")
"""What a field may be called, so that every format can hold it."""


class Sample(NamedTuple):
    """One sample: its key (not necessarily unique) and its fields."""

    key: str
    fields: dict[str, bytes]


class BadSample(DataError):
    """A sample that its source lists and cannot give: counted and listed, the rest goes on."""

    def __init__(self, key: str, reason: str) -> None:
        """Keep whose sample it is and why it cannot be read."""
        super().__init__(f"{clear(key)}: {reason}.\nThe sample was left out.")
        self.key, self.reason = key, reason

    def __reduce__(self) -> tuple[type[BadSample], tuple[str, str]]:
        """Survive the way from a worker process."""
        return BadSample, (self.key, self.reason)


def in_order(fields: Fields) -> list[tuple[str, bytes]]:
    """The fields as (name, bytes), in the fixed order of their names."""
    return sorted(fields.items())


def sample_hash(fields: Fields) -> int:
    """xxh3-64 over (name, NUL, length as little-endian u64, bytes) of each field in order."""
    try:
        from xxhash import xxh3_64
    except ImportError as error:
        raise MissingPackage("xxhash", "A packed data set") from error
    hash = xxh3_64()
    for name, content in in_order(fields):
        hash.update(name.encode() + b"\0" + struct.pack("<Q", len(content)))
        hash.update(content)
    return hash.intdigest()
