"""Where samples come from: one module per kind of source, found by looking at what was given.

A source is picklable and opens files lazily in each process, so readers can be forked or spawned.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Protocol, runtime_checkable

from whyidle.errors import DataError, NotFound, UsageError

SOURCES = {
    "packed": "whyidle.data.sources.packed",
    "dataset": "whyidle.data.sources.dataset",
    "csv_index": "whyidle.data.sources.csv_index",
    "tar": "whyidle.data.sources.tar",
    "tfrecords": "whyidle.data.sources.tfrecords",
    "hdf5": "whyidle.data.sources.hdf5",
    "arrays": "whyidle.data.sources.arrays",
    "text": "whyidle.data.sources.text",
    "image_folder": "whyidle.data.sources.image_folder",
}
"""Name -> the module with ``knows(spec) -> bool`` and ``opened(spec, wishes) -> Source``.

They are asked in this order; ``knows`` looks at names and the first bytes only.
"""


@runtime_checkable
class Source(Protocol):
    """Lists samples and reads them by number.

    ``name`` is what the user gave; ``digest`` names what lists the samples (files with sizes and
    times, an index's text), so that a resumed run notices another source. ``classes`` are the
    names behind the numbers in ``cls``, or None.
    """

    name: str
    digest: str
    classes: list[str] | None

    def __len__(self) -> int: ...

    def key(self, i: int) -> str:
        """The key of sample ``i``: short, and the same in every run."""

    def read(self, i: int) -> dict[str, bytes]:
        """The fields of sample ``i``, or ``BadSample``."""


def source_of(spec: str, kind: str | None = None, **wishes: Any) -> Source:
    """The source behind what the user gave; ``kind`` says which where looking is not enough.

    ``wishes`` are options of a kind of source, such as ``tokenizer`` for text; None is no wish.
    """
    if kind is not None and kind not in SOURCES:
        raise UsageError(f"unknown kind of source {kind!r}.\nThere are: {', '.join(SOURCES)}.")
    for name, module in SOURCES.items():
        if kind in (None, name):
            found = _module(module)
            if found is not None and (kind == name or found.knows(spec)):
                opened: Source = found.opened(
                    spec, {name: wish for name, wish in wishes.items() if wish is not None}
                )
                return opened
    import os

    if not os.path.lexists(spec):
        raise NotFound(spec)
    raise DataError(
        f"{spec}: no kind of data set that can be packed.\n"
        f"Say which it is with --from: {', '.join(SOURCES)}."
    )


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name:  # not built into this installation
            return None
        raise
