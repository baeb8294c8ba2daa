"""Runs ``whyidle`` as a user does: a process of its own, its exit code, its two streams."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

LIMIT_S = 120


def whyidle(
    *arguments: object,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    path: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """The finished process; ``path`` is a folder of extra packages, ``env`` adds variables."""
    return subprocess.run(
        [sys.executable, "-m", "whyidle", *map(str, arguments)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=cwd,
        env=environment(path, env),
        timeout=LIMIT_S,
    )


def environment(path: Path | None = None, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment with the product, and ``path``, importable."""
    source = str(Path(__file__).parents[2] / "src")
    paths = [source, *([str(path)] if path else []), os.environ.get("PYTHONPATH", "")]
    told = {"PYTHONPATH": os.pathsep.join(p for p in paths if p), "PYTHONUTF8": "1"}
    return {**os.environ, **told, **(env or {})}


def plug_in(folder: Path, group: str, name: str, source: str) -> Path:
    """Install, into ``folder``, a stranger's package whose module is an entry point of ours."""
    package = f"stranger_{name}"
    (folder / f"{package}.py").write_text(source, encoding="utf-8")
    about = folder / f"{package}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{group}]\n{name} = {package}\n")
    return folder
