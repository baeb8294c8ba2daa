"""Tiny data sets with planted truth, and what tests of packing ask again and again."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "100"}


def jpeg_like(number: int, size: int = 60) -> bytes:
    """Bytes with the structure of a JPEG and a content of their own; no decoder reads them."""
    return b"\xff\xd8" + random.Random(number).randbytes(size) + b"\xff\xd9"


def picture_folder(folder: Path, count: int, size: int = 60) -> dict[str, tuple[bytes, int]]:
    """Makes a folder of two classes; returns key -> (bytes, class), told without our code."""
    truth = {}
    for number in range(count):
        name = ("cat", "dog")[number % 2]
        path = folder / name / f"{number:04d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg_like(number, size))
        truth[f"{name}/{number:04d}.jpg"] = (jpeg_like(number, size), number % 2)
    return truth


def rows(path: Path, count: int, width: int = 64) -> np.ndarray:
    """Writes an array of random rows and returns it."""
    array = np.random.default_rng(count).integers(0, 256, (count, width), np.uint8)
    np.save(path, array)
    return array


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder with its bytes."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def untouched(source: Path) -> list[tuple[str, int, str]]:
    """What must not change of a source: names, times and hashes."""
    files = [source] if source.is_file() else sorted(source.rglob("*"))
    return [
        (
            str(path),
            path.stat().st_mtime_ns,
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
        )
        for path in files
    ]


def command(*arguments: object) -> list[str]:
    """The command line of ``whyidle data``."""
    return [sys.executable, "-m", "whyidle", "data", *map(str, arguments)]


def whyidle(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    """Runs ``whyidle data`` to its end."""
    return subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=120,
        **options,  # type: ignore[call-overload]
    )
