"""The formats a data set can be packed in: one module each, with a ``Writer`` and a ``Reader``.

A format's module is imported when it is asked for. What all formats share lies beside the data:
``samples.index`` (where each sample lies, its key and its hash) and ``whyidle-pack.json``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from whyidle.errors import UsageError

FORMATS = {
    "blob": "whyidle.data.formats.blob",
    "hdf5": "whyidle.data.formats.hdf5",
    "tfrecord": "whyidle.data.formats.tfrecord",
    "webdataset": "whyidle.data.formats.webdataset",
    "npy": "whyidle.data.formats.npy",
}
"""Name of a format -> the module with its ``Writer`` and ``Reader``."""


class Place(NamedTuple):
    """Where a sample lies: shard number, and offset and length in the format's own sense.

    Offset and length are bytes where the format has records at byte offsets; where it has rows,
    offset is the row within its shard and length the bytes of the fields together.
    """

    shard: int
    offset: int
    length: int


@dataclass(frozen=True)
class Options:
    """What a writer is told before the first sample.

    ``samples`` is how many the source lists: some may turn out bad, so it is an upper bound. At
    most ``samples_per_shard`` samples go into a shard, and a shard is ended by the first sample
    with which it holds ``shard_bytes`` or more; None leaves it open.
    """

    samples: int
    samples_per_shard: int | None = None
    shard_bytes: int | None = None

    def full(self, samples: int, bytes: int) -> bool:
        """Whether a shard that holds so much takes no more."""
        return (self.samples_per_shard is not None and samples >= self.samples_per_shard) or (
            self.shard_bytes is not None and samples > 0 and bytes >= self.shard_bytes
        )


class Writer(Protocol):
    """Appends samples below ``path``, an existing folder, so that a kill loses nothing.

    Constructed as ``Writer(path, options, resume)``. ``resume`` is None for a new set, else a
    ``position()`` of an earlier process: the writer cuts off or removes every byte that came
    after it, and goes on so that the files end up equal, bit for bit, to those of one undisturbed
    run. Nothing may depend on time, host, process or order of directories.
    """

    def append(self, key: str, fields: Mapping[str, bytes]) -> Place:
        """Append one sample and say where it lies.

        Raises ``BadSample`` when the format cannot hold this sample (and then has written
        nothing of it); any other error ends the run. Keys need not be unique, and may hold bytes
        that are no UTF-8 as surrogate escapes.
        """

    def flush(self) -> None:
        """Bring all that was appended to disk (fsync), as far as the format can."""

    def position(self) -> dict[str, Any]:
        """Where a later process can go on, as small JSON, true after ``flush()``.

        Holds at least ``samples``: how many appended samples lie before the position. That is all
        of them where the format can be appended to; where it cannot, those of whole shards.
        """

    def finish(self) -> dict[str, Any]:
        """End the last shard, flush, close, and give the facts for the manifest.

        Holds ``shards``: [{"file": name below path, "samples": count}] in order of shard number;
        what else it holds is kept in the manifest as ``facts`` and handed to the reader.
        """

    def close(self) -> None:
        """Let go of open files after a failure; what lies on disk stays as it is."""


def module_of(format: str) -> Any:
    """The module of a format, with its ``Writer`` and ``Reader``."""
    if format not in FORMATS:
        raise UsageError(f"unknown format {format!r}.\nThere are: {', '.join(FORMATS)}.")
    return import_module(FORMATS[format])


def writer(format: str, path: Path, options: Options, resume: dict[str, Any] | None) -> Writer:
    """A writer of the format."""
    made: Writer = module_of(format).Writer(path, options, resume)
    return made
