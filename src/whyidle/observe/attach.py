"""``whyidle attach``: watch a training job that already runs, from outside; say why it idles."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whyidle.errors import UsageError

if TYPE_CHECKING:
    from whyidle.diagnosis import Diagnosis
    from whyidle.observe.attach_job import Watched
    from whyidle.observe.attach_stacks import Recorder, Stacks
    from whyidle.observe.attach_tree import Member
    from whyidle.observe.attach_usage import Watch

DESCRIPTION = (
    "Watch a training job that is already running, from outside: its processes in /proc, its "
    "Python stacks (with py-spy), its GPUs (with nvidia-smi). Nothing in the job is changed or "
    "started anew. Ends after --seconds, with the job, or at Ctrl-C, and then says where the "
    "training threads spent their time, and what could not be seen."
)
DEFAULT_S = 30.0
LONGEST_S = 3600.0
LOOK_S = 0.2


def add(parser: argparse.ArgumentParser, formats: Collection[str]) -> None:
    """The arguments of ``whyidle attach``."""
    parser.add_argument(
        "pid", metavar="PID", type=_pid, help="the training process, or its launcher"
    )
    parser.add_argument(
        "--seconds",
        type=_seconds,
        default=DEFAULT_S,
        metavar="S",
        help=f"watch for so long (default: {DEFAULT_S:g}, at most {LONGEST_S:g})",
    )
    parser.add_argument(
        "--pause",
        action="store_true",
        help="hold each process while its stack is read: exact stacks, at some cost to the job",
    )
    parser.add_argument(
        "-o", "--output", metavar="DIR", help="keep what was read, in a new folder (default: no)"
    )
    parser.add_argument("--format", choices=formats, help="of the report on stdout")
    parser.add_argument(
        "--report",
        action="append",
        default=[],
        metavar="FILE",
        help="write the report to FILE instead of stdout; may be repeated, each suffix picks its "
        "format (.html, .json, .md, .txt)",
    )
    parser.add_argument(
        "--fail-on",
        action="append",
        default=[],
        metavar="LIMIT",
        help="exit 1 when more than this share is lost, as in diagnose",
    )


def _pid(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 1 << 31:
        raise argparse.ArgumentTypeError(f"{text!r} is not the number of a process")
    return int(text)


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 1 <= found <= LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {LONGEST_S:g}")
    return found


def run(options: argparse.Namespace, causes: Collection[str]) -> bool:
    """Watch, report, and say whether a limit of --fail-on was exceeded."""
    import tempfile

    from whyidle import gate, reports
    from whyidle.observe import attach_tree, attach_words
    from whyidle.observe.launch import new_bundle

    quiet = getattr(options, "quiet", False)
    if options.report and options.format and len(options.report) > 1:
        raise UsageError("--format with several --report: each suffix tells its format already.")
    planned = reports.planned(options.format, options.report)
    limits = gate.parse_limits(options.fail_on, causes) if options.fail_on else []
    members = attach_tree.checked(options.pid)
    if options.pid == os.getpid():
        raise UsageError(f"Process {options.pid} is whyidle itself.")
    with ExitStack() as stack:
        if options.output is None:
            made = stack.enter_context(tempfile.TemporaryDirectory(prefix="whyidle-attach-"))
            folder = Path(made)
        else:
            folder = new_bundle(options.output)
        watched, diagnosis = observed(
            members, folder, options.seconds, pause=options.pause, quiet=quiet
        )
        if options.output is not None:
            diagnosis.save(folder / "diagnosis.json")
    if not quiet:
        for line in attach_words.told(watched):
            reports.say(line)
        if options.output is not None:
            reports.say(f"kept in {folder}; again: whyidle render {folder / 'diagnosis.json'}")
    reports.deliver(diagnosis, planned, quiet=quiet)
    above = gate.exceeded(diagnosis, limits)
    for sentence in above:
        reports.say(sentence)
    gate.check_judged(diagnosis, limits, causes if limits else ())
    return bool(above)


def observed(
    members: list[Member], folder: Path, seconds: float, *, pause: bool, quiet: bool
) -> tuple[Watched, Diagnosis]:
    """Watch the job for so long and judge what was seen; files are written into ``folder``."""
    from whyidle.observe import attach_bundle, attach_gpus
    from whyidle.observe.attach_job import Watched, trainers_of
    from whyidle.observe.attach_judged import judged
    from whyidle.observe.attach_late import with_late_ranks
    from whyidle.observe.attach_limits import limits
    from whyidle.observe.attach_stacks import Recorder
    from whyidle.observe.attach_usage import Watch
    from whyidle.observe.gpus import FILE, gpu_readings

    root = members[0]
    recorder = Recorder(members, seconds, folder / "stacks", pause=pause)
    own = os.times()
    with attach_bundle.rows(folder) as on_row:
        watch = Watch(root.pid, members)
        before = {member.pid: limits(member.pid) for member in members if member.python}
        start_ns = time.time_ns()
        with gpu_readings(folder):
            recording = recorder.start()
            watch.start(on_row)
            with _bar(seconds, quiet=quiet) as show:
                _wait(seconds, watch, recorder if recording else None, show)
            after = {pid: limits(pid) for pid in before if not watch.gone}
            on = attach_gpus.processes_on_gpus()
            watch.stop()
            stacks: Stacks = recorder.stop()
    end_ns = time.time_ns()
    spent = os.times()
    trainers, roles = trainers_of(watch.usages, stacks)
    trainers = with_late_ranks(trainers)
    watched = Watched(
        root, start_ns, end_ns, watch.usages, roles, trainers, stacks, before, after,
        sum(spent[:4]) - sum(own[:4]), watch.gone,
    )  # fmt: skip
    gpus = attach_gpus.gpus_read(folder / "samples" / FILE, (start_ns + end_ns) // 2)
    attach_bundle.write(folder, watched, seconds)
    return watched, judged(watched, gpus, on)


def _wait(seconds: float, watch: Watch, recorder: Recorder | None, show: Any) -> None:
    """Until the time is up, the job has ended, or Ctrl-C."""
    begin_s = time.monotonic()
    try:
        while (gone_s := time.monotonic() - begin_s) < seconds:
            if watch.gone:
                return
            show(gone_s)
            time.sleep(min(LOOK_S, max(seconds - gone_s, 0.001)))
    except KeyboardInterrupt:
        return


@contextmanager
def _bar(seconds: float, *, quiet: bool) -> Iterator[Any]:
    """A bar on stderr while a person watches; called with the seconds that have gone by."""
    from whyidle.progress import watched

    if quiet or not watched():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("watching; Ctrl-C ends it"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as progress:
        task = progress.add_task("", total=seconds)
        yield lambda done: progress.update(task, completed=done)
