"""One run of a user's command: its output kept, its time taken, and its processes ended with it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from whyidle.errors import UsageError

GRACE_S = 10.0
"""Seconds that processes get to end by themselves before they are killed."""

TAIL_LINES = 15

_TAIL_BYTES = 2**16


@dataclass(frozen=True)
class Ended:
    """How a run ended: ``exit_code`` is 128 + n after signal n, None when it ran out of time."""

    exit_code: int | None
    wall_s: float

    @property
    def well(self) -> bool:
        """Whether it ended with exit code 0."""
        return self.exit_code == 0


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    output: Path,
    timeout_s: float | None = None,
    folder: Path | None = None,
) -> Ended:
    """Run ``command`` to its end, or for ``timeout_s``; stdout and stderr go to ``output``.

    It runs in ``folder``, None for the current one, and has no stdin. It leads a process group of
    its own, which ends with it, and which is ended when the caller is interrupted.
    """
    with output.open("wb") as stream:
        started_s = time.perf_counter()
        try:
            process = subprocess.Popen(
                command,
                env=dict(environment),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise UsageError(
                f"{command[0]}: cannot be started ({error.strerror or error}).\n"
                "Check the command; a script without a #! line needs its interpreter before it."
            ) from error
        try:
            in_time = _wait(process, timeout_s)
            wall_s = time.perf_counter() - started_s
            if not in_time:
                _end(process, signal.SIGTERM)
                return Ended(None, wall_s)
        except BaseException:
            _end(process, signal.SIGINT)
            raise
    _signal_group(process, signal.SIGTERM)
    code = process.returncode
    return Ended(code if code >= 0 else 128 - code, wall_s)


def _wait(process: subprocess.Popen[bytes], timeout_s: float | None) -> bool:
    """Wait for the end, without the pauses of polling; False when time is up first."""
    if timeout_s is None:
        process.wait()
        return True
    try:
        descriptor = os.pidfd_open(process.pid)
    except (OSError, AttributeError):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout_s)
        return process.returncode is not None
    try:
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN)
        if not waiting.poll(timeout_s * 1000):
            return False
    finally:
        os.close(descriptor)
    process.wait()
    return True


def _end(process: subprocess.Popen[bytes], first: signal.Signals) -> None:
    """Ask the whole group to end with ``first``; kill what has not after GRACE_S."""
    _signal_group(process, first)
    with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
        process.wait(GRACE_S)
    _signal_group(process, signal.SIGKILL)
    process.wait()


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def tail(output: Path, lines: int = TAIL_LINES) -> str:
    """The last ``lines`` of a run's output."""
    with output.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - _TAIL_BYTES))
        text = stream.read().decode("utf-8", "replace")
    return "\n".join(text.rstrip().splitlines()[-lines:])


@contextlib.contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Within it, SIGTERM raises KeyboardInterrupt, so that no run outlives a cancelled CI job."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        earlier = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread, where nobody may set handlers
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, earlier or signal.SIG_DFL)
