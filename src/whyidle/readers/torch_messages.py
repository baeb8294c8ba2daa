"""What events of communication say of their message: group, size, running number, elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from whyidle.model import MESSAGES, frame
from whyidle.readers.torch_events import ABSENT, Arguments
from whyidle.readers.torch_names import as_integer

LONGEST_GROUP = 4096
"""Characters kept of the name and ranks of a process group."""

Row = tuple[int, str | None, int, int, str, int, str | None, int, int]


class Messages:
    """Messages of one file, chunk by chunk; ``event`` is the ordinal of the event in the file."""

    def __init__(self) -> None:
        """Start empty."""
        self.rows: list[Row] = []

    @staticmethod
    def found(args: list[Arguments], events: Any) -> list[Row]:
        """Rows for those events of a chunk that name a collective."""
        return [_row(a, int(events[i])) for i, a in enumerate(args) if a.collective is not None]


def message_frames(sources: Sequence[Messages]) -> list[pl.DataFrame | None]:
    """The ``messages`` table of each source; None where no event spoke of a message."""
    rows = [row for messages in sources for row in messages.rows]
    if not rows:
        return [None] * len(sources)
    names = [name for name in MESSAGES if name != "source"]
    columns: dict[str, Any] = dict(zip(names, zip(*rows, strict=True), strict=True))
    told = pl.DataFrame({k: pl.Series(k, v, strict=False) for k, v in columns.items()})
    numbers = [n for n, d in told.schema.items() if d.is_integer()]
    told = told.with_columns(pl.when(pl.col(n) != ABSENT).then(pl.col(n)).alias(n) for n in numbers)
    built = frame(MESSAGES, told.with_columns(pl.lit(0, pl.UInt16).alias("source")))
    found: list[pl.DataFrame | None] = []
    at = 0
    for messages in sources:
        found.append(built[at : at + len(messages.rows)] if messages.rows else None)
        at += len(messages.rows)
    return found


def _row(args: Arguments, event: int) -> Row:
    sent, received = _whole(args.sent, 1 << 50), _whole(args.received, 1 << 50)
    parts = [str(part) for part in (args.group, args.ranks) if part not in (None, "")]
    return (
        event,
        " ".join(parts)[:LONGEST_GROUP] or None,
        _whole(args.group_size, 1 << 31),
        _whole(args.running, 1 << 62),
        str(args.collective),
        max(sent, received),
        str(args.dtype) if args.dtype is not None else None,
        _whole(args.sender, 1 << 31),
        _whole(args.receiver, 1 << 31),
    )


def _whole(value: Any, limit: int) -> int:
    """A number from 0 to below a limit; ABSENT for anything else."""
    if value is None:
        return ABSENT
    found = value if value.__class__ is int else as_integer(value)
    return found if found is not None and 0 <= found < limit else ABSENT
