"""``whyidle data probe``: its arguments, and where its report goes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from whyidle.errors import UsageError

if TYPE_CHECKING:
    from whyidle.data.probe_record import Probe

DESCRIPTION = (
    "Find which stage of loading is the limit. SPEC is module:factory or file.py:factory (which "
    "gives a Dataset or DataLoader), a folder of images, a packed data set, or a bundle of "
    "`whyidle run`. Each stage is timed, a short run without workers and with one is measured, and "
    "the rates of other numbers of workers are predicted. The data set is used in a process of its "
    "own and left as it is."
)
FORMATS = ("terminal", "json", "markdown")
LONGEST_S = 600.0


def add_probe(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``whyidle data probe``."""
    parser.description = DESCRIPTION
    parser.set_defaults(act=run)
    parser.add_argument(
        "spec", nargs="?", metavar="SPEC",
        help="module:factory, file.py:factory, a folder of images, or a bundle",
    )  # fmt: skip
    parser.add_argument(
        "--pid", type=int, metavar="PID",
        help="watch the loader of a job that already runs instead, as `whyidle attach PID` does",
    )  # fmt: skip
    parser.add_argument(
        "--step-ms", type=_positive, metavar="T",
        help="what a training step takes when its batch is there: says how busy the GPU can be",
    )  # fmt: skip
    parser.add_argument(
        "--batch-size", type=_whole, metavar="N",
        help="samples in a batch (default: the loader's own, else 64)",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=_seconds, metavar="S",
        help="about how long to measure (default: 8; with --pid 30)",
    )  # fmt: skip
    parser.add_argument(
        "--format", choices=FORMATS,
        help="default: by the suffix of -o, else terminal (plain text in a pipe or a file)",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", action="append", default=[], metavar="FILE",
        help="write to FILE instead of stdout; may be repeated, each suffix picks its format",
    )  # fmt: skip


def _positive(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return found


def _seconds(text: str) -> float:
    found = _positive(text)
    if not 0.5 <= found <= LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0.5 to {LONGEST_S:g}")
    return found


def _whole(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 1 << 31:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def run(options: argparse.Namespace) -> int:
    """Probe, and write the reports; 0 also when there are findings."""
    from whyidle import reports

    if (options.spec is None) == (options.pid is None):
        raise UsageError(
            "Give one of SPEC and --pid.\nFor example: whyidle data probe train.py:make_dataset"
        )
    if options.pid is not None:
        from whyidle.data import live

        return live.run(options)
    from whyidle.data import probe

    inputs = (options.spec,)
    planned = reports.planned(options.format, options.output, inputs, FORMATS)
    quiet = getattr(options, "quiet", False)
    with _status(quiet=quiet) as show:
        found = probe.probe(
            options.spec,
            step_s=None if options.step_ms is None else options.step_ms / 1e3,
            batch_size=options.batch_size,
            seconds=options.seconds or probe.SECONDS,
            show=show,
        )
    reports.deliver_text(lambda format, tty: text_of(found, format, tty), planned, quiet=quiet)
    return 0


def text_of(found: Probe, format: str, on_terminal: bool) -> str:
    """The record in one of FORMATS."""
    from whyidle import reports
    from whyidle.data import probe_text

    if format == "json":
        return found.to_json()
    if format == "markdown":
        return probe_text.markdown(found)
    return probe_text.terminal(found, reports.columns(on_terminal))


@contextmanager
def _status(*, quiet: bool) -> Iterator[Any]:
    """A line on stderr, while a person watches, that names the part being measured."""
    from whyidle.progress import watched

    if quiet or not watched():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(file=sys.stderr).status("starting") as status:
        yield lambda name: status.update(f"measuring: {name}")
