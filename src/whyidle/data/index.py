"""``samples.index``: where each sample of a packed set lies, its key and its hash.

A header, one row of 40 bytes a sample, then the keys end to end. It is memory-mapped, so opening
costs the same for ten samples and for ten million. Each row holds a check over itself and its key
and the header one over itself, so a flipped byte is found by whoever reads that sample.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from whyidle.data.formats import Place
from whyidle.errors import DamagedSample, DataError, MissingPackage

NAME = "samples.index"
MAGIC = b"whyidle index 1\n"
HEADER = struct.Struct("<16sQQQ")  # magic, samples, bytes of keys, xxh3-64 of the three
ROW = struct.Struct("<IIQQQQ")  # check, shard, offset, length, hash, where the key ends
CUT_SHORT = "the index is cut short"
ROWS, KEYS = "rows.partial", "keys.partial"


class Row(NamedTuple):
    """One sample's entry: its key, where it lies, and the hash of its fields."""

    key: str
    place: Place
    hash: int


def _xxhash() -> Any:
    try:
        import xxhash
    except ImportError as error:
        raise MissingPackage("xxhash", "A packed data set") from error
    return xxhash


def _check(row: bytes, key: bytes) -> int:
    check: int = _xxhash().xxh32_intdigest(row[4:] + key)
    return check


class IndexWriter:
    """Appends rows and keys to two files, which ``finish`` joins into the index."""

    def __init__(self, folder: Path, samples: int = 0) -> None:
        """Begin, or go on after ``samples`` samples and cut off what follows them."""
        self._folder = folder
        self._rows = _opened(folder / ROWS)
        self._keys = _opened(folder / KEYS)
        self.samples, self._key_end = samples, 0
        self._rows.seek(0, os.SEEK_END)
        if self._rows.tell() < samples * ROW.size:
            raise DataError(
                f"{folder}: {ROWS} is shorter than the journal says.\n"
                "Remove the folder, then pack again."
            )
        if samples:
            self._rows.seek((samples - 1) * ROW.size)
            self._key_end = ROW.unpack(self._rows.read(ROW.size))[5]
        for file, size in ((self._rows, samples * ROW.size), (self._keys, self._key_end)):
            file.truncate(size)
            file.seek(size)

    def append(self, key: str, place: Place, hash: int) -> None:
        """Add one sample."""
        name = os.fsencode(key)
        self._key_end += len(name)
        row = ROW.pack(0, place.shard, place.offset, place.length, hash, self._key_end)
        self._rows.write(struct.pack("<I", _check(row, name)) + row[4:])
        self._keys.write(name)
        self.samples += 1

    def flush(self) -> None:
        """Bring rows and keys to disk."""
        for file in (self._rows, self._keys):
            file.flush()
            os.fsync(file.fileno())

    def finish(self) -> None:
        """Join rows and keys into ``samples.index`` and bring it to disk; ``remove_parts`` next."""
        self.flush()
        facts = struct.pack("<16sQQ", MAGIC, self.samples, self._key_end)
        with open(self._folder / NAME, "wb") as index:
            index.write(facts + struct.pack("<Q", _xxhash().xxh3_64_intdigest(facts)))
            for file in (self._rows, self._keys):
                file.seek(0)
                while piece := file.read(1 << 20):
                    index.write(piece)
            index.flush()
            os.fsync(index.fileno())

    def remove_parts(self) -> None:
        """Remove the two files that the index was joined from."""
        self.close()
        for name in (ROWS, KEYS):
            (self._folder / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Close both files."""
        for file in (self._rows, self._keys):
            with suppress(OSError):  # a full disk, which has been told already
                file.close()


def _opened(path: Path) -> IO[bytes]:
    path.touch()
    return open(path, "r+b")


class Index:
    """The index of a packed set, memory-mapped; every row that is read is checked."""

    def __init__(self, folder: Path) -> None:
        """Map the index below ``folder``; only its header is read."""
        self.path = folder / NAME
        try:
            self._bytes = np.memmap(self.path, np.uint8, "r")
        except (OSError, ValueError) as error:
            raise DataError(
                f"{self.path}: cannot be read ({error}).\nPack the data set again."
            ) from error
        head = self._bytes[: HEADER.size].tobytes()
        if len(head) < HEADER.size:
            raise self._broken(CUT_SHORT)
        magic, self._samples, keys, check = HEADER.unpack(head)
        if magic != MAGIC or check != _xxhash().xxh3_64_intdigest(head[:-8]):
            raise self._broken("its header is damaged")
        self._keys_at = HEADER.size + self._samples * ROW.size
        if len(self._bytes) != self._keys_at + keys:
            raise self._broken(f"it has {len(self._bytes)} bytes, not {self._keys_at + keys}")

    def _broken(self, found: str) -> DataError:
        return DataError(f"{self.path}: {found}.\nPack the data set again, or restore this file.")

    def __len__(self) -> int:
        return int(self._samples)

    def __getitem__(self, i: int) -> Row:
        """The row of sample ``i``; raises ``DamagedSample`` where its bytes were changed."""
        start = HEADER.size + i * ROW.size
        row = self._bytes[start : start + ROW.size].tobytes()
        check, shard, offset, length, hash, key_end = ROW.unpack(row)
        key_start = self._end_of_key(i - 1) if i else 0
        if not 0 <= key_start <= key_end <= len(self._bytes) - self._keys_at:
            raise DamagedSample(NAME, i, None, "where its key lies makes no sense")
        key = self._bytes[self._keys_at + key_start : self._keys_at + key_end].tobytes()
        if check != _check(row, key):
            raise DamagedSample(NAME, i, None, "its entry in the index was changed")
        return Row(os.fsdecode(key), Place(shard, offset, length), hash)

    def _end_of_key(self, i: int) -> int:
        end = HEADER.size + (i + 1) * ROW.size
        (key_end,) = struct.unpack("<Q", self._bytes[end - 8 : end].tobytes())
        return int(key_end)

    def shards(self) -> np.ndarray[Any, np.dtype[np.uint32]]:
        """The shard of each sample, unchecked, as a view of the mapped file."""
        kind = np.dtype({"names": ["shard"], "formats": ["<u4"], "offsets": [4], "itemsize": 40})
        rows = self._bytes[HEADER.size : self._keys_at].view(kind)
        shards: np.ndarray[Any, np.dtype[np.uint32]] = rows["shard"]
        return shards

    def rows(self) -> Iterator[Row | DamagedSample]:
        """Every row in order, or what is wrong with it."""
        for i in range(len(self)):
            try:
                yield self[i]
            except DamagedSample as damage:
                yield damage
