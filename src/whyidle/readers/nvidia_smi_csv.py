"""Reads CSV of ``nvidia-smi --query-gpu``, ``--query-compute-apps`` and ``--query-accounted-apps``.

A single row or a series of weeks, with units or without, commas, semicolons or tabs. Headers that
come again, other headers in the same file, and what nvidia-smi says between the rows when a GPU
is gone are all understood. A file without a header says nothing: the order of its columns is the
user's, so it is refused with the way out (``headless``).
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import polars as pl

from whyidle.errors import UnreadableEvidence
from whyidle.readers.readings import LOCAL_TIME, Place, Readings
from whyidle.readers.series import Column, Long, clock, whole_rows
from whyidle.readers.unknowns import GPU_LOST, NEEDS_RESET, UNITS, UNKNOWN_ERROR, Reading

FIELDS: dict[str, tuple[str, str]] = {
    "utilization.gpu": ("gpu_utilization", "%"),
    "utilization.memory": ("memory_utilization", "%"),
    "utilization.encoder": ("encoder_utilization", "%"),
    "utilization.decoder": ("decoder_utilization", "%"),
    "utilization.jpeg": ("jpeg_utilization", "%"),
    "utilization.ofa": ("ofa_utilization", "%"),
    "memory.total": ("memory_total", "MiB"),
    "memory.reserved": ("memory_reserved", "MiB"),
    "memory.used": ("memory_used", "MiB"),
    "memory.free": ("memory_free", "MiB"),
    "power.draw": ("power", "W"),
    "power.draw.instant": ("power", "W"),
    "power.draw.average": ("power", "W"),
    "enforced.power.limit": ("power_limit", "W"),
    "power.limit": ("power_limit", "W"),
    "temperature.gpu": ("temperature", "C"),
    "temperature.memory": ("memory_temperature", "C"),
    "clocks.current.sm": ("sm_clock", "MHz"),
    "clocks.sm": ("sm_clock", "MHz"),
    "clocks.current.graphics": ("graphics_clock", "MHz"),
    "clocks.gr": ("graphics_clock", "MHz"),
    "clocks.current.memory": ("memory_clock", "MHz"),
    "clocks.mem": ("memory_clock", "MHz"),
    "clocks.current.video": ("video_clock", "MHz"),
    "clocks.video": ("video_clock", "MHz"),
    "clocks.max.sm": ("sm_clock_max", "MHz"),
    "clocks.max.graphics": ("graphics_clock_max", "MHz"),
    "clocks.max.gr": ("graphics_clock_max", "MHz"),
    "clocks.max.memory": ("memory_clock_max", "MHz"),
    "clocks.max.mem": ("memory_clock_max", "MHz"),
    "pcie.link.gen.current": ("pcie_gen", ""),
    "pcie.link.gen.gpucurrent": ("pcie_gen", ""),
    "pcie.link.gen.max": ("pcie_gen_max", ""),
    "pcie.link.width.current": ("pcie_width", ""),
    "pcie.link.width.max": ("pcie_width_max", ""),
    "fan.speed": ("fan_speed", "%"),
    "ecc.errors.corrected.volatile.total": ("ecc_corrected", ""),
    "ecc.errors.uncorrected.volatile.total": ("ecc_uncorrected", ""),
    "used_gpu_memory": ("memory_used", "MiB"),
    "used_memory": ("memory_used", "MiB"),
    "gpu_util": ("gpu_utilization", "%"),
    "gpu_utilization": ("gpu_utilization", "%"),
    "mem_util": ("memory_utilization", "%"),
    "mem_utilization": ("memory_utilization", "%"),
}
"""Field as nvidia-smi prints it -> our metric, and the unit where none is; the first field wins."""

THROTTLES = {
    "gpu_idle": "gpu_idle",
    "applications_clocks_setting": "clocks_setting",
    "sw_power_cap": "sw_power_cap",
    "hw_slowdown": "hw_slowdown",
    "hw_thermal_slowdown": "hw_thermal_slowdown",
    "hw_power_brake_slowdown": "hw_power_brake",
    "sw_thermal_slowdown": "sw_thermal_slowdown",
    "sync_boost": "sync_boost",
}

SETTINGS = {
    "name": "name", "gpu_name": "name", "uuid": "uuid", "gpu_uuid": "uuid",
    "pci.bus_id": "bus_id", "gpu_bus_id": "bus_id", "index": "index", "driver_version": "driver",
    "pstate": "pstate", "persistence_mode": "persistence_mode", "compute_mode": "compute_mode",
    "compute_cap": "compute_capability", "mig.mode.current": "mig_mode",
    "ecc.mode.current": "ecc_mode", "addressing_mode": "addressing_mode",
    "gpu_recovery_action": "recovery_action", "fabric.state": "fabric_state",
    "fabric.status": "fabric_status", "remapped_rows.failure": "row_remap_failure",
    "remapped_rows.pending": "row_remap_pending",
}  # fmt: skip

_HEADER_WORDS = ("timestamp", "Timestamp", "index", "uuid", "name", "utilization", "memory.")
TIMES = ("timestamp", "time", "datetime", "date", "ts")
_NAMES = {*FIELDS, *SETTINGS, *TIMES, "pid", "process_name", "gpu_serial", "serial", "hostname"}
_OURS = {name for name in FIELDS if "." in name or "gpu" in name} | {"used_memory", "gpu_uuid"}
_TROUBLE = re.compile(
    rb"^.*(?:is lost|requires reset|unable to determine the device handle|has failed because|"
    rb"failed to initialize nvml|no devices were found|unknown error).*$", re.I | re.M
)  # fmt: skip
_TROUBLE_WORDS = (
    b"is lost", b"equires reset", b"o determine the device handle", b"has failed because",
    b"ailed to initialize", b"o devices were found", b"nknown error",
)  # fmt: skip
_BUS = re.compile(r"\b[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]\b")
_ROW = re.compile(
    r"^\s{0,20}(?:\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d+|GPU-[0-9a-f-]{36})\s{0,20}[,;\t]"
    r"|\d (?:%|MiB|W|MHz)\s{0,20}(?:[,;\t]|$)"
)
LONGEST_ROW = 4000
"""A longer line is no row of nvidia-smi, and is not looked at."""


class Header(NamedTuple):
    """The columns of a table: separator, names without units, and the units."""

    separator: str
    names: tuple[str, ...]
    units: tuple[str, ...]
    line: str


def header_of(line: str) -> Header | None:
    """The header in a line; None when the line is none that nvidia-smi would print."""
    separator = max(",;\t", key=line.count)
    cells = [_named(cell.strip().strip('"')) for cell in line.split(separator)]
    names = tuple(name.lower() for name, _ in cells)
    reasons = [name for name in names if name.startswith(("clocks_throttle", "clocks_event"))]
    known = sum(name in _NAMES for name in names) + len(reasons)
    if not (_OURS.intersection(names) or reasons) or known * 2 < len(names) < 12:
        return None
    return Header(separator, names, tuple(unit for _, unit in cells), line)


def _named(cell: str) -> tuple[str, str]:
    """Name and unit of a cell such as ``power.draw [W]``; the unit is empty where none is."""
    name, bracket, unit = cell.removesuffix("]").rpartition("[")
    return (name.rstrip(), unit) if bracket and cell.endswith("]") else (cell, "")


def first_header(text: str) -> Header | None:
    """The header on the first line that holds anything, comments aside."""
    for line in text.splitlines()[:40]:
        if line.strip() and not line.startswith("#") and not _TROUBLE.match(line.encode()):
            return header_of(line)
    return None


def recognises(text: str) -> bool:
    """Whether the text begins with a header of such a query."""
    return first_header(text) is not None


def headless(text: str) -> bool:
    """Whether the text looks like rows of such a query whose header was left out."""
    lines = [line for line in text.splitlines()[:20] if line.strip()]
    whole = lines[:-1] or lines
    return bool(lines) and all(len(line) <= LONGEST_ROW and _ROW.search(line) for line in whole)


def take(path: Path, blocks: Iterable[tuple[bytes, float]], head: str, readings: Readings) -> None:
    """Add every row; ``blocks`` are whole lines and the share of the file read after them."""
    header = first_header(head)
    assert header is not None
    tables: dict[str, _Table] = {}
    for block, share in blocks:
        block = _without_trouble(block, readings)
        for found, rows in _parts(block, header):
            header = found
            table = tables.setdefault(header.line, _Table(path, header))
            table.add(rows, share, readings)
    for table in tables.values():
        table.long.into(readings)


def _without_trouble(block: bytes, readings: Readings) -> bytes:
    """The rows alone; what nvidia-smi says of a GPU that is gone becomes an unknown reading."""
    if not any(word in block for word in _TROUBLE_WORDS):
        return block
    said = {found.group().decode(errors="replace").strip() for found in _TROUBLE.finditer(block)}
    said = {
        line for line in said if not re.match(r"\d{4}/\d\d/\d\d|GPU-", line) and "[" not in line
    }
    for line in sorted(said):
        low = line.lower()
        why = GPU_LOST if "lost" in low else NEEDS_RESET if "reset" in low else UNKNOWN_ERROR
        bus = _BUS.search(line)
        readings.note(f"nvidia-smi said: {line[:200]}")
        readings.sample(Place(bus[0] if bus else None), "gpu_utilization", Reading(None, why))
        block = re.sub(rb"(?m)^[ \t]*+" + re.escape(line.encode()) + rb"[ \t\r]*$\n?", b"", block)
    return block


def _parts(block: bytes, header: Header) -> Iterator[tuple[Header, bytes]]:
    """Rows under each header; a header line may come again at any place."""
    start = header.names[0].encode()
    names = {
        re.escape(name.encode()) for name in (*TIMES, "index", "name", "uuid", "gpu_name", "pid")
    }
    pattern = rb"^[ \t\"]*(?:" + b"|".join([re.escape(start), *sorted(names)]) + rb")\b[^\n]*\n"
    at = 0
    words = {name.encode() for name in (header.names[0], *_HEADER_WORDS)}
    again = any(word in block for word in words)
    for found in re.finditer(pattern, block, re.I | re.M) if again else ():
        other = header_of(found.group().decode(errors="replace").rstrip("\n"))
        if other is None:
            continue
        if block[at : found.start()].strip():
            yield header, block[at : found.start()]
        header, at = other, found.end()
    if block[at:].strip():
        yield header, block[at:]
    elif at:
        yield header, b""


class _Table:
    """The rows under one header."""

    def __init__(self, path: Path, header: Header) -> None:
        self.path = path
        self.header = header
        columns: dict[str, Column] = {}
        for i, (name, unit) in enumerate(zip(header.names, header.units, strict=True)):
            metric, usual = FIELDS.get(name, ("", ""))
            rank = [*FIELDS].index(name) if metric else 0
            have = columns.get(metric)
            if metric and (have is None or rank < [*FIELDS].index(header.names[int(have.name)])):
                columns[metric] = Column(
                    str(i), metric, unit if unit and unit.lower() in UNITS else usual
                )
        self.flags = {
            i: THROTTLES[last]
            for i, name in enumerate(header.names)
            if name.startswith(("clocks_throttle_reasons.", "clocks_event_reasons."))
            and (last := name.split(".", 1)[1]) in THROTTLES
        }
        flags = [Column(str(i), f"throttle_{ours}") for i, ours in self.flags.items()]
        self.long = Long([*columns.values(), *flags])

    def column(self, texts: pl.DataFrame, *names: str) -> pl.Series | None:
        """The first column of these names, blanks and marks of absence as null."""
        for name in names:
            if name in self.header.names:
                found = texts[str(self.header.names.index(name))].str.strip_chars()
                known = ~found.str.contains(r"^\[?(?:N/A|Not Supported|Unknown Error)?\]?$")
                if known.any():
                    return found.set(~known.fill_null(False), None)
        return None

    def add(self, rows: bytes, share: float, readings: Readings) -> None:
        """Add rows of text."""
        if not rows.strip():
            return
        width, separator = len(self.header.names), self.header.separator.encode()
        texts = self._texts(whole_rows(rows, separator, width, readings))
        if not texts.height:
            return
        places = self._places(texts, readings)
        flags = {"Active": "1", "Not Active": "0"}
        texts = texts.with_columns(
            pl.col(str(i)).str.strip_chars().replace(flags) for i in self.flags
        )
        self.long.add(texts, places, share)
        self._settings(texts, places, readings)

    def _texts(self, rows: bytes) -> pl.DataFrame:
        width = len(self.header.names)
        try:
            return pl.read_csv(
                io.BytesIO(rows), has_header=False, separator=self.header.separator,
                schema={str(i): pl.String for i in range(width)}, truncate_ragged_lines=True,
                quote_char='"' if b'"' in rows else None, encoding="utf8-lossy",
            ).filter(~pl.all_horizontal(pl.all().is_null()))  # fmt: skip
        except pl.exceptions.PolarsError as error:
            raise UnreadableEvidence(
                str(self.path),
                f"a table that cannot be read as CSV ({str(error).splitlines()[0][:120]})",
                "Save the output of nvidia-smi again, without changes.",
            ) from error

    def _places(self, texts: pl.DataFrame, readings: Readings) -> pl.DataFrame:
        empty = pl.Series([None] * texts.height, dtype=pl.String)
        time = self.column(texts, *TIMES)
        when, certain = (
            clock(time)
            if time is not None
            else (pl.Series([None] * texts.height, dtype=pl.Int64), False)
        )
        if time is not None and certain:
            readings.clock_error_ns = 1_000_000_000
            readings.note("times are seconds since 1970 as the file says; taken as right to 1 s")
        elif time is not None:
            readings.note(LOCAL_TIME)
        index = self.column(texts, "index")
        names = [
            found
            for found in (
                self.column(texts, "uuid", "gpu_uuid"),
                self.column(texts, "pci.bus_id", "gpu_bus_id"),
                index,
            )
            if found is not None
        ]
        if names and names[0].n_unique() < max(found.n_unique() for found in names):
            names.pop(0)  # masked uuids: several GPUs under one
        if not names:
            readings.note("the rows do not say which GPU they are of; add index,uuid to the query")
        host = self.column(texts, "hostname")
        process = self.column(texts, "pid")
        return pl.DataFrame(
            {
                "gpu": names[0] if names else empty,
                "device": (index if index is not None else empty).cast(pl.Int32, strict=False),
                "host": host if host is not None else empty,
                "process": (process if process is not None else empty).cast(pl.Int64, strict=False),
                "t_ns": when,
            }
        )

    def _settings(self, texts: pl.DataFrame, places: pl.DataFrame, readings: Readings) -> None:
        """Facts in words: each that a GPU ever had, once."""
        pairs = [
            (key, str(i)) for i, name in enumerate(self.header.names) if (key := SETTINGS.get(name))
        ]
        pairs += [(f"throttle.{ours}", str(i)) for i, ours in self.flags.items()]
        words = {"1": "Active", "0": "Not Active"}
        for key, column in pairs:
            seen = places.select("gpu", "device", "host").with_columns(texts[column].alias("text"))
            for gpu, device, host, text in seen.unique(maintain_order=True).rows():
                told = words.get(text, text) if key.startswith("throttle.") else text
                readings.setting(Place(gpu, device, host), key, told)
        if "process_name" in self.header.names and "pid" in self.header.names:
            named = places.with_columns(
                texts[str(self.header.names.index("process_name"))].str.strip_chars().alias("name")
            ).select("gpu", "device", "host", "process", "name")
            for gpu, device, host, pid, name in named.unique(maintain_order=True).rows():
                readings.setting(Place(gpu, device, host), "process", f"{pid} ? {name}")
