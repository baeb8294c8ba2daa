"""Small jobs to observe, and the command line that observes them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

needs_torch = pytest.mark.skipif(
    find_spec("torch") is None, reason="torch is not installed: pip install torch==2.13.0"
)

TRAINING = """
    import os, sys, torch
    torch.manual_seed(1)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(int(os.environ.get("STEPS", 20))):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        print(step, f"{float(loss):.9e}", flush=True)
"""
"""Prints number and loss of each of its steps."""


def script(folder: Path, source: str, name: str = "job.py") -> Path:
    path = folder / name
    path.write_text(dedent(source).lstrip("\n"))
    return path


def observe(
    folder: Path, *command: str, options: tuple[str, ...] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    """``whyidle run OPTIONS -o bundle -- COMMAND`` in ``folder``."""
    line = [sys.executable, "-m", "whyidle", "run", *options, "-o", "bundle", "--", *command]
    return subprocess.run(
        line,
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def events(folder: Path, kind: str, of: str = "*.jsonl") -> list[dict[str, Any]]:
    """All events of a kind in the bundle, process by process; ``of`` names files of processes."""
    files = sorted((folder / "bundle" / "processes").glob(of))
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return [line for line in lines if line["event"] == kind]


def steps(folder: Path) -> list[list[int]]:
    return [row for event in events(folder, "steps") for row in event["rows"]]


def pauses(folder: Path, kind: str) -> list[list[Any]]:
    """Rows of one kind of pause: kind, start_ns, end_ns, file, line, what."""
    rows = [row for event in events(folder, "pauses") for row in event["rows"]]
    return [row for row in rows if row[0] == kind]


def manifest(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "bundle" / "bundle.json").read_text())
    return found
