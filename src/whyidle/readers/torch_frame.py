"""From gathered columns to the tables of an Evidence, ordered by start, parents before children."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from whyidle.model import CPU_DEVICE, KINDS, SAMPLES, SPANS, THREADS, frame
from whyidle.readers.torch_columns import Columns
from whyidle.readers.torch_events import ABSENT
from whyidle.readers.torch_links import (
    Arrows,
    arrows_could_help,
    carried,
    follow_arrows,
    launch_sizes,
)
from whyidle.readers.torch_names import (
    FIRST_DEVICE_CODE,
    KIND_CODES,
    LAST_WORK_CODE,
    OUTSIDE,
    as_integer,
)
from whyidle.readers.torch_times import Ints

DAY_NS = 86_400_000_000_000


class Table:
    """The spans of one trace while they are being ordered and joined.

    Arrays are by position, that is in file order; ``order`` lists the positions by start.
    """

    def __init__(self, columns: Columns) -> None:
        """Take the columns over; they are empty afterwards."""
        self.columns = columns
        take = columns.spans.take
        self.event, self.label, self.lane = take(0), take(1), take(2)
        self.start = take(3)
        self.end: Ints = take(4)
        self.end += self.start
        self.correlation, self.external = take(5), take(6)
        kinds = np.array(columns.labels.kinds or [OUTSIDE], dtype=np.uint8)
        self.kind = kinds[self.label]
        self.is_work = (self.kind >= FIRST_DEVICE_CODE) & (self.kind <= LAST_WORK_CODE)
        self.is_call = self.kind == KIND_CODES["runtime"]
        work, moved, kernels = columns.work, columns.moved, columns.kernels
        self.on_device, self.device, self.stream = work.take(0), work.take(1), work.take(2)
        self.moving, self.bytes = moved.take(0), moved.take(1)
        self.kernels, self.blocks = kernels.take(0), kernels.take(1)
        self.block_threads, self.occupancy = kernels.take(2), kernels.take(3)
        self._locate()

    @property
    def height(self) -> int:
        """Number of spans."""
        return int(self.start.size)

    def _locate(self) -> None:
        """Devices and streams that the arguments do not name come from the lane."""
        keys = self.columns.lanes.lanes
        unusable = (self.device < 0) | (self.device >= 1 << 31)
        for column, part, missing in (
            (self.device, 0, unusable),
            (self.stream, 1, self.stream == ABSENT),
        ):
            for lane in np.unique(self.lane[self.on_device[missing]]).tolist():
                found = as_integer(keys[lane][part])
                fits = found is not None and (part == 1 or 0 <= found < 1 << 31)
                rows = missing & (self.lane[self.on_device] == lane)
                column[rows] = found if fits else ABSENT
        homeless = self.device == ABSENT
        if homeless.any():
            known = np.unique(self.device[~homeless])
            self.device[homeless] = known[0] if known.size == 1 else 0
            self.columns.notes["on a device do not name it and are taken as device 0"] += int(
                homeless.sum()
            )

    def wants_arrows(self) -> bool:
        """Whether device work is left without a launch that arrows could give it."""
        return arrows_could_help(
            self.correlation, self.is_call, self.is_work, self.columns.flow_starts
        )

    def follow(self, arrows: Arrows) -> int:
        """Join work to launches by arrows; how many were joined."""
        return follow_arrows(
            arrows, self.correlation, self.is_call, self.is_work, self.lane, self.start, self.end
        )

    def carry(self, amd: bool) -> None:
        """Give device work what only its launching call says (AMD)."""
        launches, sent = self.columns.launches, self.columns.sent
        if amd:
            self.blocks[:] = ABSENT  # counts threads or blocks, by the launching call
        if launches.height:
            at = launches.take(0)
            names = self.columns.labels.names
            sides = np.stack([launches.take(i) for i in range(1, 7)])
            blocks, threads = launch_sizes(
                [names[label] for label in self.label[at].tolist()], sides[:3], sides[3:]
            )
            self.blocks = carried(self.correlation, at, blocks, self.kernels)
            found = carried(self.correlation, at, threads, self.kernels)
            missing = self.block_threads == ABSENT
            self.block_threads = np.where(missing, found, self.block_threads)
        if sent.height:
            at, sizes = sent.take(0), sent.take(1)
            found = carried(self.correlation, at, sizes, self.moving)
            self.bytes = np.where(self.bytes == ABSENT, found, self.bytes)

    def ordered(self) -> Ints:
        """Positions by start, longer spans first; spans at time 0 of a later trace left out."""
        order = np.argsort(self.start, kind="stable")
        sorted_start = self.start[order]
        if self.height and sorted_start[0] == 0:
            later = sorted_start[np.searchsorted(sorted_start, 0, side="right") :]
            if later.size and later[0] > DAY_NS:
                cut = self.height - later.size
                self.columns.notes["start at time 0, a day before all others, and are left out"] = (
                    cut
                )
                order, sorted_start = order[cut:], later
        same = sorted_start[1:] == sorted_start[:-1]
        tied = np.append(same, False) | np.append(False, same)
        at = np.flatnonzero(tied[: order.size])
        rows = order[at]
        order[at] = rows[np.lexsort((rows, -self.end[rows], self.start[rows]))]
        return order


@dataclass(frozen=True)
class Rows:
    """The spans of one trace, ordered, as arrays that several traces are built from at once.

    ``columns``: by column of ``spans``; None where the trace holds nothing of it. ``texts``: what
    the numbers in ``name``, ``shapes``, ``types`` and ``stack`` stand for. ``threads``: (process,
    name) by number.
    """

    height: int
    rank: int | None
    columns: dict[str, npt.NDArray[Any] | None]
    texts: dict[str, list[str]]
    threads: list[tuple[str, str]]


def rows_of(table: Table, base_ns: int, rank: int | None) -> Rows:
    """The ordered spans of one source; the table is empty afterwards."""
    order = table.ordered()
    height = order.size
    place = np.full(table.height, -1, dtype=np.int64)
    place[order] = np.arange(height)
    host = table.kind < FIRST_DEVICE_CODE
    threads, thread_of_lane = _threads(table, host)
    columns = {
        "event": table.event[order],
        "device": _spread(table.on_device, table.device, place, height),
        "thread": np.where(host, thread_of_lane[table.lane], ABSENT)[order],
        "lane": _spread(table.on_device, table.stream, place, height),
        "kind": table.kind[order],
        "name": table.label[order].astype(np.int64),
        "start_ns": table.start[order] + base_ns,
        "end_ns": table.end[order] + base_ns,
        "correlation": table.correlation[order],
        "external": table.external[order],
        "occupancy": _occupancy(table, place, height),
        **_described(table, place, height),
    }
    of = table.columns
    texts = {
        "name": of.labels.names,
        "shapes": of.shapes.texts,
        "types": of.types.texts,
        "stack": of.stacks.texts,
    }
    return Rows(height, rank, columns, texts, threads)


def spans_frames(traces: Sequence[Rows]) -> list[tuple[pl.DataFrame, pl.DataFrame]]:
    """The ``spans`` and ``threads`` tables of ``whyidle.model``, for each source.

    All are built as one table and then cut, since every column costs as much for a short trace as
    for a long one.
    """
    heights = [rows.height for rows in traces]
    known: dict[str, Any] = {
        "row": np.concatenate([np.arange(height) for height in heights]),
        "rank": np.repeat([ABSENT if r.rank is None else r.rank for r in traces], heights),
    }
    texts: dict[str, pl.Series] = {"kind": pl.Series(KINDS.categories, dtype=KINDS)}
    for name in traces[0].columns:
        found = [rows.columns[name] for rows in traces]
        if all(values is None for values in found):
            continue
        if name in traces[0].texts:
            found, texts[name] = _one_numbering(found, [rows.texts[name] for rows in traces])
        whole = [
            np.full(height, ABSENT) if values is None else values
            for values, height in zip(found, heights, strict=True)
        ]
        known[name] = whole[0] if len(whole) == 1 else np.concatenate(whole)
    occupancy = pl.Series(known.pop("occupancy"), nan_to_null=True)
    built = pl.DataFrame({**known, "occupancy": occupancy}).select(
        _column(name, dtype, name in known or name == "occupancy", texts.get(name))
        for name, dtype in SPANS.items()
    )
    threads = _threads_frame(traces)
    cut = []
    at = thread = 0
    for rows in traces:
        cut.append((built[at : at + rows.height], threads[thread : thread + len(rows.threads)]))
        at, thread = at + rows.height, thread + len(rows.threads)
    return cut


def _one_numbering(
    found: list[npt.NDArray[Any] | None], texts: list[list[str]]
) -> tuple[list[npt.NDArray[Any] | None], pl.Series]:
    """Numbers of texts that hold for all traces; ABSENT stays."""
    if len(texts) == 1:
        return found, pl.Series(texts[0], dtype=pl.Categorical)
    number: dict[str, int] = {}
    told: list[npt.NDArray[Any] | None] = []
    for values, mine in zip(found, texts, strict=True):
        if values is None:
            told.append(None)
            continue
        # the last place is for ABSENT
        new = np.array([number.setdefault(t, len(number)) for t in mine] + [ABSENT], np.int64)
        told.append(new[np.where(values < 0, len(mine), values)])
    return told, pl.Series(list(number), dtype=pl.Categorical)


def _column(name: str, dtype: Any, known: bool, texts: pl.Series | None) -> pl.Expr:
    """One column of ``spans``: null where it is ABSENT; the source is the only one."""
    if not known:
        return pl.lit(0 if name == "source" else None, dtype).alias(name)
    value = pl.col(name)
    if name in _MAY_LACK:
        value = pl.when(value != ABSENT).then(value)
    if texts is not None:
        value = pl.lit(texts).gather(value)
    return value.cast(dtype).alias(name)


_MAY_LACK = (
    "rank", "device", "thread", "lane", "correlation", "external", "sequence", "bytes", "blocks",
    "block_threads", "shapes", "types", "stack",
)  # fmt: skip


def _occupancy(table: Table, place: Ints, height: int) -> npt.NDArray[np.float32]:
    occupancy = np.full(height, np.nan, dtype=np.float32)
    at = place[table.kernels]
    occupancy[at[at >= 0]] = table.occupancy[at >= 0]
    return occupancy


def _described(table: Table, place: Ints, height: int) -> dict[str, Ints | None]:
    threads = np.where(table.block_threads < 1 << 31, table.block_threads, ABSENT)
    columns = {
        "bytes": _spread(table.moving, table.bytes, place, height),
        "blocks": _spread(table.kernels, table.blocks, place, height),
        "block_threads": _spread(table.kernels, threads, place, height),
    }
    of = table.columns
    numbered = of.sequence.take(0)
    columns["sequence"] = _spread(numbered, of.sequence.take(1), place, height)
    described = of.described.take(0)
    for number, name in enumerate(("shapes", "types", "stack"), start=1):
        codes = of.described.take(number).astype(np.int64)
        codes[codes < 0] = ABSENT
        columns[name] = _spread(described, codes, place, height)
    return columns


def _spread(rows: Ints, values: npt.NDArray[Any], place: Ints, height: int) -> Ints | None:
    """A column of ``height`` that holds ``values`` where ``rows`` went, and ABSENT elsewhere.

    None when it would hold nothing.
    """
    known = values != ABSENT
    at = place[rows[known]]
    if not at.size:
        return None
    full = np.full(height, ABSENT, dtype=np.int64)
    full[at[at >= 0]] = values[known][at >= 0]
    return full


def _threads(table: Table, host: npt.NDArray[np.bool_]) -> tuple[list[tuple[str, str]], Ints]:
    """Process and name of each host thread, and its number by lane (-1 = no host thread)."""
    columns = table.columns
    lanes = np.unique(table.lane[host]).tolist()
    number = np.full(max(len(columns.lanes.lanes), 1), -1, dtype=np.int64)
    number[lanes] = np.arange(len(lanes))
    told = [(columns.lanes.lanes[lane][0], thread_name(columns, lane)) for lane in lanes]
    return told, number


def _threads_frame(traces: Sequence[Rows]) -> pl.DataFrame:
    """The threads of all sources, numbered from 0 in each."""
    rows = {
        "thread": [number for rows in traces for number in range(len(rows.threads))],
        "rank": [rows.rank for rows in traces for _ in rows.threads],
        "process": [process for rows in traces for process, _ in rows.threads],
        "name": [name for rows in traces for _, name in rows.threads],
    }
    return pl.DataFrame(rows, schema=THREADS)


def thread_name(columns: Columns, lane: int) -> str:
    """The recorded name of a thread, else its tid.

    Of several names the one that is not merely "thread TID (PROCESS)" is taken.
    """
    process, tid = columns.lanes.lanes[lane]
    names = columns.thread_names.get(lane, [])
    program = columns.process_names.get(process)
    own = [name for name in names if not name.endswith(f"({program})")]
    return (own or names or [tid])[0]


def samples_frame(columns: Columns, base_ns: int, rank: int | None) -> pl.DataFrame | None:
    """Allocator readings as the ``samples`` table, bytes; None when no totals were recorded.

    The processor's allocator, device -1, keeps no reserve and has no such reading.
    """
    if not columns.memory.height:
        return None
    when, device, device_type, allocated, reserved = (columns.memory.take(i) for i in range(5))
    on_cpu = (device_type == 0) | (device < 0)
    place = np.where(on_cpu, CPU_DEVICE, np.minimum(device, (1 << 31) - 1))
    parts = []
    for metric, values, known in (
        ("allocator.allocated", allocated, allocated >= 0),
        ("allocator.reserved", reserved, (reserved >= 0) & ~on_cpu),
    ):
        keep = known & (when != ABSENT) & (np.abs(when) < 1 << 62)
        rows = {
            "device": place[keep],
            "t_ns": when[keep] + base_ns,
            "value": values[keep].astype(np.float64),
        }
        parts.append(
            pl.DataFrame(rows).with_columns(
                pl.lit(0, dtype=pl.UInt16).alias("source"),
                pl.lit(rank, dtype=pl.Int32).alias("rank"),
                pl.lit(metric, dtype=pl.Categorical).alias("metric"),
                pl.lit("bytes", dtype=pl.Categorical).alias("unit"),
            )
        )
    found = pl.concat(parts).sort("t_ns", maintain_order=True)
    return frame(SAMPLES, found) if found.height else None
