"""``whyidle prove``: its options, and what happens when it runs."""

from __future__ import annotations

import argparse
import contextlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from whyidle.trial.pairs import Plan, Run
    from whyidle.trial.trees import Tree

FORMATS = ("terminal", "json", "markdown")

PROVEN, NOT_PROVEN = 0, 1

USAGE = (
    "Write: whyidle prove [OPTIONS] -- BEFORE... -- AFTER..., or, for one command in two trees: "
    "whyidle prove --between REV REV -- CMD... or whyidle prove --patch FILE -- CMD..."
)

DESCRIPTION = (
    "Run two commands in turn, several times each, or one command in two revisions or before and "
    "after a patch, and say how many times faster the second is, "
    "with an interval, and whether its loss stayed the same. Exit 0: faster as asked, and training "
    "not changed; 1: not proven, or a run failed; 2: usage."
)

EPILOG = USAGE + " A command that holds -- itself goes into: sh -c '...'."


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``prove`` to its parser."""
    parser.usage = (
        "whyidle prove [OPTIONS] -- BEFORE... -- AFTER...\n"
        "       whyidle prove --between REV REV [OPTIONS] -- CMD...\n"
        "       whyidle prove --patch FILE [OPTIONS] -- CMD..."
    )
    parser.epilog = EPILOG
    _add_trees(parser)
    parser.add_argument(
        "--pairs",
        type=_at_least_two,
        default=5,
        metavar="N",
        help="how often each command runs, 2 or more (default 5)",
    )
    parser.add_argument(
        "--steps", type=_positive, metavar="N", help="end each training job after N steps"
    )
    parser.add_argument(
        "--warm-up",
        type=_whole,
        default=3,
        metavar="N",
        help="steps at the start that are not counted (default 3; half of the steps at most)",
    )
    parser.add_argument(
        "--at-least",
        type=_factor,
        default=1.05,
        metavar="TIMES",
        help="how many times faster it must surely be (default 1.05)",
    )
    parser.add_argument(
        "--loss-tolerance",
        type=_share,
        default=0.02,
        metavar="SHARE",
        help="how much the loss may differ, as a share of it (default 0.02)",
    )
    parser.add_argument(
        "--seeds",
        type=_whole,
        default=0,
        metavar="N",
        help="where the loss differs by more, run BEFORE N times more with other random numbers, "
        "and tolerate what those alone make it differ (for changes that shuffle or augment with "
        "other numbers)",
    )
    parser.add_argument(
        "--timeout", type=_seconds, metavar="S", help="end a run after S seconds, as failed"
    )
    parser.add_argument("--format", choices=FORMATS, help="what stdout gets (default terminal)")
    parser.add_argument(
        "-o", "--output", metavar="FILE.json", help="also write the proof to FILE.json"
    )
    parser.add_argument(
        "commands", nargs=argparse.REMAINDER, metavar="-- BEFORE... -- AFTER...", help="what to run"
    )


def _add_trees(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--between",
        nargs=2,
        metavar=("REV", "REV"),
        help="run one command in two revisions, in temporary worktrees; . is the working tree as "
        "it is",
    )
    parser.add_argument(
        "--patch",
        metavar="FILE",
        help="run one command in a copy of the working tree, and in one with this patch applied; "
        "- reads it from stdin",
    )
    parser.add_argument(
        "--link",
        action="append",
        default=[],
        metavar="PATH",
        help="share this file or folder, such as data or .venv, with the trees of --between and "
        "--patch; may be repeated",
    )


def run(options: argparse.Namespace) -> int:
    """Run both sides, tell what that gave, and return the exit code."""
    from datetime import UTC, datetime

    from whyidle.trial.child import terminated_like_interrupted
    from whyidle.trial.judged import guard_of, proof_of
    from whyidle.trial.pairs import other_seeds, run_all
    from whyidle.trial.showing import RunsBar

    _check_output(options.output)
    quiet = bool(getattr(options, "quiet", False))
    started = datetime.now(UTC)
    runs: list[Run] = []
    seeds: list[Run] = []
    with terminated_like_interrupted(), _planned(options) as plan, _outputs() as (folder, keep):
        try:
            with RunsBar(quiet=quiet) as bar:
                run_all(plan, folder, runs, bar)
            differs = guard_of(runs, options.loss_tolerance).verdict == "changes training"
            if options.seeds and differs and runs[-1].ended.well:
                with RunsBar(quiet=quiet) as bar:
                    seeds = other_seeds(plan, folder, options.seeds, bar)
        except KeyboardInterrupt:
            _say_interrupted(plan, runs)
            raise
        proof = proof_of(
            plan,
            runs,
            started,
            at_least=options.at_least,
            tolerance=options.loss_tolerance,
            seeds=seeds,
        )
        if proof.verdict == "failed":
            keep.append(runs[-1].output)
            _say_failed(plan, runs[-1], proof.reasons)
    _deliver(proof, options.format or "terminal", options.output, quiet=quiet)
    return PROVEN if proof.proven else NOT_PROVEN


@contextlib.contextmanager
def _outputs() -> Iterator[tuple[Path, list[Path]]]:
    """A temporary folder for outputs and events, removed but for the files put on the list."""
    import shutil
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="whyidle-prove-"))
    keep: list[Path] = []
    try:
        yield folder, keep
    finally:
        kept = {path.parent for path in keep}
        for place in folder.iterdir():
            if place not in kept:
                shutil.rmtree(place, ignore_errors=True)
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)


def parted(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The two commands among ``words``, which ``--`` parts; UsageError when that is not so."""
    from whyidle.errors import UsageError

    given = list(words[1:] if words[:1] == ["--"] else words)
    parts: list[list[str]] = [[]]
    for word in given:
        if word == "--":
            parts.append([])
        else:
            parts[-1].append(word)
    if len(parts) > 2:
        raise UsageError(
            f"{len(parts)} commands, parted by --, where two are compared.\n"
            "A command that holds -- itself goes into: sh -c '...'"
        )
    if not parts[0]:
        raise UsageError(f"The command BEFORE is missing.\n{USAGE}")
    if len(parts) < 2 or not parts[1]:
        raise UsageError(f"The command AFTER is missing.\n{USAGE}")
    return parts[0], parts[1]


def _one_command(words: Sequence[str], option: str) -> list[str]:
    from whyidle.errors import UsageError

    given = list(words[1:] if words[:1] == ["--"] else words)
    if not given:
        raise UsageError(f"The command is missing.\nWrite: whyidle prove {option} ... -- CMD...")
    if "--" in given:
        raise UsageError(
            f"With {option} one command runs in both trees; two were given, parted by --.\n"
            "A command that holds -- itself goes into: sh -c '...'"
        )
    return given


@contextlib.contextmanager
def _planned(options: argparse.Namespace) -> Iterator[Plan]:
    """The plan; trees that it needs are there within the block."""
    from whyidle.errors import UsageError

    if options.between and options.patch:
        raise UsageError("--between and --patch are two ways to say what changes; use one of them.")
    if not options.between and not options.patch:
        if options.link:
            raise UsageError("--link shares files with the trees of --between or --patch.")
        yield _plan(options, *_two_commands(options.commands), None)
        return
    from whyidle.reports import say
    from whyidle.trial import trees

    command = _one_command(options.commands, "--between" if options.between else "--patch")
    making = (
        trees.of_revisions((options.between[0], options.between[1]), options.link)
        if options.between
        else trees.of_patch(_patch(options.patch), _name(options.patch), options.link)
    )
    with making as made:
        for tree in made:
            trees.check_command(command, tree)
        if not getattr(options, "quiet", False):
            trees.notes_on(made, say)
        yield _plan(options, command, command, made)


def _name(patch: str) -> str:
    return "the patch from stdin" if patch == "-" else Path(patch).name


def _patch(name: str) -> bytes:
    import sys

    from whyidle.errors import UnreadableEvidence

    try:
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise UnreadableEvidence(
            name, f"cannot be read ({error.strerror or error})", "Check the path and its spelling."
        ) from error


def _two_commands(words: Sequence[str]) -> tuple[list[str], list[str]]:
    import shutil

    from whyidle.errors import UsageError

    before, after = parted(words)
    for command in (before, after):
        if shutil.which(command[0]) is None:
            raise UsageError(
                f"{command[0]}: no such command, or not executable.\n"
                "Check its spelling; a script needs its interpreter before it: python train.py"
            )
    return before, after


def _plan(
    options: argparse.Namespace,
    before: Sequence[str],
    after: Sequence[str],
    trees: tuple[Tree, Tree] | None,
) -> Plan:
    from whyidle.trial.pairs import Plan

    return Plan(
        before=before,
        after=after,
        pairs=options.pairs,
        steps=options.steps,
        warm_up=options.warm_up,
        timeout_s=options.timeout,
        trees=trees,
    )


def _check_output(output: str | None) -> None:
    from whyidle.errors import UsageError
    from whyidle.reports import check_output

    if output is None:
        return
    if not output.lower().endswith(".json"):
        raise UsageError(f"-o {output}: a proof is JSON.\nGive a name that ends in .json.")
    check_output(output, ())


def _deliver(proof: object, format: str, output: str | None, *, quiet: bool) -> None:
    import sys

    from whyidle.reports import columns, say, write_file, write_stdout
    from whyidle.trial.proof import Proof
    from whyidle.trial.telling import drawn

    assert isinstance(proof, Proof)
    if output is not None:
        write_file(Path(output), proof.to_json())
        if not quiet:
            say(f"wrote {output}")
    write_stdout(drawn(proof, format, columns(sys.stdout.isatty())))


def _say_failed(plan: Plan, last: Run, reasons: Sequence[str]) -> None:
    from whyidle.reports import say
    from whyidle.trial.child import tail
    from whyidle.trial.trees import missing_there

    told = tail(last.output)
    lines = [f"Its last output:\n{told}" if told.strip() else "It printed nothing."]
    tree = plan.tree(last.side)
    lacking = [] if tree is None else missing_there(tree)
    if lacking:
        lines.append(
            f"Its tree lacks what git ignores ({', '.join(lacking)}); what the job needs of it "
            f"can be shared: --link {lacking[0]}"
        )
    say("\n".join([*reasons, *lines, f"All of its output: {last.output}"]))


def _say_interrupted(plan: Plan, runs: Sequence[Run]) -> None:
    import statistics

    from whyidle.render.numerals import duration
    from whyidle.reports import say
    from whyidle.trial.judged import measure_of, seconds

    told = [f"interrupted after {len(runs)} of {2 * plan.pairs} runs"]
    if runs:
        what = measure_of(runs).what
        for side in ("before", "after"):
            known = [seconds(one, what) for one in runs if one.side == side]
            if known:
                told.append(f"{side} {duration(statistics.median(known))} ({what})")
    say(", ".join(told))


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def _positive(text: str) -> int:
    if (number := _whole(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is less than 1")
    return number


def _at_least_two(text: str) -> int:
    if (number := _whole(text)) < 2:
        raise argparse.ArgumentTypeError(f"{text!r}: an interval needs 2 pairs or more")
    return number


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return number


def _seconds(text: str) -> float:
    if (number := _number(text)) <= 0 or number > 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not between 0 and 1,000,000 seconds")
    return number


def _factor(text: str) -> float:
    if (number := _number(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is less than 1, which is no faster")
    return number


def _share(text: str) -> float:
    if (number := _number(text)) < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is below 0")
    return number
