"""The command line: parse, call, render.

Exit codes: 0 fine, 1 findings above the user's limit, 2 bad input or usage, 3 our bug, 130 after
Ctrl-C. A user's error is one to three lines on stderr; ``--debug`` adds the traceback. Nothing
heavy is imported before a verb runs, so that ``--help`` is instant.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from whyidle import __version__
from whyidle.errors import UsageError, WhyidleError

FINE, ABOVE_LIMIT, USAGE, BUG, INTERRUPTED = 0, 1, 2, 3, 130

SUMMARY = (
    "Why is the GPU idle? Reads what was recorded of a job and says where every second of GPU time "
    "went, why, what to change, and what that would gain."
)
EPILOG = (
    "Start with: whyidle diagnose trace.json.gz. Exit codes: 0 fine, 1 a limit of --fail-on was "
    "exceeded, 2 input or usage that cannot be judged, 3 a fault of whyidle."
)

REPORT_FORMATS = ("terminal", "json", "markdown", "html")
PAGE_FORMATS = ("terminal", "json", "markdown")
ENV_FORMATS = ("terminal", "json")

Verb = Callable[[argparse.Namespace], int]


ONE_ARENA = ("_RJEM_MALLOC_CONF", "narenas:1")
"""Polars' allocator keeps freed memory per arena. One arena, set before Polars loads, keeps 5 %
less of it on a large trace and costs no time."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; ``arguments`` default to the process's own."""
    _speak_utf8()
    os.environ.setdefault(*ONE_ARENA)
    options = argparse.Namespace()
    try:
        given = sys.argv[1:] if arguments is None else arguments
        wanted = next((word for word in given if not word.startswith("-")), "")
        build_parser(wanted).parse_args(arguments, options)
        verb: Verb = options.act
        return verb(options)
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else FINE
    except BaseException as error:  # noqa: BLE001  a panic in native code is no Exception
        return _failed(error, debug=getattr(options, "debug", False))


def _failed(error: BaseException, *, debug: bool) -> int:
    from whyidle.reports import say

    if debug:
        import traceback

        traceback.print_exception(error)
    if isinstance(error, WhyidleError):
        say(str(error))
        return USAGE
    told = " ".join(f"{type(error).__name__}: {error}".split())
    say(
        f"internal error, {told[:300]}\n"
        "This is our bug: please report this with the command and `whyidle --version`"
        f"{'' if debug else ' (--debug shows the traceback)'}."
    )
    return BUG


class _Parser(argparse.ArgumentParser):
    """argparse whose errors are two lines: what is wrong, and where to look."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"whyidle: {message}\n`{self.prog} --help` shows what there is.\n")


def build_parser(wanted: str | None = None) -> argparse.ArgumentParser:
    """The whole command line; the reference page is generated from it.

    With the name of a verb only that one gets its arguments, which is quicker: others are listed.
    """
    common = _Parser(add_help=False, argument_default=argparse.SUPPRESS)
    common.add_argument(
        "-q", "--quiet", action="store_true", help="no progress bar and no notes on stderr"
    )
    common.add_argument(
        "--debug", action="store_true", help="show the traceback behind an error message"
    )
    parser = _Parser(
        prog="whyidle",
        description=SUMMARY,
        epilog=EPILOG,
        parents=[common],
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"whyidle {__version__}")
    verbs: argparse._SubParsersAction[_Parser] = parser.add_subparsers(
        title="verbs", metavar="VERB", required=True
    )

    for name, (help, add) in VERBS.items():
        added = verbs.add_parser(name, help=help, parents=[common], allow_abbrev=False)
        if wanted in (None, name):
            add(added)
    return parser


def _add_diagnose(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Read the evidence of one run (profiler traces, exports, dumps, readings) and say where "
        "every second of GPU time went, why, what to do, and what that would gain. Several paths, "
        "or a folder, are the ranks of one job."
    )
    parser.set_defaults(act=_diagnose)
    from whyidle import gpu_peaks

    parser.add_argument("paths", nargs="+", metavar="PATH", help="a trace, or a folder of them")
    _add_output(parser, REPORT_FORMATS)
    parser.add_argument(
        "--fail-on",
        action="append",
        default=[],
        metavar="LIMIT",
        help="exit 1 when more than this share of the recorded time is lost: 'lost>30%%', "
        "'data_loading>10%%', 'data_loading.loader_workers_too_few>5%%'; may be repeated",
    )
    parser.add_argument(
        "--steps",
        type=steps_of,
        metavar="A:B",
        help="judge the steps from A up to, not including, B, as numbered in ProfilerStep#N; "
        "either side may be left out",
    )
    parser.add_argument("--gpu", type=gpu_peaks.named, metavar="NAME", help=gpu_peaks.HELP)
    parser.add_argument(
        "--jobs",
        type=positive,
        metavar="N",
        help="processes that judge the ranks of a large job (default: one per CPU, where it pays)",
    )
    parser.add_argument(
        "--on",
        metavar="ENGINE",
        help="judge the ranks on a cluster instead: tcp://HOST:PORT (Dask), ray://HOST:PORT or "
        "auto (Ray); dask or ray start one on this machine",
    )


def _add_run(parser: argparse.ArgumentParser) -> None:
    from whyidle.observe import command

    parser.description = (
        "Run a training command as it is, time its steps and what they wait for, profile a few of "
        "them, and say why the GPU (or the CPU, where there is none) idles. The job's output is "
        "untouched and its exit code is passed on."
    )
    parser.set_defaults(act=_run)
    parser.add_argument(
        "--steps",
        type=steps_of,
        metavar="A:B",
        help="profile the steps from A up to, not including, B, counted from 0 and from 2 on "
        "(default: 10:14)",
    )
    command.add(parser)


def _add_attach(parser: argparse.ArgumentParser) -> None:
    from whyidle.observe import attach

    parser.description = attach.DESCRIPTION
    parser.set_defaults(act=_attach)
    attach.add(parser, REPORT_FORMATS)


def _add_fix(parser: argparse.ArgumentParser) -> None:
    from whyidle.fix import command

    parser.description = (
        "Write the changes that whyidle understands in a training script as one unified diff: "
        "the safe ones, with --unsafe also those that can change results. It says what it left "
        "alone and why."
    )
    parser.set_defaults(act=command.run)
    command.add(parser)


def _add_try(parser: argparse.ArgumentParser) -> None:
    from whyidle.trial import try_command

    parser.description = try_command.DESCRIPTION
    parser.set_defaults(act=try_command.run)
    try_command.add(parser)


def _add_prove(parser: argparse.ArgumentParser) -> None:
    from whyidle.trial import command

    parser.description = command.DESCRIPTION
    parser.set_defaults(act=command.run)
    command.add(parser)


def _add_data(parser: argparse.ArgumentParser) -> None:
    from whyidle.data import command

    command.add(parser)


def _add_compare(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Set two runs side by side, cause by cause and kernel by kernel, per step, and say what "
        "changed and whether that is more than noise between steps. Each side is a saved "
        "diagnosis, a trace, or a folder with the ranks of one job."
    )
    parser.set_defaults(act=_compare)
    parser.add_argument("before", metavar="A", help="the run before: a diagnosis or its evidence")
    parser.add_argument("after", metavar="B", help="the run after, likewise")
    _add_output(parser, REPORT_FORMATS)
    parser.add_argument(
        "--fail-on",
        action="append",
        default=[],
        metavar="LIMIT",
        help="exit 1 when B is worse by more than this share of a step of A, and by more than "
        "noise: 'slower>5%%' (the step), 'lost>5%%', 'data_loading>2%%'; may be repeated",
    )


def _add_render(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Draw a diagnosis that `diagnose --format json` or `-o FILE.json` has saved. "
        "`--format perfetto --with TRACE -o FILE` adds the losses as a track to the trace."
    )
    parser.set_defaults(act=_render)
    parser.add_argument("diagnosis", metavar="DIAGNOSIS", help="a saved diagnosis (.json)")
    _add_output(parser, (*REPORT_FORMATS, "perfetto"))
    parser.add_argument(
        "--with", dest="trace", metavar="TRACE", help="the original trace, for --format perfetto"
    )


def _add_explain(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Print the page of a cause, the pages of a folder of causes, or, without an argument, "
        "the list of all causes."
    )
    parser.set_defaults(act=_explain)
    parser.add_argument("cause", nargs="?", metavar="CAUSE", help="a cause or a folder of causes")
    parser.add_argument(
        "--list", action="store_true", help="one line per cause, all of them or those of a folder"
    )
    parser.add_argument(
        "--demo", action="store_true", help="diagnose the cause's own small example instead"
    )
    _add_output(parser, PAGE_FORMATS)


def _add_env(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Look at this machine, without changing anything: Python, CPUs, memory, PyTorch, GPUs "
        "and tools; and say what cannot be observed here and how to get it."
    )
    parser.set_defaults(act=_env)
    _add_output(parser, ENV_FORMATS)


def _add_new_cause(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write FOLDER/NAME.py, a cause that already passes its contract tests, "
        "in this project's tree or in a package of your own."
    )
    parser.set_defaults(act=_new_cause)
    parser.add_argument("cause", metavar="FOLDER.NAME", help="such as data_loading.cold_cache")
    parser.add_argument(
        "--into", metavar="DIR", help="the causes package (default: src/whyidle/causes here)"
    )


def _add_output(parser: argparse.ArgumentParser, formats: Sequence[str]) -> None:
    parser.add_argument(
        "--format",
        choices=formats,
        help="default: by the suffix of -o, else terminal (plain text in a pipe or a file)",
    )
    parser.add_argument(
        "-o",
        "--output",
        action="append",
        default=[],
        metavar="FILE",
        help="write to FILE instead of stdout; may be repeated, each suffix picks its format",
    )


def steps_of(text: str) -> tuple[int | None, int | None]:
    """``A:B`` as (A, B); either side may be missing, which leaves it open."""
    found = re.fullmatch(r"(\d*):(\d*)", text.strip())
    first, end = (int(side) if side else None for side in found.groups()) if found else (None, None)
    if not found or (first is None and end is None):
        raise argparse.ArgumentTypeError(f"{text!r} is not A:B, such as 3:8, 3: or :8")
    if first is not None and end is not None and first >= end:
        raise argparse.ArgumentTypeError(f"{text!r} holds no step; B must be above A")
    return first, end


def positive(text: str) -> int:
    """A whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def _diagnose(options: argparse.Namespace) -> int:
    from whyidle import gate, reports
    from whyidle.progress import ReadingBar

    quiet = getattr(options, "quiet", False)
    planned = reports.planned(options.format, options.output, options.paths)
    limits = gate.parse_limits(options.fail_on, _cause_ids()) if options.fail_on else []

    from whyidle.executor import diagnose_files

    with ReadingBar(quiet=quiet) as bar:
        diagnosis = diagnose_files(
            options.paths, on=options.on, jobs=options.jobs, steps=options.steps, progress=bar
        )
    reports.deliver(diagnosis, planned, quiet=quiet)
    if options.gpu is not None:
        from whyidle.ceiling import said_of

        for line in said_of(options.paths, options.gpu):
            reports.say(line)
    above = gate.exceeded(diagnosis, limits)
    for sentence in above:
        reports.say(sentence)
    gate.check_judged(diagnosis, limits, _cause_ids() if limits else ())
    return ABOVE_LIMIT if above else FINE


def _run(options: argparse.Namespace) -> int:
    from whyidle.observe import command

    causes = _cause_ids() if options.fail_on else []
    observed = command.observe(options, causes)
    code = observed.outcome.code
    try:
        above = command.report(options, observed, causes)
    except Exception as error:  # noqa: BLE001  what befalls the report is not the job's failure
        failed = _failed(error, debug=getattr(options, "debug", False))
        return code or (failed if options.fail_on else FINE)
    return code or (ABOVE_LIMIT if above else FINE)


def _attach(options: argparse.Namespace) -> int:
    from whyidle.observe import attach

    causes = _cause_ids() if options.fail_on else []
    return ABOVE_LIMIT if attach.run(options, causes) else FINE


def _compare(options: argparse.Namespace) -> int:
    from whyidle import compare_gate, reports
    from whyidle.compare import compare
    from whyidle.compare_inputs import name_of, side
    from whyidle.progress import ReadingBar

    quiet = getattr(options, "quiet", False)
    paths = (options.before, options.after)
    planned = reports.planned(options.format, options.output, paths)
    limits = compare_gate.parse_limits(options.fail_on, _cause_ids()) if options.fail_on else []
    with ReadingBar(quiet=quiet) as bar:
        before, after = side(paths[0], bar), side(paths[1], bar)
    compared = compare(before, after, (name_of(*paths), name_of(*reversed(paths))))
    reports.deliver(compared, planned, quiet=quiet)
    above = compare_gate.exceeded(compared, limits)
    for sentence in above:
        reports.say(sentence)
    compare_gate.check_judged(after, limits, _cause_ids() if limits else ())
    return ABOVE_LIMIT if above else FINE


def _render(options: argparse.Namespace) -> int:
    from whyidle import reports

    quiet = getattr(options, "quiet", False)
    inputs = [path for path in (options.diagnosis, options.trace) if path]
    if options.format == "perfetto":
        reports.deliver_track(options.diagnosis, options.trace, options.output, quiet=quiet)
        return FINE
    planned = reports.planned(options.format, options.output, inputs)
    reports.deliver(reports.saved(options.diagnosis), planned, quiet=quiet)
    return FINE


def _explain(options: argparse.Namespace) -> int:
    from whyidle import pages, reports

    planned = reports.planned(options.format, options.output, formats=PAGE_FORMATS)
    quiet = getattr(options, "quiet", False)
    causes = pages.chosen(options.cause)
    if options.demo:
        if options.cause is None or len(causes) != 1:
            raise UsageError("--demo needs one cause.\n`whyidle explain` lists them all.")
        reports.deliver(pages.demo(causes[0])[0], planned, quiet=quiet)
        return FINE
    listed = options.cause is None or options.list
    reports.deliver_text(
        lambda format, on_terminal: pages.drawn(
            causes, format, width=reports.columns(on_terminal), listed=listed
        ),
        planned,
        quiet=quiet,
    )
    return FINE


def _env(options: argparse.Namespace) -> int:
    from whyidle import environment, reports

    planned = reports.planned(options.format, options.output, formats=ENV_FORMATS)
    found = environment.observe()
    draw = {"json": environment.as_json, "terminal": environment.as_text}
    reports.deliver_text(
        lambda format, _: draw[format](found), planned, quiet=getattr(options, "quiet", False)
    )
    return FINE


def _new_cause(options: argparse.Namespace) -> int:
    from whyidle import reports, scaffold

    written = scaffold.new_cause(options.cause, options.into)
    reports.write_stdout(scaffold.next_steps(written))
    return FINE


def _cause_ids() -> list[str]:
    from whyidle.causes import all_causes

    return list(all_causes())


def _speak_utf8() -> None:
    """Reports hold more than ASCII: a pipe or file gets UTF-8, a terminal what it can show."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed before we began
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        change = getattr(stream, "reconfigure", None)
        if change is not None:
            if stream.isatty():
                change(errors="replace")
            else:
                change(encoding="utf-8", errors="backslashreplace")


Add = Callable[[argparse.ArgumentParser], None]

VERBS: dict[str, tuple[str, Add]] = {
    "diagnose": ("where the GPU time of a recorded run went, why, and what to do", _add_diagnose),
    "run": ("observe a training command without changing it, then diagnose it", _add_run),
    "attach": (
        "observe a training job that is already running, as far as can be seen",
        _add_attach,
    ),
    "fix": ("the change to a training script as a diff that can be undone", _add_fix),
    "try": ("try remedies on a training command at run time, and say which of them pay", _add_try),
    "prove": (
        "run two commands in turn and say whether the second is faster, and by how much",
        _add_prove,
    ),
    "data": ("preview: probe, tune, pack and verify what a training job reads", _add_data),
    "compare": (
        "two runs side by side: what changed, and whether it is more than noise",
        _add_compare,
    ),
    "render": ("any view of a saved diagnosis", _add_render),
    "explain": ("what a cause means, how it is told, and what to change", _add_explain),
    "env": ("what this machine and this installation can observe, and what is missing", _add_env),
    "new-cause": ("write the file of a new cause, ready to be filled in", _add_new_cause),
}
"""Name -> what it does in a line, and what gives its parser the arguments."""
