"""Shards that grow at their end: what writers share whose files can be cut off and gone on with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from whyidle.data.formats import Options, Place


class AppendingWriter:
    """Appends records to ``shard-00000`` and those that follow it.

    A format gives ``suffix``, ``record``, and the bytes that begin (``head``) and end (``tail``)
    each shard.
    """

    suffix = ""
    head = b""
    tail = b""

    def __init__(self, path: Path, options: Options, resume: dict[str, Any] | None) -> None:
        """Begin, or cut off what came after ``resume`` and go on there."""
        self._folder, self._options = path, options
        self._counts: list[int] = list(resume["counts"]) if resume else [0]
        self._end: int = resume["end"] if resume else 0
        for file in path.glob(f"shard-*{self.suffix}"):
            number = file.name[len("shard-") : -len(self.suffix)]
            if number.isdecimal() and int(number) >= len(self._counts):
                file.unlink()
        self._file = self._opened()

    def record(self, key: str, fields: Mapping[str, bytes], offset: int) -> bytes:
        """The bytes of one sample, which will lie at ``offset`` of its shard; or ``BadSample``."""
        raise NotImplementedError

    def name(self, shard: int) -> str:
        """The file of a shard."""
        return f"shard-{shard:05d}{self.suffix}"

    def _opened(self) -> IO[bytes]:
        path = self._folder / self.name(len(self._counts) - 1)
        path.touch()
        file = open(path, "r+b")  # noqa: SIM115  lives as long as its writer
        file.seek(0, os.SEEK_END)
        if file.tell() < self._end:
            file.close()
            raise ValueError(f"{path.name} is shorter than the journal says")
        file.truncate(self._end)
        file.seek(self._end)
        if not self._end:
            file.write(self.head)
            self._end = len(self.head)
        return file

    def append(self, key: str, fields: Mapping[str, bytes]) -> Place:
        """Append one sample and say where it lies."""
        next_shard = self._options.full(self._counts[-1], self._end)
        record = self.record(key, fields, len(self.head) if next_shard else self._end)
        if next_shard:
            self._end_shard()
            self._counts.append(0)
            self._end = 0
            self._file = self._opened()
        self._file.write(record)
        place = Place(len(self._counts) - 1, self._end, len(record))
        self._end += len(record)
        self._counts[-1] += 1
        return place

    def _end_shard(self) -> None:
        self._file.write(self.tail)
        self.flush()
        self._file.close()

    def flush(self) -> None:
        """Bring all that was appended to disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def position(self) -> dict[str, Any]:
        """How many samples each shard holds, and where the last one ends."""
        return {"samples": sum(self._counts), "counts": list(self._counts), "end": self._end}

    def finish(self) -> dict[str, Any]:
        """End the last shard and list all of them."""
        self._end_shard()
        return {
            "shards": [
                {"file": self.name(shard), "samples": samples}
                for shard, samples in enumerate(self._counts)
            ]
        }

    def close(self) -> None:
        """Close the file that is being written; what lies on disk stays as it is."""
        with suppress(OSError):  # a full disk, which has been told already
            self._file.close()
