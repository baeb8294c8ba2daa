"""``whyidle data tune``: its arguments, and where its report goes."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from whyidle.data.tune_record import Tune

DESCRIPTION = (
    "Find the best settings of a data loader. SPEC is what `whyidle data probe` takes. The probe "
    "predicts the rate of every number of workers; the few settings that could be best are then "
    "tried, in turn and each in a fresh process. Nothing is tried or advised that could run out of "
    "memory, shared memory or open files. More workers are advised only for more than 3 %."
)
FORMATS = ("terminal", "json", "markdown")
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
         "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}  # fmt: skip


def add_tune(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``whyidle data tune``."""
    from whyidle.data.probe_command import _positive, _whole

    parser.description = DESCRIPTION
    parser.set_defaults(act=run)
    parser.add_argument(
        "spec", metavar="SPEC", help="module:factory, file.py:factory, or a folder of images"
    )
    parser.add_argument(
        "--step-ms", type=_positive, metavar="T",
        help="what a training step takes when its batch is there: a loader need not be faster",
    )  # fmt: skip
    parser.add_argument(
        "--batch-size", type=_whole, metavar="N",
        help="samples in a batch (default: the loader's own, else 64)",
    )  # fmt: skip
    parser.add_argument(
        "--trials", type=_whole, metavar="N", default=4,
        help="settings to try (default: 4); each runs two or three times for about 2 s",
    )  # fmt: skip
    parser.add_argument(
        "--max-workers", type=_whole, metavar="N", help="never try or advise more workers"
    )
    parser.add_argument(
        "--memory-limit", type=memory, metavar="BYTES",
        help="memory that all processes may use together, such as 8G (default: what is free)",
    )  # fmt: skip
    parser.add_argument(
        "--fix", metavar="FILE.py", help="print a diff of this script with the settings instead"
    )
    parser.add_argument(
        "--format", choices=FORMATS,
        help="default: by the suffix of -o, else terminal (plain text in a pipe or a file)",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", action="append", default=[], metavar="FILE",
        help="write to FILE instead of stdout; may be repeated, each suffix picks its format",
    )  # fmt: skip


def memory(text: str) -> int:
    """Bytes of such as 512M, 8G or 8GiB."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", text.strip().lower())
    if not found or found[2] not in UNITS or float(found[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of bytes; write 512M or 8G")
    return int(float(found[1]) * UNITS[found[2]])


def run(options: argparse.Namespace) -> int:
    """Tune, and write the reports or the diff."""
    from whyidle import reports
    from whyidle.data import tune
    from whyidle.data.probe_command import _status

    inputs = [options.spec, *([options.fix] if options.fix else [])]
    planned = reports.planned(options.format, options.output, inputs, FORMATS)
    quiet = getattr(options, "quiet", False)
    if options.fix:
        _check_fix(options.fix)
    with _status(quiet=quiet) as show:
        found = tune.tune(
            options.spec,
            step_s=None if options.step_ms is None else options.step_ms / 1e3,
            batch_size=options.batch_size,
            trials=options.trials,
            most_workers=options.max_workers,
            memory=options.memory_limit,
            show=show,
        )
    if options.fix:
        return _fix(options, found, quiet)
    reports.deliver_text(lambda format, _: text_of(found, format), planned, quiet=quiet)
    return 0


def text_of(found: Tune, format: str) -> str:
    """The record in one of FORMATS."""
    from whyidle.data import tune_text

    if format == "json":
        return found.to_json()
    return tune_text.markdown(found) if format == "markdown" else tune_text.terminal(found)


def _check_fix(path: str) -> None:
    """Say what is missing before half a minute of trials, not after it."""
    import os

    from whyidle.errors import NotFound, UsageError

    if not os.path.isfile(path):
        raise NotFound(path)
    try:
        import libcst  # noqa: F401
    except ModuleNotFoundError as error:
        raise UsageError(
            "Changing source needs LibCST, which is not installed.\n"
            "Install it with: pip install 'whyidle[fix]'"
        ) from error


def _fix(options: argparse.Namespace, found: Tune, quiet: bool) -> int:
    from whyidle import reports
    from whyidle.data import tune_fix

    diff, alone = tune_fix.diff(options.fix, found.chosen, options.spec)
    if not quiet:
        reports.say(found.code)
        for line in alone:
            reports.say(line)
    if not diff:
        reports.say("nothing to change")
    for path in options.output:
        reports.write_file(__import__("pathlib").Path(path), text_of(found, "json"))
    reports.write_stdout(diff)
    return 0
