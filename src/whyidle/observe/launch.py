"""Start a command with the hook in its environment, pass signals on, and wait for it.

The command's standard input, output and error are the terminal's own: nothing lies between. It
runs in our process group, so Ctrl-C reaches it as it would without us, and we wait for it.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from whyidle import __version__
from whyidle.diagnosis import write_whole
from whyidle.errors import OutputError, UsageError
from whyidle.observe.readings import Beside, Cost, readings

SCHEMA = "whyidle.bundle/1"
MANIFEST = "bundle.json"
HOOK = Path(__file__).parents[1] / "record" / "hook"
PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
OURS = ("_RJEM_MALLOC_CONF", "narenas:1")
"""How whyidle's own memory is kept, which its command line sets; none of the job's business."""

SILENT = ("KINETO_LOG_LEVEL", "99")
"""The profiler of PyTorch tells stderr when it starts and stops; the job's output stays its own."""


class Manifest(msgspec.Struct):
    """``bundle.json``. Instants are Unix nanoseconds; null where the job has not ended."""

    schema: str
    whyidle: str
    command: list[str]
    cwd: str
    host: str
    started_ns: int
    options: dict[str, Any]
    ended_ns: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    readings_cpu_s: float | None = None


@dataclass(frozen=True)
class Outcome:
    """How the command ended. ``code`` is what a shell would say: 128+n after signal n."""

    code: int
    signal: int | None
    wall_s: float


def environment(bundle: Path, options: Mapping[str, Any]) -> dict[str, str]:
    """The variables of this process and those that let the hook into a child and its children."""
    found = dict(os.environ)
    if found.get(OURS[0]) == OURS[1]:
        del found[OURS[0]]
    others = [path for path in found.get("PYTHONPATH", "").split(os.pathsep) if path]
    found["PYTHONPATH"] = os.pathsep.join([str(HOOK), *others])
    found["WHYIDLE_BUNDLE"] = str(bundle.absolute())
    found["WHYIDLE_OPTIONS"] = msgspec.json.encode(dict(options)).decode()
    found.setdefault(*SILENT)
    return found


def new_bundle(asked: str | None) -> Path:
    """The folder to record into: new, or empty; what lies in another one is never touched."""
    if asked is None:
        stem = time.strftime("whyidle-%Y%m%d-%H%M%S")
        names = (stem, *(f"{stem}-{n}" for n in range(2, 1000)))
        path = next(Path(name) for name in names if not Path(name).exists())
    else:
        path = Path(asked)
    try:
        path.mkdir(parents=True, exist_ok=True)
        held = next(iter(os.scandir(path)), None)
    except OSError as error:
        raise OutputError(
            f"{path}: cannot be made: {error.strerror or error}.\nName another folder with -o."
        ) from error
    if held is not None:
        raise OutputError(
            f"{path}: holds {held.name} already, and nothing of yours is overwritten.\n"
            "Name a new folder with -o."
        )
    return path


def observed(
    command: Sequence[str],
    bundle: Path,
    options: Mapping[str, Any],
    beside: Beside | None = None,
) -> Outcome:
    """Run the command under observation and write the manifest, before and after.

    ``beside`` is called at each reading of the machine.

    Raises UsageError when the command cannot be started at all.
    """
    manifest = Manifest(
        schema=SCHEMA,
        whyidle=__version__,
        command=[_unicode(word) for word in command],
        cwd=_folder(),
        host=socket.gethostname(),
        started_ns=time.time_ns(),
        options=dict(options),
    )
    _write(bundle, manifest)
    (bundle / "samples").mkdir(exist_ok=True)
    begin_s = time.monotonic()
    code, cost = _run(command, bundle, environment(bundle, options), beside)
    wall_s = time.monotonic() - begin_s
    by_signal = -code if code < 0 else None
    outcome = Outcome(128 - code if code < 0 else code, by_signal, wall_s)
    manifest.ended_ns = manifest.started_ns + round(wall_s * 1e9)
    manifest.exit_code, manifest.signal = outcome.code, by_signal
    manifest.readings_cpu_s = round(cost.cpu_s, 6)
    with suppress(OSError, OutputError):  # a full disk: the job has ended all the same
        _write(bundle, manifest)
    return outcome


def _unicode(text: str) -> str:
    """Without what an argument or a path may hold beside Unicode."""
    return text.encode(errors="backslashreplace").decode()


def _folder() -> str:
    try:
        return _unicode(os.getcwd())
    except OSError:  # it is deleted
        return ""


def _write(bundle: Path, manifest: Manifest) -> None:
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=2).decode()
    write_whole(bundle / MANIFEST, text + "\n")


def _run(
    command: Sequence[str], bundle: Path, environment: Mapping[str, str], beside: Beside | None
) -> tuple[int, Cost]:
    """The exit code as subprocess gives it (-n after signal n), and what the readings cost."""
    try:
        child = subprocess.Popen(list(command), env=dict(environment))
    except OSError as error:
        raise UsageError(
            f"{shlex.join(command)[:300]}: cannot be started: {error.strerror or error}.\n"
            "Give the command as you would type it: whyidle run -- python train.py"
        ) from error
    with _signals_passed_to(child), readings(bundle, child.pid, beside) as cost:
        while True:
            try:
                return child.wait(), cost
            except KeyboardInterrupt:
                continue  # the terminal has sent it to the job as well; wait for the job's end


@contextmanager
def _signals_passed_to(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """While the child runs, signals that were meant for us go to it."""

    def pass_on(number: int, _: object) -> None:
        child.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in PASSED_ON}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
