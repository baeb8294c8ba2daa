"""WebDataset: a tar archive in which the fields of a sample follow each other as ``KEY.FIELD``.

WebDataset ends a key at the first dot of the last part of a name and joins neighbours of one key.
So what would be misread is written as ``%XX``: dots of the last part, ``%`` itself, control
characters, bytes that are no UTF-8, and what would lead out of a folder. A sample whose key is
empty, or that of its neighbour, has ``%@OFFSET`` appended. The index keeps each key as it was.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whyidle.data.formats import Options, Place
from whyidle.data.formats.appended import AppendingWriter
from whyidle.data.formats.base import PlacedReader
from whyidle.data.formats.mapped import close, mapped
from whyidle.data.formats.tar_members import END, LARGEST, LONGEST_NAME, member, members
from whyidle.data.records import BadSample, in_order

UNSAFE = re.compile("[%\x00-\x1f\x7f\udc80-\udcff]")
"""Characters of a key that are always written as ``%XX``; the last ones are bytes, no UTF-8."""


def stored(key: str) -> str:
    """A key as it is spelled in names of members."""
    parts = UNSAFE.sub(_escaped, key).split("/")
    parts[-1] = parts[-1].replace(".", "%2E")
    parts[:-1] = [part.replace(".", "%2E") if part in (".", "..") else part for part in parts[:-1]]
    spelled = "/".join(parts)
    if spelled.startswith("/"):
        spelled = "%2F" + spelled[1:]
    if spelled.startswith("__"):  # names such as __this__ are passed over by WebDataset
        spelled = "%5F" + spelled[1:]
    return spelled[:-1] + "%2F" if spelled.endswith("/") else spelled


def _escaped(found: re.Match[str]) -> str:
    return f"%{found[0].encode('utf-8', 'surrogateescape')[0]:02X}"


class Writer(AppendingWriter):
    """Appends members to ``shard-00000.tar`` and those that follow it."""

    suffix = ".tar"
    tail = END

    def __init__(self, path: Path, options: Options, resume: dict[str, Any] | None) -> None:
        """Begin, or go on after ``resume``; the last key tells neighbours of one key apart."""
        super().__init__(path, options, resume)
        self._last: str | None = resume["last"] if resume else None

    def record(self, key: str, fields: Mapping[str, bytes], offset: int) -> bytes:
        """The members of one sample."""
        if not fields:
            raise BadSample(key, "it has no fields, and a tar archive cannot hold it")
        spelled = stored(key)
        if any(len(content) > LARGEST for content in fields.values()):
            raise BadSample(key, "a field has 8 GiB or more, which a tar archive cannot hold")
        if len(spelled) > LONGEST_NAME // 8:
            raise BadSample(key[:100], "its key is too long for a tar archive")
        if not spelled or (spelled == self._last and offset):
            spelled += f"%@{offset}"
        else:
            self._last = spelled
        return _members(spelled, fields)

    def position(self) -> dict[str, Any]:
        """Where to go on, and the last key."""
        return {**super().position(), "last": self._last}


def _members(spelled: str, fields: Mapping[str, bytes]) -> bytes:
    return b"".join(
        member(f"{spelled}.{name}".encode(), content) for name, content in in_order(fields)
    )


class Reader(PlacedReader):
    """Reads samples by their offsets, in any order, from memory-mapped archives."""

    def open_shard(self, path: Path) -> Any:
        """Map one archive."""
        return mapped(path)

    def close_shard(self, opened: Any) -> None:
        """Unmap one archive."""
        close(opened)

    def load(self, opened: Any, place: Place) -> dict[str, bytes]:
        """The fields at ``place``; headers and padding must be spelled as they are written."""
        end = place.offset + place.length
        if end > len(opened):
            raise ValueError("the archive is cut short")
        fields, keys = {}, set()
        for one in members(opened, place.offset, end):
            folder, slash, last = one.name.decode().rpartition("/")
            key, _, field = last.partition(".")
            keys.add(folder + slash + key)
            fields[field] = bytes(opened[one.offset : one.offset + one.size])
        if len(keys) != 1:
            raise ValueError("its members have no name in common")
        if _members(keys.pop(), fields) != opened[place.offset : end]:
            raise ValueError("a header or the padding was changed")
        if len(opened) - end <= len(END) and opened[end:] != END and self._last_of_shard(place):
            raise ValueError("what ends the archive after it was changed")
        return fields

    def _last_of_shard(self, place: Place) -> bool:
        """Whether the sample lies right before the end mark, and so answers for it."""
        before = sum(shard["samples"] for shard in self.manifest.shards[: place.shard + 1])
        return self.index[before - 1].place == place
