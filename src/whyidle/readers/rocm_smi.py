"""Reads ``rocm-smi`` (JSON, CSV, and the text of -a) and ``amd-smi metric`` (JSON, CSV).

Key names change between ROCm releases; ``KEYS`` lists all known ones. Everything is text, also
numbers. Only ``amd-smi metric --watch`` writes a time, in seconds since 1970. AMD's "GPU use" is
what NVIDIA calls GPU utilization: the share of time in which the graphics engine was busy at all.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from whyidle.errors import NothingRecorded, UnreadableEvidence
from whyidle.model import Evidence
from whyidle.readers.printed_text import decoded, printed
from whyidle.readers.readings import SECOND, Place, Readings
from whyidle.readers.series import LATEST_NS, Column, Long, clock
from whyidle.readers.unknowns import NOT_AVAILABLE, Reading, number, whole_number

NAME = "rocm_smi"

KEYS: tuple[tuple[str, str, str], ...] = (
    ("gpu_utilization", "%", r"GPU use \(%\)|GPU_Use.*"),
    ("memory_utilization", "%", r"Memory Activity|GPU Memory Read/Write Activity \(%\)"),
    ("memory_total", "", r"VRAM Total Memory \(B\)"),
    ("memory_used", "", r"VRAM Total Used Memory \(B\)"),
    (
        "power",
        "W",
        r"Average Graphics Package Power \(W\)|Current Socket Graphics Package Power \(W\)",
    ),
    ("power_limit", "W", r"Max Graphics Package Power \(W\)"),
    ("temperature", "C", r"Temperature \(Sensor junction\) \(C\)"),
    ("memory_temperature", "C", r"Temperature \(Sensor memory\) \(C\)"),
    ("sm_clock", "MHz", r"sclk clock speed:?"),
    ("memory_clock", "MHz", r"mclk clock speed:?"),
    ("fan_speed", "%", r"Fan speed \(%\)"),
    ("pcie_replays", "", r"PCIe Replay Count"),
)
"""Metric, unit without one, and the keys that print it."""

SETTINGS = (
    ("name", r"Card [Ss]eries|Card Series|Device Name"), ("bus_id", r"PCI Bus"),
    ("pstate", r"Performance Level"), ("uuid", r"Unique ID"),
    ("numa_affinity", r"\(Topology\) Numa Node"),
)  # fmt: skip

METRIC_PATHS = (
    ("gpu_utilization", "%", "usage/gfx_activity"),
    ("memory_utilization", "%", "usage/umc_activity"),
    ("power", "W", "power/socket_power power/current_socket_power power/average_socket_power"),
    ("power_limit", "W", "power/power_limit"),
    ("memory_total", "MB", "mem_usage/total_vram"),
    ("memory_used", "MB", "mem_usage/used_vram"),
    ("memory_free", "MB", "mem_usage/free_vram"),
    ("temperature", "C", "temperature/hotspot temperature/edge"),
    ("memory_temperature", "C", "temperature/mem"),
    ("sm_clock", "MHz", "clock/gfx_0/clk"),
    ("sm_clock_max", "MHz", "clock/gfx_0/max_clk"),
    ("memory_clock", "MHz", "clock/mem_0/clk"),
    ("pcie_width", "", "pcie/width"),
    ("energy", "J", "energy/total_energy_consumption"),
    ("fan_speed", "%", "fan/usage"),
)
"""Metric, unit without one, and where ``amd-smi metric --json`` has it."""

METRIC_COLUMNS = (
    ("gpu_utilization", "%", "gfx_activity"),
    ("memory_utilization", "%", "umc_activity"),
    ("power", "W", "socket_power current_socket_power average_socket_power"),
    ("power_limit", "W", "power_limit"),
    ("memory_total", "MB", "total_vram"),
    ("memory_used", "MB", "used_vram"),
    ("memory_free", "MB", "free_vram"),
    ("temperature", "C", "hotspot edge"),
    ("memory_temperature", "C", "mem"),
    ("sm_clock", "MHz", "gfx_0_clk"),
    ("sm_clock_max", "MHz", "gfx_0_max_clk"),
    ("memory_clock", "MHz", "mem_0_clk"),
    ("pcie_width", "", "width"),
    ("energy", "J", "total_energy_consumption"),
)
"""Metric, its unit, and the columns of ``amd-smi metric --csv``: the first with a number counts."""

_METRIC_HEADER = re.compile(
    r"(?:timestamp,)?gpu,(?:[\w.]+,)*(?:gfx_activity|socket_power|total_vram|hotspot)\b[\w.,]*\n"
)
_TEXT_ROW = re.compile(r"^GPU\[(\d+)\][ \t]*+: ++(.*?): ++(.*)$", re.M)
_METRIC_START = re.compile(
    r'(?:\{\s*"gpu_data"\s*:\s*)?\[\s*\{\s*(?:"timestamp"\s*:\s*\d+\s*,\s*)?"gpu"\s*:\s*\d'
)
_LINK = re.compile(r"\(([\d.]+)GT/s x(\d+)\)")
_GENERATIONS = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}
_TABLE = "Concise Info"
JSON_INSTEAD = "Run rocm-smi -a --json, or amd-smi metric --json, and give its output."


def sniff(path: Path, head: bytes) -> bool:
    """Whether the first bytes are output of rocm-smi or of amd-smi metric."""
    text = decoded(head)
    start = text.lstrip()[:300]
    if start[:1] in ("{", "["):
        return re.match(r'\{\s*"card\d+"\s*:\s*\{', start) is not None or (
            _METRIC_START.match(start) is not None
            and ("gfx_activity" in text or "mem_usage" in text or "socket_power" in text)
        )
    if _METRIC_HEADER.match(text.lstrip()[:8000]):
        return True
    if re.match(r"device,[^\n]*(?:GPU use|VRAM|Temperature|Power|clock)", start):
        return True
    return "ROCm System Management Interface" in text and _TEXT_ROW.search(text) is not None


def read(path: Path, progress: Callable[[int, int], None] | None = None) -> Evidence:
    """The readings in one file."""
    found = printed(path, progress)
    readings = Readings()
    readings.notes += found.notes
    text = found.text.lstrip()
    if text[:1] in ("{", "["):
        _take_json(path, text, readings)
    elif _METRIC_HEADER.match(text[:8000]):
        _take_metric_csv(path, text, readings)
    elif text.startswith("device,"):
        for row in csv.DictReader(io.StringIO(text)):
            _take_card(row.get("device") or "", row, readings)
    else:
        _take_text(text, readings)
    if not len(readings):
        raise NothingRecorded(str(path), "output of rocm-smi without a reading", JSON_INSTEAD)
    return readings.evidence(path, NAME, found.digest)


def is_table(text: str) -> bool:
    """Whether the text is the table for people, which is not read."""
    return "ROCm System Management Interface" in text and _TABLE in text


def _take_json(path: Path, text: str, readings: Readings) -> None:
    try:
        data = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UnreadableEvidence(
            str(path),
            f"JSON of rocm-smi that cannot be read ({error})",
            "Save the output again, whole.",
        ) from error
    if isinstance(data, dict) and "gpu_data" not in data:
        system = data.get("system")
        driver = system.get("Driver version") if isinstance(system, dict) else None
        for card, values in data.items():
            if isinstance(values, dict) and card.startswith("card"):
                _take_card(card, values, readings, driver)
        return
    listed = data.get("gpu_data") if isinstance(data, dict) else data
    for gpu in listed if isinstance(listed, list) else []:
        if isinstance(gpu, dict) and type(gpu.get("gpu")) is int:
            _take_amd_smi(gpu, readings)


def _take_text(text: str, readings: Readings) -> None:
    """Lines "GPU[0] : key: value" of ``rocm-smi -a``; the keys are those of the JSON."""
    cards: dict[str, dict[str, str]] = {}
    for index, key, value in _TEXT_ROW.findall(text):
        speed = re.match(r"(\w+clk) clock level$", key)
        if speed:
            key, value = f"{speed[1]} clock speed:", value.rstrip().rpartition(" ")[2]
        cards.setdefault(f"card{index}", {}).setdefault(key, value.rstrip())
    driver = re.search(r"^Driver version: (\S+)", text, re.M)
    for card, values in cards.items():
        _take_card(card, values, readings, driver[1] if driver else None)


def _take_card(
    card: str, values: Mapping[str, Any], readings: Readings, driver: Any = None
) -> None:
    digits = card.removeprefix("card")
    device = whole_number(digits)
    told = {key: str(value) for key, value in values.items() if isinstance(key, str)}
    unique = next((v for k, v in told.items() if k == "PCI Bus" and number(v).reason), None)
    place = Place(unique or digits, device)
    for metric, unit, keys in KEYS:
        texts = [text for key, text in told.items() if re.fullmatch(keys, key)]
        if texts:
            readings.text(place, metric, texts[0], unit)
    link = _LINK.search(told.get("pcie clock level", ""))
    if link and link[1] in _GENERATIONS:
        readings.text(place, "pcie_gen", str(_GENERATIONS[link[1]]))
        readings.text(place, "pcie_width", link[2])
    for key, keys in SETTINGS:
        texts = [text for name, text in told.items() if re.fullmatch(keys, name)]
        if texts:
            readings.setting(place, key, texts[0])
    if isinstance(driver, str):
        readings.setting(place, "driver", driver)


def _take_amd_smi(gpu: Mapping[str, Any], readings: Readings) -> None:
    place = Place(str(gpu["gpu"]), gpu["gpu"])
    when = gpu.get("timestamp")
    if isinstance(when, int) and 0 < when < LATEST_NS // SECOND:
        readings.clock_error_ns = SECOND
        place = place._replace(t_ns=when * SECOND)
    for metric, unit, paths in METRIC_PATHS:
        found = [_at(gpu, path) for path in paths.split()]
        told = [value for value in found if value is not None]
        if told:
            best = [_reading(value, unit) for value in told]
            first = next((reading for reading in best if reading.value is not None), best[0])
            readings.sample(place, metric, first)


def _take_metric_csv(path: Path, text: str, readings: Readings) -> None:
    """Rows of ``amd-smi metric --csv``; the header may come again, lists stand in quotes."""
    names = text.partition("\n")[0].strip().split(",")
    rows, _, last = text.rstrip("\n").rpartition("\n")
    if rows and len(next(csv.reader([last]), [])) < len(names):
        readings.note("a last row that was cut short, as when a job is killed, is left out")
        text = rows
    try:
        table = pl.read_csv(
            io.StringIO(text), has_header=False, truncate_ragged_lines=True,
            schema={str(i): pl.String for i in range(len(names))},
        )  # fmt: skip
    except pl.exceptions.PolarsError as error:
        raise UnreadableEvidence(
            str(path),
            f"a table of amd-smi that cannot be read ({str(error).splitlines()[0][:120]})",
            "Save the output again, whole.",
        ) from error
    index = pl.col(str(names.index("gpu"))).str.strip_chars().cast(pl.Int32, strict=False)
    table = table.with_columns(index.alias("device")).filter(pl.col("device").is_not_null())
    when = pl.Series([None] * table.height, dtype=pl.Int64)
    if names[0] == "timestamp":
        when, certain = clock(table["0"])
        readings.clock_error_ns = SECOND if certain else None
    found: list[Column] = []
    for metric, unit, keys in METRIC_COLUMNS:
        columns = [str(names.index(key)) for key in keys.split() if key in names]
        known = [c for c in columns if table[c].cast(pl.Float64, strict=False).is_not_null().any()]
        found += [Column(column, metric, unit) for column in (known or columns)[:1]]
    places = table.select(
        pl.col("device").cast(pl.String).alias("gpu"), "device",
        pl.lit(None, dtype=pl.String).alias("host"), pl.lit(None, dtype=pl.Int64).alias("process"),
        when.alias("t_ns"),
    )  # fmt: skip
    long = Long(found)
    long.add(table, places)
    long.into(readings)


def _at(values: Any, path: str) -> Any:
    for key in path.split("/"):
        values = (
            values.get(key) if isinstance(values, dict) else values if values == "N/A" else None
        )
    return values


def _reading(value: Any, unit: str) -> Reading:
    if isinstance(value, dict):
        unit = str(value.get("unit") or unit)
        value = value.get("value")
    if value is None or isinstance(value, bool | list | dict):
        return Reading(None, NOT_AVAILABLE)
    return number(str(value), unit)
