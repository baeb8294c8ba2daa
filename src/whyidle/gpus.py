"""Which GPUs and GPU tools this machine has, by read-only queries with a short time limit."""

from __future__ import annotations

import csv
import ctypes
import io
import json
import shutil
import subprocess

import msgspec

QUERY_LIMIT_S = 5.0
"""A vendor tool that answers slower than this is taken as not answering."""


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU of this machine; ``index`` is the vendor tool's, before CUDA_VISIBLE_DEVICES."""

    index: int
    name: str | None
    memory_bytes: int | None
    driver: str | None


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A program or library that can observe something; ``path`` None = not found here."""

    name: str
    path: str | None
    shows: str
    get: str


def tools_here() -> list[Tool]:
    """Everything that could observe a GPU or a Python process here, found or not."""
    return [
        _program("nvidia-smi", "names, memory and drivers of NVIDIA GPUs", "comes with the driver"),
        _library(
            "libnvidia-ml.so.1",
            "NVML",
            "NVIDIA utilisation, clocks and power",
            "comes with the driver",
        ),
        _program("rocm-smi", "names and memory of AMD GPUs", "comes with ROCm"),
        _program("nsys", "system-wide recordings of NVIDIA GPUs", "comes with Nsight Systems"),
        _program("py-spy", "Python stacks of a job that is already running", "pip install py-spy"),
    ]


def query(found: list[Tool]) -> list[Gpu]:
    """The GPUs that the vendor tools among ``found`` report; empty when none answers."""
    paths = {tool.name: tool.path for tool in found}
    return [*_nvidia(paths.get("nvidia-smi")), *_amd(paths.get("rocm-smi"))]


def parse_nvidia(text: str) -> list[Gpu]:
    """GPUs from ``nvidia-smi --query-gpu=index,name,memory.total,driver_version`` CSV rows."""
    rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(text))]
    return [
        Gpu(index=int(row[0]), name=row[1], memory_bytes=_mib(row[2]), driver=row[3])
        for row in rows
        if len(row) == 4 and row[0].isdigit()
    ]


def parse_amd(text: str) -> list[Gpu]:
    """GPUs from ``rocm-smi --showproductname --showmeminfo vram --json``."""
    try:
        cards = json.loads(text)
    except ValueError:
        return []
    return [
        Gpu(
            index=int(card.removeprefix("card")),
            name=row.get("Card Series") or row.get("Card series"),
            memory_bytes=_digits(row.get("VRAM Total Memory (B)")),
            driver=None,
        )
        for card, row in (cards.items() if isinstance(cards, dict) else ())
        if card.removeprefix("card").isdigit() and isinstance(row, dict)
    ]


def _nvidia(path: str | None) -> list[Gpu]:
    fields = "--query-gpu=index,name,memory.total,driver_version"
    return parse_nvidia(_answer(path, fields, "--format=csv,noheader,nounits"))


def _amd(path: str | None) -> list[Gpu]:
    return parse_amd(_answer(path, "--showproductname", "--showmeminfo", "vram", "--json"))


def _answer(path: str | None, *arguments: str) -> str:
    if path is None:
        return ""
    try:
        done = subprocess.run(
            [path, *arguments], capture_output=True, text=True, timeout=QUERY_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _program(name: str, shows: str, get: str) -> Tool:
    return Tool(name=name, path=shutil.which(name), shows=shows, get=get)


def _library(file: str, name: str, shows: str, get: str) -> Tool:
    try:
        ctypes.CDLL(file)
    except OSError:
        return Tool(name=name, path=None, shows=shows, get=get)
    return Tool(name=name, path=file, shows=shows, get=get)


def _mib(text: str) -> int | None:
    found = _digits(text)
    return None if found is None else found * 2**20


def _digits(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
