"""Reads ``nvidia-smi dmon`` and ``pmon``: rows of readings, once a second or slower.

Header lines come again every few rows and differ with -s; -o adds a date or a time. Without both
the readings have no clock, with a time alone they count from the midnight before the first row.
A dash is an unknown reading, never a zero.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import polars as pl

from whyidle.errors import UnreadableEvidence
from whyidle.readers.readings import LOCAL_TIME, Place, Readings
from whyidle.readers.series import Column, Long, whole_rows

COLUMNS = {
    "pwr": ("power", "W"), "gtemp": ("temperature", "C"), "temp": ("temperature", "C"),
    "mtemp": ("memory_temperature", "C"), "sm": ("gpu_utilization", "%"),
    "mem": ("memory_utilization", "%"), "enc": ("encoder_utilization", "%"),
    "dec": ("decoder_utilization", "%"), "jpg": ("jpeg_utilization", "%"),
    "ofa": ("ofa_utilization", "%"), "mclk": ("memory_clock", "MHz"), "pclk": ("sm_clock", "MHz"),
    "pviol": ("power_violation", "%"), "tviol": ("thermal_violation", ""),
    "fb": ("memory_used", "MiB"), "bar1": ("bar1_used", "MiB"), "sbecc": ("ecc_corrected", ""),
    "dbecc": ("ecc_uncorrected", ""), "pci": ("pcie_replays", ""), "rxpci": ("pcie_rx", "MB/s"),
    "txpci": ("pcie_tx", "MB/s"), "gract": ("graphics_engine_active", "%"),
    "smutil": ("sm_active", "%"), "smocc": ("sm_occupancy", "%"), "mmaact": ("tensor_active", "%"),
    "dram": ("dram_active", "%"), "fp64": ("fp64_active", "%"), "fp32": ("fp32_active", "%"),
    "fp16": ("fp16_active", "%"), "pcitx": ("pcie_tx", "MiB/s"), "pcirx": ("pcie_rx", "MiB/s"),
    "nvltx": ("nvlink_tx", "MiB/s"), "nvlrx": ("nvlink_rx", "MiB/s"),
}  # fmt: skip
"""Column as printed -> our metric and its unit; ``sm`` is GPU utilization. From ``gract`` on they
are those of --gpm-metrics, which NVML gives as percentages and MiB per second."""

_HEADER = re.compile(rb"^#[ ,]*(?:(?:Date|Time)[ ,]+)*gpu[ ,][^\n]*", re.M | re.I)
_COMMENT = re.compile(rb"#[^\n]*")
DAY_NS = 86_400_000_000_000


def recognises(text: str) -> bool:
    """Whether the text holds a header of dmon or pmon, and not one of dcgmi."""
    return _HEADER.search(text.encode()) is not None


def take(path: Path, blocks: Iterable[tuple[bytes, float]], readings: Readings) -> None:
    """Add every row; ``blocks`` are whole lines and the share of the file read after them."""
    tables: dict[tuple[str, ...], _Table] = {}
    header: tuple[str, ...] = ()
    for block, share in blocks:
        for names, rows in _parts(block, header):
            header = names
            if names and rows.strip():
                tables.setdefault(names, _Table(path, names)).add(rows, share, readings)
    for table in tables.values():
        table.long.into(readings)


def _parts(block: bytes, header: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], bytes]]:
    """Rows under each header. One header that comes again, as usual, leaves the block whole."""
    lines = (found for found in _COMMENT.finditer(block) if _starts_line(block, found.start()))
    found = [line for line in lines if _HEADER.match(line.group())]
    distinct = {b" ".join(match.group().split()) for match in found}
    if len(distinct) <= 1:
        yield (_names(found[0].group()) if found else header), block
        return
    at = 0
    for match in found:
        yield header, block[at : match.start()]
        header, at = _names(match.group()), match.start()
    yield header, block[at:]


def _starts_line(block: bytes, at: int) -> bool:
    return at == 0 or block[at - 1] == ord("\n")


def _names(line: bytes) -> tuple[str, ...]:
    return tuple(line.decode(errors="replace").strip("# ").replace(",", " ").lower().split())


def squeezed(rows: bytes) -> bytes:
    """The rows with one space between cells and none around them; commas count as spaces."""
    cells = np.frombuffer(rows, dtype=np.uint8).copy()
    cells[(cells == ord(",")) | (cells == ord("\t"))] = ord(" ")
    space, newline = cells == ord(" "), cells == ord("\n")
    follows = np.append(space[1:] | newline[1:], True)
    cells = cells[~(space & follows)]
    space, newline = cells == ord(" "), cells == ord("\n")
    starts = np.append(True, newline[:-1])
    return bytes(cells[~(space & starts)].tobytes())


class _Table:
    """The rows under one header."""

    def __init__(self, path: Path, names: tuple[str, ...]) -> None:
        self.path = path
        self.names = names
        self.per_process = "pid" in names
        self.long = Long([
            Column(str(i), *COLUMNS[name]) for i, name in enumerate(names) if name in COLUMNS
        ])  # fmt: skip
        self._days = 0
        self._last = -1

    def add(self, rows: bytes, share: float, readings: Readings) -> None:
        """Add rows of text."""
        texts = self._texts(whole_rows(squeezed(rows), b" ", len(self.names), readings))
        index = texts[str(self.names.index("gpu"))].cast(pl.Int32, strict=False)
        keep = index.is_not_null()
        if self.per_process:
            pid = texts[str(self.names.index("pid"))].cast(pl.Int64, strict=False)
            self._commands(texts, index, readings)
            keep &= pid.is_not_null()
        else:
            pid = pl.Series([None] * texts.height, dtype=pl.Int64)
        texts, index, pid = texts.filter(keep), index.filter(keep), pid.filter(keep)
        empty = pl.Series([None] * texts.height, dtype=pl.String)
        places = pl.DataFrame({"gpu": index.cast(pl.String), "device": index, "host": empty,
                               "process": pid, "t_ns": self._times(texts, readings)})  # fmt: skip
        self.long.add(texts, places, share)

    def _texts(self, rows: bytes) -> pl.DataFrame:
        try:
            return pl.read_csv(
                io.BytesIO(rows), has_header=False, separator=" ", comment_prefix="#",
                schema={str(i): pl.String for i in range(len(self.names))}, quote_char=None,
                truncate_ragged_lines=True, encoding="utf8-lossy",
            )  # fmt: skip
        except pl.exceptions.NoDataError:
            return pl.DataFrame(schema={str(i): pl.String for i in range(len(self.names))})
        except pl.exceptions.PolarsError as error:
            raise UnreadableEvidence(
                str(self.path),
                f"rows of dmon or pmon that cannot be read ({str(error).splitlines()[0][:120]})",
                "Save the output again, whole and without changes.",
            ) from error

    def _times(self, texts: pl.DataFrame, readings: Readings) -> pl.Series:
        if "time" not in self.names:
            return pl.Series([None] * texts.height, dtype=pl.Int64)
        readings.note(LOCAL_TIME)
        time = texts[str(self.names.index("time"))]
        seconds = (time.str.slice(0, 2).cast(pl.Int64, strict=False) * 3600
                   + time.str.slice(3, 2).cast(pl.Int64, strict=False) * 60
                   + time.str.slice(6, 2).cast(pl.Int64, strict=False))  # fmt: skip
        if "date" in self.names:
            date = texts[str(self.names.index("date"))].str.to_date("%Y%m%d", strict=False)
            return date.cast(pl.Int64) * DAY_NS + seconds * 1_000_000_000
        readings.note("the date is not written: times count from midnight of the first day")
        before = (
            pl.concat([pl.Series([self._last]), seconds.forward_fill().head(-1)])
            if len(seconds)
            else seconds
        )
        turns = (seconds + 43_200 < before).fill_null(False).cast(pl.Int64).cum_sum() + self._days
        if len(seconds):
            self._days = int(turns[-1])
            self._last = (
                int(seconds.drop_nulls()[-1]) if seconds.null_count() < len(seconds) else self._last
            )
        return turns * DAY_NS + seconds * 1_000_000_000

    def _commands(self, texts: pl.DataFrame, index: pl.Series, readings: Readings) -> None:
        if "command" not in self.names or "type" not in self.names:
            return
        seen = pl.DataFrame({
            "device": index, "pid": texts[str(self.names.index("pid"))],
            "type": texts[str(self.names.index("type"))],
            "command": texts[str(self.names.index("command"))],
        }).drop_nulls("device").unique(maintain_order=True)  # fmt: skip
        for device, pid, kind, command in seen.rows():
            if pid and pid.isdigit():
                place = Place(str(device), device)
                readings.setting(place, "process", f"{pid} {kind} {command}")
