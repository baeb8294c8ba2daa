"""Reads what ``nvidia-smi`` prints: -q, -q -x, --query-..., dmon, pmon, the table, or all of it.

A file may hold one output or a whole session: lines such as ``$ nvidia-smi dmon -c 5`` part it.
Long series (a CSV of a week, dmon of eight GPUs) are read block by block.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from whyidle.errors import NothingRecorded
from whyidle.model import Evidence
from whyidle.readers import (
    nvidia_smi_csv,
    nvidia_smi_monitor,
    nvidia_smi_query,
    nvidia_smi_table,
    topology,
)
from whyidle.readers.printed_text import Series, decoded, printed
from whyidle.readers.readings import Readings
from whyidle.readers.source_bytes import head_of

NAME = "nvidia_smi"

_COMMAND = re.compile(
    r"^(?:.*[$#>\]]|PS .*>)?[ \t]*+(?:\$[ \t]*+)?nvidia-smi(?:\.exe)?((?: [^\n|]*)?)(?:\|[^\n]*)?$",
    re.M,
)
_RULE = re.compile(r"^(?:#{4,}|# [^\n]* :: [^\n]*|# \(exit code: \d+\))$", re.M)


_MARKS = ("nvidia", "NVIDIA", "NVSMI", "gpu", "utilization", "memory.", "power.draw", "clocks")
"""One of these is in every such output; most files that are asked about have none."""


class Section(NamedTuple):
    """One output: the command's arguments, empty when none is shown, and what it printed."""

    command: str
    text: str


def sniff(path: Path, head: bytes) -> bool:
    """Whether the first bytes are output of nvidia-smi that holds readings of GPUs."""
    text = decoded(head)
    if not any(mark in text for mark in _MARKS):
        return False
    parts = list(sections(text))
    kinds = {kind for part in parts for kind in kinds_of(part.text)}
    return bool(kinds - {"topology"}) or len([part for part in parts if part.command]) > 2


def sections(text: str) -> Iterator[Section]:
    """The outputs in a session; the whole text when no command is shown."""
    commands = list(_COMMAND.finditer(text)) if "nvidia-smi" in text else []
    if not commands or text[: commands[0].start()].strip(" \n#\ufeff"):
        before = text[: commands[0].start()] if commands else text
        yield Section("", _RULE.sub("", before) if commands else before)
    for found, after in zip(commands, [*commands[1:], None], strict=False):
        body = text[found.end() : after.start() if after else len(text)]
        yield Section(found[1].strip() or "nvidia-smi", _RULE.sub("", body))


def kinds_of(text: str) -> list[str]:
    """Which outputs a section may be read as: query, table, csv, monitor, topology."""
    if nvidia_smi_query.recognises(text):
        return ["query"]
    if nvidia_smi_table.recognises(text):
        return ["table"]
    if nvidia_smi_csv.recognises(text):
        return ["csv"]
    if nvidia_smi_monitor.recognises(text):
        return ["monitor"]
    return ["topology"] if topology.recognises(text) else []


def read(path: Path, progress: Callable[[int, int], None] | None = None) -> Evidence:
    """The readings in one file."""
    readings = Readings()
    head = decoded(head_of(path))
    kinds = kinds_of(head)
    if kinds in (["csv"], ["monitor"]) and not _COMMAND.search(head):
        series = Series(path, progress)
        _take_series(path, kinds[0], head, series.parts(), readings)
        digest = series.digest
    else:
        found = printed(path, progress)
        readings.notes += found.notes
        digest = found.digest
        for section in sections(found.text):
            _take(path, section, readings)
    if not len(readings):
        raise NothingRecorded(
            str(path),
            "output of nvidia-smi that lists no GPU and no process",
            "Take it again while the job runs, on the machine where it runs.",
        )
    return readings.evidence(path, NAME, digest)


def _take(path: Path, section: Section, readings: Readings) -> None:
    for kind in kinds_of(section.text):
        if kind == "query":
            nvidia_smi_query.take(path, section.text, readings)
        elif kind == "table":
            nvidia_smi_table.take(section.text, readings)
        elif kind == "topology":
            topology.take(section.text, readings, section.command)
        else:
            whole = [(section.text.strip("\n").encode() + b"\n", 1.0)]
            _take_series(path, kind, section.text, whole, readings)


def _take_series(
    path: Path, kind: str, head: str, blocks: Iterable[tuple[bytes, float]], readings: Readings
) -> None:
    if kind == "csv":
        nvidia_smi_csv.take(path, blocks, head, readings)
    else:
        nvidia_smi_monitor.take(path, blocks, readings)
