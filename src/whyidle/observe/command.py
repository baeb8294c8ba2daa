"""``whyidle run``: observe a real training command without changing it, then diagnose it."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from whyidle import gpu_peaks
from whyidle.errors import UsageError

if TYPE_CHECKING:
    from whyidle.diagnosis import Diagnosis
    from whyidle.gate import Limit
    from whyidle.observe.events import Process
    from whyidle.observe.launch import Outcome
    from whyidle.reports import Report

EARLIEST = 2
"""The first step that can be profiled: step 0 finds the steps, step 1 warms the profiler up."""


@dataclass(frozen=True)
class Observed:
    """A job that has ended: where it is recorded, how it ended, and what was asked of it."""

    bundle: Path
    outcome: Outcome
    planned: Sequence[Report]
    limits: Sequence[Limit]


def add(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``whyidle run``, but for --steps, which the command line adds."""
    parser.add_argument(
        "-o", "--output", metavar="DIR", help="the bundle: a new folder (default: whyidle-DATE)"
    )
    parser.add_argument(
        "--report",
        action="append",
        default=[],
        metavar="FILE",
        help="write the report to FILE instead of stderr; may be repeated, each suffix picks its "
        "format (.html, .json, .md, .txt)",
    )
    parser.add_argument(
        "--every",
        type=_whole,
        metavar="N",
        help="profile a few steps again every N steps (default: once)",
    )
    parser.add_argument(
        "--no-stacks", action="store_true", help="profile without Python stacks, which is cheaper"
    )
    parser.add_argument(
        "--no-profile", action="store_true", help="time steps and waits only; nothing is profiled"
    )
    parser.add_argument(
        "--hang",
        type=_seconds,
        metavar="SECONDS",
        help="say where the job stands when no step ended for so long (default: a minute, or 20 "
        "times the median step where that is longer)",
    )
    parser.add_argument(
        "--fail-on",
        action="append",
        default=[],
        metavar="LIMIT",
        help="exit 1 when more than this share is lost, as in diagnose; speaks only when the job "
        "itself exited 0",
    )
    parser.add_argument("--gpu", type=gpu_peaks.named, metavar="NAME", help=gpu_peaks.HELP)
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- CMD", help="the training command"
    )


def _whole(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return found


def observe(options: argparse.Namespace, causes: Collection[str]) -> Observed:
    """Check the arguments, then run the job to its end under observation."""
    from whyidle import gate, reports
    from whyidle.observe import progress
    from whyidle.observe.launch import new_bundle, observed

    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        raise UsageError(
            "No command was given.\nWrite it after two dashes: whyidle run -- python train.py"
        )
    planned = reports.planned(None, options.report) if options.report else []
    limits = gate.parse_limits(options.fail_on, causes) if options.fail_on else []
    bundle = new_bundle(options.output)
    quiet = getattr(options, "quiet", False)
    if not quiet:
        reports.say(f"observing {command[0]} into {bundle}")
    beside = progress.Progress(bundle) if progress.wanted(quiet=quiet) else None
    outcome = observed(command, bundle, hook_options(options), beside)
    return Observed(bundle, outcome, planned, limits)


def report(options: argparse.Namespace, of: Observed, causes: Collection[str]) -> bool:
    """Tell and diagnose what was observed; whether a limit was exceeded, False if the job failed.

    Raises UsageError for a limit that cannot be judged.
    """
    from whyidle import gate, reports
    from whyidle.ceiling import said_of

    quiet = getattr(options, "quiet", False)
    diagnosis = _told(of.bundle, of.outcome, options)
    if diagnosis is not None:
        if of.planned:
            reports.deliver(diagnosis, of.planned, quiet=quiet)
        else:
            drawn = reports.text_of(diagnosis, "terminal", on_terminal=sys.stderr.isatty())
            sys.stderr.write(drawn)
        if not quiet:
            reports.say(f"again, or in another format: whyidle diagnose {of.bundle}")
    if getattr(options, "gpu", None) is not None:
        for line in said_of([str(of.bundle)], options.gpu):
            reports.say(line)
    if of.outcome.code or not of.limits:
        return False
    if diagnosis is None:
        raise UsageError("The limits of --fail-on cannot be judged: no step was timed.")
    above = gate.exceeded(diagnosis, of.limits)
    for sentence in above:
        reports.say(sentence)
    gate.check_judged(diagnosis, of.limits, causes)
    return bool(above)


def hook_options(options: argparse.Namespace) -> dict[str, object]:
    """What the hook is told, as its own docstring describes."""
    first, end = options.steps or (None, None)
    windows: dict[str, int | None] = {"every": options.every}
    if options.steps is not None:
        windows["first"] = begin = max(first or 0, EARLIEST)
        if end is not None:
            windows["length"] = max(end - begin, 1)
    return {
        "windows": windows,
        "stacks": not options.no_stacks,
        "profile": not options.no_profile,
        "hang": getattr(options, "hang", None),
    }


def _told(bundle: Path, outcome: Outcome, options: argparse.Namespace) -> Diagnosis | None:
    """Tell the whole run on stderr; its diagnosis, None where nothing could be judged."""
    from whyidle import reports
    from whyidle.observe import events, story

    found: list[Process] = events.processes(bundle)
    for line in story.told(found, outcome):
        reports.say(line)
    if not any((bundle / "windows").glob("*.json.gz")):
        for line in story.without_profile(found, hook_options(options)):
            reports.say(line)
    from whyidle.errors import NothingRecorded
    from whyidle.executor import diagnose_files

    try:
        diagnosis = diagnose_files([bundle])
    except NothingRecorded:
        return None
    return diagnosis if diagnosis.devices or diagnosis.job else None
