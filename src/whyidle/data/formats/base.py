"""What every reader of a packed set shares: the index, checks, and files opened per process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from whyidle.data.formats import Place
from whyidle.data.index import Index
from whyidle.data.manifest import Manifest
from whyidle.data.records import sample_hash
from whyidle.errors import DamagedSample


class PlacedReader:
    """Reads samples by number. A format adds ``open_shard``, ``close_shard`` and ``load``.

    Shards are opened when first read, once in each process, so a reader may be made before a
    fork and sent to a spawned process. Whatever ``load`` raises on bytes that make no sense
    (``ValueError``, ``KeyError``, ``OSError``, ...) becomes ``DamagedSample``.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        """Open the index below ``path``; shards come later."""
        self.path, self.manifest = path, manifest
        self._index: Index | None = Index(path)
        self._process = os.getpid()
        self._shards: dict[int, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_index": None, "_shards": {}}

    def __len__(self) -> int:
        return len(self.index)

    @property
    def index(self) -> Index:
        """The index, opened again after a journey to another process."""
        if self._index is None:
            self._index = Index(self.path)
        return self._index

    def key(self, i: int) -> str:
        """The key of sample ``i``."""
        return self.index[i].key

    def fields(self, i: int, verify: bool = True) -> dict[str, bytes]:
        """The fields of sample ``i``; unless told otherwise, checked against their hash."""
        row = self.index[i]
        name = self.file_of(row.place.shard)
        try:
            fields = self.load(self.shard(row.place.shard), row.place)
        except (ValueError, KeyError, IndexError, TypeError, OSError, EOFError) as error:
            raise DamagedSample(name, i, row.key, f"it cannot be read ({error})") from error
        if verify and sample_hash(fields) != row.hash:
            raise DamagedSample(name, i, row.key, "its bytes do not agree with their hash")
        return fields

    def file_of(self, shard: int) -> str:
        """The name of a shard's file, below the folder of the set."""
        files = self.manifest.shards
        return str(files[shard]["file"]) if shard < len(files) else f"shard {shard}"

    def shard(self, shard: int) -> Any:
        """The open shard, opened in this process."""
        if self._process != os.getpid():  # a fork: what the parent opened is the parent's
            self._shards, self._process = {}, os.getpid()
        if shard not in self._shards:
            if shard >= len(self.manifest.shards):
                raise ValueError(f"there is no shard {shard}")
            self._shards[shard] = self.open_shard(self.path / self.file_of(shard))
        return self._shards[shard]

    def close(self) -> None:
        """Close every shard that this process has opened."""
        if self._process == os.getpid():
            for opened in self._shards.values():
                self.close_shard(opened)
        self._shards = {}

    def open_shard(self, path: Path) -> Any:
        """Open one shard for reading."""
        raise NotImplementedError

    def close_shard(self, opened: Any) -> None:
        """Close what ``open_shard`` gave."""
        opened.close()

    def load(self, opened: Any, place: Place) -> dict[str, bytes]:
        """The fields of the sample at ``place`` of an open shard, unchecked."""
        raise NotImplementedError
