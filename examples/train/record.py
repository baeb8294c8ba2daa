"""Runs a few steps, times them, and records them with torch.profiler when asked to.

::

    with record.Steps(chosen) as steps:
        for batch in batches:
            ...                      # one training step
            if steps.done():
                break

Without ``--trace`` nothing is recorded and the printed step times are undisturbed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import site
import statistics
import sys
import sysconfig
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import torch
from torch.profiler import ProfilerActivity, profile, schedule

BEFORE = 2
"""Steps run before the timed ones: one waits, one warms the profiler up."""


@dataclass(frozen=True)
class Options:
    """What the command line chose. ``trace`` is the file to write, or None."""

    name: str
    fixed: bool
    steps: int
    trace: Path | None
    stacks: bool
    device: torch.device


def options(doc: str | None, steps: int = 6) -> Options:
    """Read the command line of an example script."""
    name = Path(sys.argv[0]).stem
    parser = argparse.ArgumentParser(prog=f"{name}.py", description=doc)
    parser.add_argument("--fixed", action="store_true", help="run the version without the fault")
    parser.add_argument("--steps", type=int, default=steps, help="steps to time and record")
    parser.add_argument("--trace", type=Path, help="record into this .json.gz (ranks: folder)")
    parser.add_argument("--no-stacks", action="store_true", help="record no Python stacks")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    found = parser.parse_args()
    device = torch.device(found.device)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // 2))  # leave cores to loader workers
    return Options(name, found.fixed, found.steps, found.trace, not found.no_stacks, device)


class Steps:
    """Counts, times and records steps; ``median_ms`` holds the result once the block is left."""

    def __init__(self, chosen: Options, rank: int | None = None) -> None:
        """With ``rank``, only rank 0 prints, and each rank writes a file into the folder."""
        self.chosen = chosen
        self.rank = rank
        self.seconds: list[float] = []
        self.median_ms = float("nan")
        self._profiler = self._make() if chosen.trace else None
        self._begin = 0.0

    def __enter__(self) -> Steps:
        """Start the clock and the profiler."""
        if self._profiler:
            self._profiler.__enter__()
        self._begin = time.perf_counter()
        return self

    def done(self) -> bool:
        """End one step; True when it was the last one."""
        count = len(self.seconds) + 1
        last = count == BEFORE + self.chosen.steps
        if last and self.chosen.device.type == "cuda":
            torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - self._begin)
        if self._profiler:
            self._profiler.step()
        self._begin = time.perf_counter()
        return last

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the profiler and say how long a step took."""
        if self._profiler:
            self._profiler.__exit__(kind, error, trace)
        if kind is not None:
            return
        self.median_ms = statistics.median(self.seconds[BEFORE:]) * 1e3
        if not self.rank:
            which = "fixed" if self.chosen.fixed else "faulty"
            timed = len(self.seconds) - BEFORE
            where = self.chosen.device.type
            name = self.chosen.name
            print(f"{name} ({which}): median step {self.median_ms:.1f} ms, {timed} steps, {where}")

    def _make(self) -> profile:
        activities = [ProfilerActivity.CPU]
        if self.chosen.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        return profile(
            activities=activities,
            schedule=schedule(wait=1, warmup=BEFORE - 1, active=self.chosen.steps, repeat=1),
            on_trace_ready=self._save,
            record_shapes=True,
            with_stack=self.chosen.stacks,
        )

    def _save(self, profiler: profile) -> None:
        path = self.chosen.trace
        assert path is not None
        if self.rank is not None:
            path.mkdir(parents=True, exist_ok=True)
            path /= f"rank{self.rank}_{self.chosen.device.type}.pt.trace.json.gz"
        with tempfile.TemporaryDirectory() as folder:
            raw = Path(folder) / "trace.json"
            profiler.export_chrome_trace(str(raw))
            text = clean(raw.read_text(encoding="utf-8"), path.name)
        with path.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
            packed.write(text.encode())


def clean(text: str, name: str) -> str:
    """The trace without folders of this machine and without its name."""
    for folder in _folders():
        text = text.replace(json.dumps(folder)[1:-1] + "/", "")
    document = json.loads(text)
    document.pop("host_name", None)
    document["traceName"] = name
    return json.dumps(document, separators=(",", ":"))


def _folders() -> list[str]:
    """Folders that recorded paths may begin with, the longest first."""
    here = Path(__file__).resolve().parents[2]
    found = {here, here.parent, Path.cwd(), Path.home(), Path(tempfile.gettempdir())}
    found |= {Path(p) for p in (*site.getsitepackages(), *sysconfig.get_paths().values())}
    found |= {Path(p) for p in (sys.prefix, sys.base_prefix)}
    found |= {p.resolve() for p in found}
    return sorted({str(p) for p in found if len(str(p)) > 1}, key=len, reverse=True)
