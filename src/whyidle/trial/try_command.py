"""``whyidle try``: its options, and what happens when it runs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from whyidle.trial import command as prove

if TYPE_CHECKING:
    from whyidle.diagnosis import Diagnosis
    from whyidle.trial.try_course import Wishes
    from whyidle.trial.try_record import Trial

FORMATS = ("terminal", "json", "markdown")

USAGE = "Write: whyidle try [OPTIONS] -- CMD..."

DESCRIPTION = (
    "Try remedies on a training command at run time, without touching its source: short runs with "
    "and without each remedy in turn, how many times faster it makes the job, with an interval, "
    "and whether its loss stayed the same. Exit 0 when the trial ran, whatever it found; 2: usage, "
    "or a command that fails by itself."
)


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``try`` to its parser."""
    parser.usage = "whyidle try [OPTIONS] -- CMD..."
    parser.add_argument(
        "--remedies",
        metavar="A,B=VALUE,...",
        help="only these, also those not tried by default (see --list)",
    )
    parser.add_argument("--list", action="store_true", help="print all remedies, then stop")
    parser.add_argument(
        "--from",
        dest="diagnosis",
        metavar="DIAGNOSIS",
        help="only remedies that answer what this saved diagnosis, bundle or trace shows",
    )
    _add_runs(parser)
    seeds = parser.add_mutually_exclusive_group()
    seeds.add_argument(
        "--seed",
        type=prove._whole,
        default=0,
        metavar="N",
        help="seed random numbers with N as torch is imported (default 0)",
    )
    seeds.add_argument("--no-seed", action="store_true", help="leave seeds to the job")
    parser.add_argument("--format", choices=FORMATS, help="what stdout gets (default terminal)")
    parser.add_argument(
        "-o", "--output", metavar="FILE.json", help="also write the trial to FILE.json"
    )
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- CMD", help="the training command"
    )


def _add_runs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--pairs",
        type=prove._at_least_two,
        default=5,
        metavar="N",
        help="how often each remedy runs at most, 2 or more (default 5)",
    )
    parser.add_argument(
        "--steps",
        type=prove._positive,
        metavar="N",
        help="end each run after N steps (default: so many that a run takes some seconds)",
    )
    parser.add_argument(
        "--warm-up",
        type=prove._whole,
        default=3,
        metavar="N",
        help="steps at the start that are not counted (default 3; half of the steps at most)",
    )
    parser.add_argument(
        "--loss-tolerance",
        type=prove._share,
        default=0.02,
        metavar="SHARE",
        help="how much the loss may differ, as a share of it (default 0.02)",
    )
    parser.add_argument(
        "--timeout",
        type=prove._seconds,
        metavar="S",
        help="end a run after S seconds, as failed (default: a minute and ten times the first run)",
    )
    parser.add_argument(
        "--budget", type=prove._seconds, metavar="S", help="start no run after S seconds"
    )


def run(options: argparse.Namespace) -> int:
    """Run the trial, tell what it gave, and return the exit code."""
    from whyidle.reports import write_stdout

    if options.list:
        from whyidle.trial.try_list import listed

        write_stdout(listed())
        return 0
    from whyidle.trial.child import terminated_like_interrupted
    from whyidle.trial.try_course import Course
    from whyidle.trial.try_showing import TryBar

    wishes = _wishes(options)
    quiet = bool(getattr(options, "quiet", False))
    course = Course(wishes)
    try:
        with terminated_like_interrupted(), TryBar(quiet=quiet) as bar:
            course.run(bar)
    except KeyboardInterrupt:
        if course.begun:
            course.settle()
            _deliver(course.trial("Interrupted: this is what was known by then."), options, quiet)
        raise
    _deliver(course.trial(), options, quiet)
    return 0


def _wishes(options: argparse.Namespace) -> Wishes:
    import shutil

    from whyidle.errors import UsageError
    from whyidle.reports import check_output
    from whyidle.trial.try_choosing import parsed
    from whyidle.trial.try_course import Wishes

    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        raise UsageError(f"The command is missing.\n{USAGE}")
    if shutil.which(command[0]) is None:
        raise UsageError(
            f"{command[0]}: no such command, or not executable.\n"
            "Check its spelling; a script needs its interpreter before it: python train.py"
        )
    if options.output is not None:
        if not options.output.lower().endswith(".json"):
            raise UsageError(
                f"-o {options.output}: a trial is JSON.\nGive a name that ends in .json."
            )
        check_output(options.output, ())
    return Wishes(
        command=command,
        asked=None if options.remedies is None else parsed(options.remedies),
        diagnosis=None if options.diagnosis is None else _diagnosis(options.diagnosis),
        pairs=options.pairs,
        steps=options.steps,
        warm_up=options.warm_up,
        tolerance=options.loss_tolerance,
        timeout_s=options.timeout,
        budget_s=options.budget,
        seed=None if options.no_seed else options.seed,
    )


def _diagnosis(path: str) -> Diagnosis:
    """A saved diagnosis, or one made of a bundle or a trace."""
    from pathlib import Path

    from whyidle import reports
    from whyidle.errors import EvidenceError

    if Path(path).is_file():
        try:
            return reports.saved(path)
        except EvidenceError:
            if path.lower().endswith(".md"):
                raise
    from whyidle.executor import diagnose_files

    return diagnose_files([path])


def _deliver(trial: Trial, options: argparse.Namespace, quiet: bool) -> None:
    import sys
    from pathlib import Path

    from whyidle.reports import columns, say, write_file, write_stdout
    from whyidle.trial.try_telling import drawn

    if options.output is not None:
        write_file(Path(options.output), trial.to_json())
        if not quiet:
            say(f"wrote {options.output}")
    write_stdout(drawn(trial, options.format or "terminal", columns(sys.stdout.isatty())))
