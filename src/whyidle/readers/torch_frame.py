"""From gathered columns to the tables of an Evidence, ordered by start, parents before children."""

from __future__ import annotations

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


def spans_frame(table: Table, base_ns: int, rank: int | None) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The ``spans`` and ``threads`` tables of ``whyidle.model``, for one source."""
    order = table.ordered()
    height = order.size
    place = np.full(table.height, -1, dtype=np.int64)
    place[order] = np.arange(height)
    host = table.kind < FIRST_DEVICE_CODE
    threads, thread_of_lane = _threads(table, host, rank)
    thread = np.where(host, thread_of_lane[table.lane], ABSENT)[order]
    columns: dict[str, Any] = {
        "event": table.event[order],
        "device": _spread(table.on_device, table.device, place, height),
        "thread": thread,
        "lane": _spread(table.on_device, table.stream, place, height),
        "kind": table.kind[order],
        "name": table.label[order],
        "start_ns": table.start[order] + base_ns,
        "end_ns": table.end[order] + base_ns,
        "correlation": table.correlation[order],
        "external": table.external[order],
        "occupancy": _occupancy(table, place, height),
        **_described(table, place, height),
    }
    known = {name: values for name, values in columns.items() if values is not None}
    texts = {
        "kind": pl.Series(KINDS.categories, dtype=KINDS),
        "name": pl.Series(table.columns.labels.names, dtype=pl.Categorical),
        "shapes": pl.Series(table.columns.shapes.texts, dtype=pl.Categorical),
        "types": pl.Series(table.columns.types.texts, dtype=pl.Categorical),
        "stack": pl.Series(table.columns.stacks.texts, dtype=pl.Categorical),
    }
    same = {"source": 0, "rank": rank}
    built = pl.DataFrame(known).with_row_index("row").select(
        _column(name, dtype, name in known, texts.get(name), same.get(name))
        for name, dtype in SPANS.items()
    )  # fmt: skip
    return built, threads


def _column(
    name: str, dtype: Any, known: bool, texts: pl.Series | None, same: int | None
) -> pl.Expr:
    """One column of ``spans``: ``same`` in every row, else null where it is ABSENT."""
    if name != "row" and not known:
        return pl.lit(same, dtype).alias(name)
    value = pl.col(name)
    if name in _MAY_LACK:
        value = pl.when(value != ABSENT).then(value)
    if texts is not None:
        value = pl.lit(texts).gather(value)
    return value.cast(dtype).alias(name)


_MAY_LACK = (
    "device", "thread", "lane", "correlation", "external", "sequence", "bytes", "blocks",
    "block_threads", "shapes", "types", "stack",
)  # fmt: skip


def _occupancy(table: Table, place: Ints, height: int) -> pl.Series:
    occupancy = np.full(height, np.nan, dtype=np.float32)
    at = place[table.kernels]
    occupancy[at[at >= 0]] = table.occupancy[at >= 0]
    return pl.Series(occupancy, nan_to_null=True)


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


def _threads(
    table: Table, host: npt.NDArray[np.bool_], rank: int | None
) -> tuple[pl.DataFrame, Ints]:
    """The threads table, and the thread's number by lane (-1 = no host thread)."""
    columns = table.columns
    lanes = np.unique(table.lane[host]).tolist()
    number = np.full(max(len(columns.lanes.lanes), 1), -1, dtype=np.int64)
    number[lanes] = np.arange(len(lanes))
    rows = {
        "thread": list(range(len(lanes))),
        "rank": [rank] * len(lanes),
        "process": [columns.lanes.lanes[lane][0] for lane in lanes],
        "name": [thread_name(columns, lane) for lane in lanes],
    }
    return pl.DataFrame(rows, schema=THREADS), number


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
