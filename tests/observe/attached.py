"""Jobs that already run, and the command line that watches them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.observe.jobs import script
from whyidle.observe.attach_stacks import Recorder, tool
from whyidle.observe.attach_tree import tree


def _may_look() -> str | None:
    """Why stacks cannot be read here; None where they can."""
    if tool() is None:
        return "py-spy is not installed: pip install py-spy"
    child = subprocess.Popen([sys.executable, "-c", "print(1, flush=True); input()"],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    with child:
        assert child.stdout and child.stdin
        child.stdout.readline()
        recorder = Recorder(tree(child.pid), 1, Path(os.devnull), pause=False)
        why = recorder.refusal()
        child.stdin.close()
    return why


needs_stacks = pytest.mark.skipif((why := _may_look()) is not None, reason=why or "")


@contextmanager
def running(folder: Path, source: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A job that has printed its first line; it is killed at the end."""
    job = script(folder, source)
    child = subprocess.Popen(
        [sys.executable, str(job), *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert child.stdout
        assert child.stdout.readline().startswith("ready")
        yield child
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, 9)
        child.communicate()


def attach(
    folder: Path, *words: str | int, python: str = sys.executable, **environment: str
) -> subprocess.CompletedProcess[str]:
    """``whyidle attach WORDS`` in ``folder``."""
    return subprocess.run(
        [python, "-m", "whyidle", "attach", *map(str, words)],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def diagnosis(ran: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The JSON on stdout of a run that must have succeeded."""
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found
