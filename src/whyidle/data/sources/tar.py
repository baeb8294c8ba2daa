"""Tar archives as WebDataset writes them: members in a row with one name up to the first dot.

Headers are read once and stay in memory; nothing is written beside the archives. After a damaged
header the next sound one is looked for, so that the rest is still read. Tar has no checksum of
contents: what is damaged inside a member goes unseen here.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from whyidle.data.formats.mapped import close, mapped
from whyidle.data.formats.tar_members import BLOCK, BrokenMember, Member, members, next_sound
from whyidle.data.records import FIELD_NAME, BadSample
from whyidle.data.sources.listing import Names
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

NAME = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)
"""A member's name as key and field, as WebDataset takes it apart; others are passed over."""

SQUEEZED = re.compile(r"\.(tar\.(gz|bz2|xz|zst)|tgz|tbz2?|txz)$", re.IGNORECASE)


def _fits(name: str) -> bool:
    return name.lower().endswith(".tar") or SQUEEZED.search(name) is not None


def knows(spec: str) -> bool:
    """Whether these are tar archives: by name, or by what a file says of itself."""
    if any_fits(spec, _fits):
        return True
    try:
        with open(spec, "rb") as file:
            return file.read(BLOCK)[257:262] == b"ustar"
    except OSError:
        return False


def opened(spec: str, wishes: dict[str, Any]) -> TarSource:
    """The source; ``largest``: bytes of a sample beyond which it counts as bad."""
    return TarSource(spec, wishes.get("largest", LARGEST))


class TarSource:
    """The samples of archives, in the order in which they lie there."""

    classes: list[str] | None = None

    def __init__(self, spec: str, largest: int = LARGEST) -> None:
        """Read the headers of all members."""
        self.name, self.largest = spec, largest
        files = listed(spec, _fits)
        for file in files:
            if SQUEEZED.search(file.name):
                raise DataError(
                    f"{clear(str(file))}: is compressed, so no sample can be read by number.\n"
                    "Unpack it to a .tar first, for example with gunzip or unzstd."
                )
        self.digest = digest_of(files)
        self._files = OpenFiles(files)
        self._spans = Spans()
        self._keys: list[bytes] = []
        for number, (file, label) in enumerate(zip(files, labels_of(files), strict=True)):
            self._list(number, file, label)
        self._spans.settle()
        self._names = Names(self._keys)
        self._keys = []

    def _list(self, number: int, file: Path, label: str) -> None:
        """Add the samples of one archive."""
        try:
            held = mapped(file)
        except OSError as error:
            self._add(number, 0, 0, label, f"{file.name} cannot be read ({error.strerror})")
            return
        try:
            at: int | None = 0
            while at is not None:
                at = self._list_from(held, at, number, label)
        finally:
            close(held)

    def _list_from(self, held: Any, at: int, number: int, label: str) -> int | None:
        """Add samples up to the end, or up to damage: then the offset where to go on."""
        key: str | None = None
        start = end = at
        broken: BrokenMember | None = None
        try:
            for one in members(held, at):
                found = _key_of(one)
                if found is not None:
                    if found != key:
                        if key is not None:
                            self._add(number, start, end, key)
                        key, start = found, one.start
                    end = min(one.end, len(held))  # the padding of the last one may be cut off
                at = min(one.end, len(held))
        except BrokenMember as error:
            broken = error
        if key is not None:
            self._add(number, start, end, key)
        if broken is not None:
            self._note(number, broken.at, label, broken.found)
            return next_sound(held, broken.at)
        after = next_sound(held, at)
        if after is not None:
            self._note(number, at, label, "blocks of zeros lie between members")
            return after
        if len(held) - at < BLOCK:
            self._note(number, at, label, "the archive has no end mark and may be cut short")
        return None

    def _note(self, number: int, at: int, label: str, found: str) -> None:
        file = self._files.files[number].name
        self._add(number, at, at, f"{label}@{at}", f"{file}, byte {at}: {found}")

    def _add(self, file: int, start: int, end: int, key: str, broken: str | None = None) -> None:
        self._keys.append(key.encode("utf-8", "surrogateescape"))
        self._spans.add(file, start, end, broken)

    def __len__(self) -> int:
        return len(self._spans)

    def key(self, i: int) -> str:
        """What the names of the sample's members have in common."""
        return self._names[i].decode("utf-8", "surrogateescape")

    def read(self, i: int) -> dict[str, bytes]:
        """The contents of the sample's members, by the endings of their names."""
        if i in self._spans.broken:
            raise BadSample(self.key(i), self._spans.broken[i])
        file, start, end = self._spans[i]
        where = f"{self._files.files[file].name}, byte {start}"
        if end - start > self.largest:
            raise BadSample(
                self.key(i), f"{where}: {end - start} bytes are more than {self.largest}"
            )
        try:
            held = self._files.read(file, start, end - start)
            if len(held) < end - start:
                raise BadSample(self.key(i), f"{where}: the archive was cut short meanwhile")
            return self._fields(i, held, where)
        except BrokenMember as error:
            raise BadSample(self.key(i), f"{where} + {error.at}: {error.found}") from error
        except OSError as error:
            raise BadSample(self.key(i), f"{where}: cannot be read ({error.strerror})") from error

    def _fields(self, i: int, held: bytes, where: str) -> dict[str, bytes]:
        fields: dict[str, bytes] = {}
        for one in members(held):
            if _key_of(one) is None:
                continue
            name = _taken_apart(one.name)[1].lower()
            if not FIELD_NAME.fullmatch(name):
                raise BadSample(self.key(i), f"{where}: {name!r} cannot be the name of a field")
            if name in fields:
                raise BadSample(self.key(i), f"{where}: it has two members that end in .{name}")
            fields[name] = held[one.offset : one.offset + one.size]
        return fields


def _taken_apart(name: bytes) -> tuple[str, str]:
    found = NAME.fullmatch(name.decode("utf-8", "surrogateescape"))
    return (found[1], found[2]) if found else ("", "")


def _key_of(one: Member) -> str | None:
    """The key that a member belongs to; None for folders and for what WebDataset passes over."""
    if not one.regular:
        return None
    key = _taken_apart(one.name)[0]
    hidden = os.path.basename(key).startswith("._") or re.match(r"__[^/]*__($|/)", key)
    return None if not key or hidden else key
