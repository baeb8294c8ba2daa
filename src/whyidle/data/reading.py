"""Reads packed sets: by number (``PackedDataset``) or as a stream (``PackedStream``).

Both work with and without torch, in forked and spawned workers, and check every sample against its
hash unless told otherwise.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from whyidle.data import manifest
from whyidle.data.decode import decoded
from whyidle.data.formats import module_of
from whyidle.data.order import in_blocks, permuted
from whyidle.data.records import Sample
from whyidle.errors import DamagedSample, UsageError

Decode = Callable[[dict[str, bytes]], Any]

AT_ONCE = 1024
"""Positions whose samples are computed together."""


class PackedDataset:
    """A packed set as a map-style data set: ``torch.utils.data.DataLoader`` takes it as it is.

    ``decode`` makes a sample of its fields: a function, ``"auto"`` (see ``whyidle.data.decode``),
    or None for the fields' bytes. A damaged sample raises ``DamagedSample``; with
    ``on_damage="skip"`` the next sound one takes its place, and ``skipped`` counts those met in
    this process.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        decode: Decode | str | None = None,
        *,
        verify: bool = True,
        on_damage: str = "raise",
    ) -> None:
        """Open the set's manifest and index; files with samples are opened when first read."""
        if on_damage not in ("raise", "skip"):
            raise UsageError(f"on_damage={on_damage!r} is neither 'raise' nor 'skip'.")
        if isinstance(decode, str) and decode != "auto":
            raise UsageError(f"decode={decode!r} is neither 'auto' nor a function of the fields.")
        self.path = Path(path)
        self.manifest = manifest.load(self.path)
        self.classes = self.manifest.classes
        self.skipped = 0
        self._decode: Decode | None = decoded if isinstance(decode, str) else decode
        self._verify, self._on_damage = verify, on_damage
        self._reader = module_of(self.manifest.format).Reader(self.path, self.manifest)
        _agree(self.path, self.manifest.samples, len(self._reader))

    def __len__(self) -> int:
        return len(self._reader)

    def __getitem__(self, i: int) -> Any:
        """Sample ``i``, decoded; negative numbers count from the end."""
        fields = self.sample(i).fields
        return fields if self._decode is None else self._decode(fields)

    def key(self, i: int) -> str:
        """The key of sample ``i``."""
        return str(self._reader.key(i))

    def sample(self, i: int) -> Sample:
        """The key and the fields' bytes of sample ``i``."""
        count = len(self)
        if not -count <= i < count:
            raise IndexError(f"sample {i} of {count}")
        i = int(i) % count
        for step in range(count):
            at = (i + step) % count
            try:
                return Sample(self.key(at), self._reader.fields(at, verify=self._verify))
            except DamagedSample:
                if self._on_damage == "raise":
                    raise
                self.skipped += 1
        raise DamagedSample(str(self.path), i, None, "no sample of the set is sound")

    def close(self) -> None:
        """Close what this process has opened."""
        self._reader.close()


def _agree(path: Path, told: int, found: int) -> None:
    if told != found:
        from whyidle.errors import DataError

        raise DataError(
            f"{path}: the manifest tells of {told} samples, the index of {found}.\n"
            "Files of two sets are mixed: restore them, or pack again."
        )


def open(path: str | os.PathLike[str], **options: Any) -> PackedDataset:
    """The packed set at ``path``; options as for ``PackedDataset``."""
    return PackedDataset(path, **options)


class PackedStream:
    """A packed set as a stream, split over ranks and workers, that can go on in mid-epoch.

    ``shuffle``: ``"full"`` (any sample can stand anywhere in its epoch), ``"blocks"`` (blocks of
    1,024 neighbours are shuffled, then samples inside windows of ``window``: reads stay near each
    other, as slow storage likes, and a sample meets only those of its window), or None. Orders are
    computed, so no buffer is held and nothing is lost on the way.

    ``rank`` and ``ranks`` default to torch.distributed, else to RANK and WORLD_SIZE. With ``even``
    each rank gets equally many samples: the first few of the order are repeated for that.

    The epoch advances when a stream was read to its end in the same process; workers that a
    ``DataLoader`` starts anew begin at the epoch that ``set_epoch`` named.

    Where torch is installed a stream is also a ``torch.utils.data.IterableDataset``.
    """

    def __new__(cls, *arguments: Any, **options: Any) -> PackedStream:
        """The stream, as a kind of data set that ``DataLoader`` iterates."""
        return object.__new__(_iterable(cls))  # type: ignore[arg-type]

    def __reduce__(self) -> Any:
        """Travel to a worker as the class that every process knows."""
        return _arrived, (_bare(type(self)), self.__dict__)

    def __init__(
        self,
        path: str | os.PathLike[str],
        decode: Decode | str | None = None,
        *,
        shuffle: str | None = "full",
        seed: int = 0,
        window: int = 16384,
        rank: int | None = None,
        ranks: int | None = None,
        even: bool = True,
        verify: bool = True,
        on_damage: str = "raise",
    ) -> None:
        """Open the set; nothing is read yet."""
        if shuffle not in ("full", "blocks", None):
            raise UsageError(f"shuffle={shuffle!r} is none of 'full', 'blocks' and None.")
        if window < 1:
            raise UsageError(f"window={window} holds no sample.")
        self.set = PackedDataset(path, decode, verify=verify)
        if on_damage not in ("raise", "skip"):
            raise UsageError(f"on_damage={on_damage!r} is neither 'raise' nor 'skip'.")
        found_rank, found_ranks = _ranks()
        self.rank = found_rank if rank is None else rank
        self.ranks = found_ranks if ranks is None else ranks
        if not 0 <= self.rank < self.ranks:
            raise UsageError(f"rank={self.rank} of ranks={self.ranks}: ranks count from 0.")
        self.shuffle, self.seed, self.window, self.even = shuffle, seed, window, even
        self.epoch, self.skipped = 0, 0
        self._on_damage = on_damage
        self._taken = 0
        self._batches, self._batch_size = 0, 1

    def __len__(self) -> int:
        """Samples of this rank in one epoch, over all of its workers."""
        count = len(self.set)
        if self.even:
            return -(-count // self.ranks)
        return len(range(self.rank, count, self.ranks))

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch; each has an order of its own."""
        self.epoch, self._taken, self._batches = epoch, 0, 0

    def state_dict(self) -> dict[str, Any]:
        """Where this stream is, in the process that reads it, after the last sample it gave."""
        return {**self._kind(), "epoch": self.epoch, "taken": self._taken}

    def after(self, batches: int, batch_size: int) -> dict[str, Any]:
        """The state after so many batches of a ``DataLoader`` have been used in this epoch.

        Its workers read ahead, so only the one who takes the batches knows how many were used.
        """
        state = {**self._kind(), "epoch": self.epoch, "taken": 0}
        return {**state, "batches": batches, "batch_size": batch_size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state`` was taken; refuses the state of another order."""
        mine = self._kind()
        other = [name for name in mine if state.get(name) != mine[name]]
        if other:
            raise UsageError(
                f"The state is of another stream: {', '.join(other)} differ"
                f"{'s' if len(other) == 1 else ''}.\nOpen the stream with the same arguments."
            )
        self.epoch, self._taken = int(state["epoch"]), int(state["taken"])
        self._batches = int(state.get("batches", 0))
        self._batch_size = int(state.get("batch_size", 1))

    def _kind(self) -> dict[str, Any]:
        return {
            "samples": len(self.set),
            "shuffle": self.shuffle,
            "seed": self.seed,
            "window": self.window,
            "rank": self.rank,
            "ranks": self.ranks,
            "even": self.even,
        }

    def order(self, positions: Any) -> Any:
        """The sample at each position of the whole epoch, over all ranks."""
        positions = np.asarray(positions, np.uint64) % np.uint64(len(self.set))
        seed = self.seed * 1_000_003 + self.epoch
        if self.shuffle == "full":
            return permuted(positions, len(self.set), seed)
        if self.shuffle == "blocks":
            return in_blocks(positions, len(self.set), seed, self.window)
        return positions

    def __iter__(self) -> Iterator[Any]:
        worker, workers = _worker()
        if self._batches:
            rounds = len(range(worker, self._batches, workers))
            self._taken, self._batches = rounds * self._batch_size, 0
        mine = range(worker, len(self), workers)
        while self._taken < len(mine):
            ahead = mine[self._taken : self._taken + AT_ONCE]
            places = np.array(ahead, np.uint64)
            for i in self.order(places * np.uint64(self.ranks) + np.uint64(self.rank)).tolist():
                self._taken += 1
                try:
                    sample = self.set[i]
                except DamagedSample:
                    if self._on_damage == "raise":
                        raise
                    self.skipped += 1
                    continue
                yield sample
        self.set_epoch(self.epoch + 1)


@cache
def _iterable(kind: type[PackedStream]) -> type[PackedStream]:
    """The class with torch's own as a second base, since DataLoader asks for that."""
    try:
        from torch.utils.data import IterableDataset
    except ImportError:
        return kind
    return type(kind.__name__, (kind, IterableDataset), {"_made": True})


def _bare(kind: type) -> type:
    """The class that a module defines, of one that ``_iterable`` may have made of it."""
    return next(one for one in kind.__mro__ if "_made" not in one.__dict__)


def _arrived(kind: type[PackedStream], state: dict[str, Any]) -> PackedStream:
    stream: PackedStream = object.__new__(_iterable(kind))  # type: ignore[arg-type]
    stream.__dict__.update(state)
    return stream


def _worker() -> tuple[int, int]:
    """The number of this loader worker and how many there are; (0, 1) outside of one."""
    workers = sys.modules.get("torch.utils.data")
    found = workers.get_worker_info() if workers is not None else None
    return (0, 1) if found is None else (found.id, found.num_workers)


def _ranks() -> tuple[int, int]:
    """The rank of this process and how many there are, before any mapping of devices."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    try:
        return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    except ValueError:
        return 0, 1
