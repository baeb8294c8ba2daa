"""TFRecord files that others wrote: each record a sample, its features the fields.

Lengths are read once, with their checksums, and stay in memory; nothing is written beside the
files. After a damaged length the next sound record is looked for, so that the rest is still read.

A feature ``jpg`` or ``cls`` keeps its name. Others get the ending that their content asks for:
``image/encoded`` with a JPEG becomes ``jpg`` where nothing else does, else ``image_encoded.jpg``;
a single integer ``cls``; other numbers ``npy``; several byte strings one field each. A record that
is no ``tf.train.Example`` is one field ``bin``.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import numpy as np

from whyidle.data.formats.array_field import header_of
from whyidle.data.formats.crc32c import crc32c_of_every_8, masked
from whyidle.data.formats.example import FRAME, Feature, features_of, length_at, unframed
from whyidle.data.formats.mapped import close, mapped
from whyidle.data.records import FIELD_NAME, BadSample
from whyidle.data.sources.shard_files import (
    LARGEST,
    OpenFiles,
    Spans,
    any_fits,
    digest_of,
    labels_of,
    listed,
)
from whyidle.errors import DataError, clear

NAME = re.compile(r"\.(tfrecords?|tfrec)([-.]\d+-of-\d+)?(\.gz)?$", re.IGNORECASE)

WINDOW = 1 << 20
"""Bytes searched at a time for the next sound record."""

EXTENSIONS = ("jpg", "jpeg", "png", "cls", "json", "npy", "txt", "bin", "webp", "gif")
"""Names of features that are extensions already, or end in one."""

USUAL = {
    "image/encoded": "image",
    "image": "image",
    "image_raw": "image",
    "image/class/label": "cls",
    "label": "cls",
    "image/label": "cls",
}
"""Names that data sets commonly use, and what they mean."""


def _fits(name: str) -> bool:
    return NAME.search(name) is not None


def knows(spec: str) -> bool:
    """Whether these are TFRecord files: by name, or by the checksum of the first length."""
    if any_fits(spec, _fits):
        return True
    try:
        with open(spec, "rb") as file:
            head = file.read(12)
    except OSError:
        return False
    return len(head) == 12 and struct.unpack("<I", head[8:])[0] == masked(head[:8])


def opened(spec: str, wishes: dict[str, Any]) -> TFRecordSource:
    """The source; ``largest``: bytes of a record beyond which it counts as bad."""
    return TFRecordSource(spec, wishes.get("largest", LARGEST))


class TFRecordSource:
    """The records of files, in the order in which they lie there."""

    classes: list[str] | None = None

    def __init__(self, spec: str, largest: int = LARGEST) -> None:
        """Read the lengths of all records."""
        self.name, self.largest = spec, largest
        files = listed(spec, _fits)
        self.digest = digest_of(files)
        self._files = OpenFiles(files)
        self._labels = labels_of(files)
        self._spans = Spans()
        self._first: list[int] = []
        for number, file in enumerate(files):
            self._first.append(len(self._spans))
            self._list(number, file)
        self._spans.settle()

    def _list(self, number: int, file: Path) -> None:
        """Add the records of one file."""
        try:
            held = mapped(file)
        except OSError as error:
            self._spans.add(number, 0, 0, f"{file.name} cannot be read ({error.strerror})")
            return
        try:
            if held[:2] == b"\x1f\x8b":
                raise DataError(
                    f"{clear(str(file))}: is compressed with gzip, and its records cannot be read "
                    "by number.\nUnpack it first: gunzip."
                )
            at: int | None = 0
            while at is not None and at < len(held):
                try:
                    end = at + FRAME + length_at(held, at)
                    if end > len(held):
                        raise ValueError("the file ends inside a record")
                except ValueError as error:
                    self._spans.add(number, at, at, f"{file.name}, byte {at}: {error}")
                    at = _next_sound(held, at + 1)
                    continue
                self._spans.add(number, at, end)
                at = end
        finally:
            close(held)

    def __len__(self) -> int:
        return len(self._spans)

    def key(self, i: int) -> str:
        """The file's name without its endings, and the number of the record in it."""
        file = self._spans[i][0]
        return f"{self._labels[file]}/{i - self._first[file]:08d}"

    def read(self, i: int) -> dict[str, bytes]:
        """The features of record ``i``, both checksums checked."""
        if i in self._spans.broken:
            raise BadSample(self.key(i), self._spans.broken[i])
        file, start, end = self._spans[i]
        where = f"{self._files.files[file].name}, byte {start}"
        if end - start > self.largest:
            raise BadSample(
                self.key(i), f"{where}: {end - start} bytes are more than {self.largest}"
            )
        try:
            content = unframed(self._files.read(file, start, end - start), 0)
        except ValueError as error:
            raise BadSample(self.key(i), f"{where}: {error}") from error
        except OSError as error:
            raise BadSample(self.key(i), f"{where}: cannot be read ({error.strerror})") from error
        return fields_of(content)


def _next_sound(held: Any, at: int) -> int | None:
    """The first offset from ``at`` on where a whole record begins whose checksums agree."""
    while at < len(held) - FRAME + 1:
        piece = bytes(held[at : at + WINDOW + 11])
        crcs = crc32c_of_every_8(piece)
        count = max(len(piece) - 11, 0)
        told = np.lib.stride_tricks.sliding_window_view(np.frombuffer(piece, np.uint8)[8:], 4)
        stored = np.ascontiguousarray(told[:count]).view("<u4").ravel()
        for hit in np.flatnonzero(stored == crcs[:count]).tolist():
            try:
                unframed(held, at + hit)
            except ValueError:
                continue
            return at + int(hit)
        at += WINDOW
    return None


def fields_of(content: bytes) -> dict[str, bytes]:
    """The fields that a record's features become; ``bin`` where it is no Example."""
    try:
        features = features_of(content)
    except ValueError:
        return {"bin": content}
    fields: dict[str, bytes] = {}
    if all(_plain(name, feature) for name, feature in features.items() if name != "__key__"):
        return {n: feature.values[0] for n, feature in features.items() if n != "__key__"}
    parts: list[tuple[str, str, bytes]] = []
    for name, feature in sorted(features.items()):
        if name != "__key__":
            parts += _parts(name, feature)
    usual = [USUAL.get(name) and _short(USUAL[name], extension) for name, extension, _ in parts]
    for (name, extension, value), short in zip(parts, usual, strict=True):
        field = short if short and usual.count(short) == 1 else _field(name, extension)
        same = sum(one == field or one.endswith(f"_{field}") for one in fields)
        fields[f"{same}_{field}" if field in fields else field] = value
    return fields


def _plain(name: str, feature: Feature) -> bool:
    """Whether a feature is a field as we write them."""
    known = name.rpartition(".")[2] in EXTENSIONS
    one = feature.kind == "bytes" and len(feature.values) == 1
    return known and one and FIELD_NAME.fullmatch(name) is not None


def _parts(name: str, feature: Feature) -> list[tuple[str, str, bytes]]:
    """A feature's values as (name, extension, content)."""
    if feature.kind == "bytes":
        many = len(feature.values) != 1
        return [
            (f"{name}.{number}" if many else name, extension_of(value), value)
            for number, value in enumerate(feature.values)
        ]
    if feature.kind == "int64" and len(feature.values) == 1:
        return [(name, "cls", b"%d" % feature.values[0])]
    if feature.kind == "empty":
        return []
    values = feature.values
    return [(name, "npy", header_of(values.dtype.str, values.shape) + values.tobytes())]


def extension_of(content: bytes) -> str:
    """What bytes are, by how they begin."""
    if content[:3] == b"\xff\xd8\xff":
        return "jpg"
    if content[:8] == b"\x89PNG\r\n\x1a\n":
        return "png"
    if content[:6] == b"\x93NUMPY":
        return "npy"
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "webp"
    try:
        content.decode()
    except UnicodeDecodeError:
        return "bin"
    return "bin" if b"\0" in content else "txt"


def _short(meaning: str, extension: str) -> str | None:
    if meaning == "image":
        return extension if extension in ("jpg", "png", "webp") else None
    return "cls" if extension == "cls" else None


def _field(name: str, extension: str) -> str:
    """A field's name: the feature's in plain letters, with the ending."""
    plain = re.sub(r"[^a-z0-9_.]+", "_", name.lower()).strip("_.") or "x"
    plain = plain[:50]
    return plain if plain.rpartition(".")[2] == extension else f"{plain}.{extension}"
