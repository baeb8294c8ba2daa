"""TFRecord: one ``tf.train.Example`` a sample, each field a feature of one byte string.

The key is the feature ``__key__``. Every record is written with its two checksums, and both are
checked whenever a record is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whyidle.data.formats import Place
from whyidle.data.formats.appended import AppendingWriter
from whyidle.data.formats.base import PlacedReader
from whyidle.data.formats.example import FRAME, LARGEST, example_of, features_of, framed, unframed
from whyidle.data.formats.mapped import close, mapped
from whyidle.data.records import BadSample

KEY = "__key__"
"""The feature that holds a sample's key; no field can be called so."""


class Writer(AppendingWriter):
    """Appends records to ``shard-00000.tfrecord`` and those that follow it."""

    suffix = ".tfrecord"

    def record(self, key: str, fields: Mapping[str, bytes], offset: int) -> bytes:
        """The sample as one record; it is the same wherever it lies."""
        if sum(map(len, fields.values())) + 4096 > LARGEST:
            raise BadSample(key, "it has more than 2 GiB, which a TFRecord cannot hold")
        example = example_of({**fields, KEY: key.encode("utf-8", "surrogateescape")})
        return framed(example)


class Reader(PlacedReader):
    """Reads records by their offsets, in any order, from memory-mapped files."""

    def open_shard(self, path: Path) -> Any:
        """Map one file."""
        return mapped(path)

    def close_shard(self, opened: Any) -> None:
        """Unmap one file."""
        close(opened)

    def load(self, opened: Any, place: Place) -> dict[str, bytes]:
        """The fields at ``place``; both checksums of the record are checked."""
        content = unframed(opened, place.offset)
        if len(content) + FRAME != place.length:
            raise ValueError("the length of the record is not what the index says")
        fields = {}
        for name, feature in features_of(content).items():
            if feature.kind != "bytes" or len(feature.values) != 1:
                raise ValueError(f"feature {name!r} is not one byte string")
            fields[name] = feature.values[0]
        if KEY not in fields:
            raise ValueError("the record names no key")
        del fields[KEY]
        return fields
