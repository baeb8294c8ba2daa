"""Starts the process that measures, waits for it, and says in a sentence what happened to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whyidle.data.limits import Limits
from whyidle.data.spec import Spec
from whyidle.errors import UsageError

LOOK_S = 0.05
PATIENCE_S = 120.0
"""A part that takes longer than this and four times what was asked for counts as hung."""


@dataclass(frozen=True)
class Told:
    """What the child wrote: the parts that are done, by name, and sentences about the others."""

    parts: dict[str, dict[str, Any]]
    notes: list[str] = field(default_factory=list)

    def of(self, name: str) -> dict[str, Any]:
        """One part; empty where it was not done."""
        return self.parts.get(name, {})


def measured(
    spec: Spec,
    limits: Limits,
    batch_size: int | None,
    seconds: float,
    show: Callable[[str], None] = lambda _: None,
    patience_s: float = PATIENCE_S,
) -> Told:
    """Measure in a child; UsageError where the data set cannot even be loaded."""
    request = {
        "spec": {name: getattr(spec, name) for name in ("text", "kind", "where", "attribute")},
        "batch_size": batch_size,
        "seconds": seconds,
        "cpus": limits.cpus,
        "shm_free": limits.shm_free,
    }
    with tempfile.TemporaryDirectory(prefix="whyidle-probe-") as made:
        folder = Path(made)
        (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
        result = folder / "result.jsonl"
        result.touch()
        command = [
            sys.executable, "-m", "whyidle.data.probe_child",
            str(folder / "request.json"), str(result),
        ]  # fmt: skip
        with open(folder / "said.txt", "wb") as said:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                hung = _wait(child, result, seconds, patience_s, show)
            finally:
                _end(child)
        lines = _lines(result)
        return _told(spec, lines, child.returncode, hung, _last_words(folder / "said.txt"))


def _wait(
    child: subprocess.Popen[bytes],
    result: Path,
    seconds: float,
    patience_s: float,
    show: Callable[[str], None],
) -> bool:
    """Wait for the child; whether one part took too long."""
    size, since = 0, time.monotonic()
    while child.poll() is None:
        time.sleep(LOOK_S)
        now = result.stat().st_size
        if now != size:
            size, since = now, time.monotonic()
            lines = _lines(result)
            if lines and "begin" in lines[-1]:
                show(str(lines[-1]["begin"]))
        elif time.monotonic() - since > patience_s + 4 * seconds:
            return True
    return False


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the child and all that it started, which are a session of their own."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _lines(result: Path) -> list[dict[str, Any]]:
    found = []
    for line in result.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError):
            one = json.loads(line)
            if isinstance(one, dict):
                found.append(one)
    return found


def _last_words(path: Path) -> str:
    lines = path.read_bytes()[-4000:].decode("utf-8", "replace").strip().splitlines()
    return lines[-1].strip()[:200] if lines else ""


def _told(spec: Spec, lines: list[dict[str, Any]], code: int, hung: bool, words: str) -> Told:
    parts = {str(one["done"]): one for one in lines if "done" in one}
    notes: list[str] = []
    for one in lines:
        if "failed" in one:
            if "stages" not in parts:
                if one.get("usage"):
                    raise UsageError(str(one["error"]))
                raise UsageError(
                    f"{spec.text}: {_DOING.get(one['failed'], one['failed'])} failed: "
                    f"{one['error']}\nRun it by itself first: its own error tells more."
                )
            notes.append(f"{one['failed']} could not be measured: {one['error']}")
    begun = [str(one["begin"]) for one in lines if "begin" in one]
    at = begun[-1] if begun else "the start"
    if hung or code:
        what = "hung and was ended" if hung else _death(code, words)
        if "stages" not in parts and not any("failed" in one for one in lines):
            raise UsageError(
                f"{spec.text}: the process that measured {what} in {_DOING.get(at, at)}.\n"
                "Run it by itself first; for a crash: python -X faulthandler."
            )
        if "stages" in parts and at not in parts:
            notes.append(
                f"the process that measured {what} in the part {at!r}; the rest is left out"
            )
    return Told(parts, notes)


_DOING = {
    "load": "making the data set",
    "first sample": "asking for the first sample",
    "samples": "asking for samples",
    "stages": "asking for samples, timed by stage",
}


def _death(code: int, words: str) -> str:
    if code < 0:
        with suppress(ValueError):
            name = signal.Signals(-code).name
            more = " (shared memory or a disk ran full?)" if name == "SIGBUS" else ""
            return f"died of {name}{more}"
    return f"ended with code {code}" + (f" ({words})" if words else "")
