"""``whyidle fix``: the arguments, and what the verb says."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from whyidle.errors import EvidenceError, NotFound, UnreadableEvidence, UsageError

if TYPE_CHECKING:
    from whyidle.diagnosis import Diagnosis
    from whyidle.fix.edits import Change
    from whyidle.fix.said import Said
    from whyidle.fix.settings.table import Row
    from whyidle.fix.told import Fixed

MOST_BYTES = 5_000_000
"""A source file larger than this is not one that a person wrote."""


def add(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``whyidle fix``."""
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="Python files of the training job, and settings files (.yaml, .json) of Lightning, "
        "Hugging Face's Trainer or DeepSpeed",
    )
    parser.add_argument(
        "--command",
        dest="line",
        metavar="COMMAND",
        help="a training command in quotes: print it with the values of known options changed",
    )
    parser.add_argument(
        "--from",
        dest="diagnosis",
        metavar="DIAGNOSIS.json",
        help="only changes that answer what this diagnosis found, at its lines where it names them",
    )
    parser.add_argument(
        "--unsafe", action="store_true", help="also changes that may alter results; each says how"
    )
    parser.add_argument(
        "--apply", action="store_true", help="write the files, each beside a backup"
    )
    parser.add_argument("--only", metavar="NAME,...", help="only these changes (see --list)")
    parser.add_argument("--list", action="store_true", help="print all changes and why, then stop")


def run(options: argparse.Namespace) -> int:
    """Print the diff, or write it with --apply; 0 also when there is nothing to change."""
    from whyidle import reports
    from whyidle.fix.asked import asked, said_of, wanted
    from whyidle.fix.settings.table import ROWS

    changes = _known(options)
    if options.list:
        reports.write_stdout("".join(_listed(changes, ROWS)))
        return 0
    if bool(options.files) == bool(options.line):
        raise UsageError(
            "Name files or a command, one of them.\nName the training script: whyidle fix train.py"
        )
    diagnosis = reports.saved(options.diagnosis) if options.diagnosis else None
    only = wanted(options, {c.NAME for c in changes} | {row.NAME for row in ROWS})
    rows = asked(ROWS, only, diagnosis)
    if options.line:
        return _command(options, rows, said_of(diagnosis))
    chosen = asked(changes, only, diagnosis)
    if diagnosis is not None and not chosen and not rows:
        reports.say("no change here answers what the diagnosis found")
    chosen = _allowed(chosen, options, any(_is_python(f) for f in options.files))
    results = [(p, _one(p, chosen, rows, options, diagnosis)) for p in _paths(options.files)]
    for path, fixed in results:
        _tell(path, fixed, getattr(options, "quiet", False))
    diffs, how = _diffs(results)
    if not diffs:
        reports.say("nothing to change" + ("" if options.unsafe else " (without --unsafe)"))
        return 0
    if options.apply:
        _apply(results)
    elif how is not None:
        reports.say(how)
    reports.write_stdout(diffs)
    return 0


def _known(options: argparse.Namespace) -> tuple[Change, ...]:
    """All changes of source code; without LibCST none, where no source code is named."""
    try:
        from whyidle.fix.catalogue import CHANGES
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "libcst":
            raise
        if options.line or (options.files and not any(map(_is_python, options.files))):
            return ()
        raise UsageError(
            "Changing source needs LibCST, which is not installed.\n"
            "Install it with: pip install 'whyidle[fix]'"
        ) from error
    return CHANGES


def _listed(changes: Sequence[Change], rows: Sequence[Row]) -> list[str]:
    """Every change and every row, with why and what it answers."""
    from whyidle.fix.settings.choose import shown
    from whyidle.fix.settings.table import FRAMEWORKS

    lines = []
    for change in changes:
        kind = "safe" if change.SAFE else "unsafe"
        lines.append(f"{change.NAME} ({kind}): {change.WHY}\n")
        lines.append(f"  answers {', '.join(change.CAUSES)}\n")
    lines.append("\nSettings:\n")
    for row in rows:
        kind = "safe" if row.SAFE else "unsafe"
        setting = f"{FRAMEWORKS[row.framework]} {row.key} -> {shown(row.new)}"
        lines.append(f"{row.NAME} ({kind}): {setting}. {row.WHY}\n")
        if row.CAUSES:
            lines.append(f"  answers {', '.join(row.CAUSES)}\n")
    return lines


def _allowed(chosen: Sequence[Change], options: argparse.Namespace, said: bool) -> list[Change]:
    """Without --unsafe the safe ones; others that were asked for say what they may alter."""
    from whyidle import reports

    if options.unsafe:
        return list(chosen)
    for change in chosen:
        named = options.only is not None or options.diagnosis is not None
        if not change.SAFE and named and said:
            reports.say(f"{change.NAME} needs --unsafe: {change.WHY}")
    return [c for c in chosen if c.SAFE]


def _command(options: argparse.Namespace, rows: Sequence[Row], said: Said) -> int:
    from whyidle import reports
    from whyidle.fix.settings.command_line import changed

    if options.apply:
        raise UsageError("--apply writes files; a command is printed for you to start.")
    found = changed(options.line, rows, said, options.unsafe)
    for line in found.done:
        reports.say(line)
    for line in found.left:
        reports.say(f"left alone: {line}")
    if not found.done:
        reports.say("nothing to change")
    reports.write_stdout(found.command.rstrip("\n") + "\n")
    return 0


def _paths(files: Sequence[str]) -> list[str]:
    """Each file once, as the user wrote it."""
    return list({os.path.realpath(f): f for f in reversed(files)}.values())[::-1]


def _is_python(path: str) -> bool:
    from whyidle.fix.settings.files import is_settings

    return not is_settings(path)


def _one(
    path: str,
    changes: Sequence[Change],
    rows: Sequence[Row],
    options: argparse.Namespace,
    diagnosis: Diagnosis | None,
) -> Fixed:
    from whyidle.fix.asked import lines_named, said_of
    from whyidle.fix.settings import files

    text, said = _text(path), said_of(diagnosis)
    if not _is_python(path):
        return files.fixed(path, text, rows, said, options.unsafe)
    from whyidle.fix.one_file import fixed
    from whyidle.fix.settings.keywords import Keywords

    every = [*changes, Keywords(rows, options.unsafe)] if rows else changes
    return fixed(path, text, every, lines_named(path, diagnosis), said=said)


def _text(path: str) -> bytes:
    try:
        if not Path(path).is_file():
            if Path(path).exists():
                raise EvidenceError(path, "not a file", "Name the Python files themselves.")
            raise NotFound(path)
        if Path(path).stat().st_size > MOST_BYTES:
            raise EvidenceError(path, "too large for a source file", "Name a training script.")
        return Path(path).read_bytes()
    except OSError as error:
        raise UnreadableEvidence(path, f"{error.strerror}", "Check the path.") from error


def _tell(path: str, fixed: Fixed, quiet: bool) -> None:
    from whyidle import reports

    if quiet:
        return
    for told in fixed.done:
        reports.say(f"{path}:{told.line}: {told.change}: {told.what}")
    for told in fixed.left:
        reports.say(f"{path}:{told.line}: {told.change} left alone: {told.what}")


def _diffs(results: Sequence[tuple[str, Fixed]]) -> tuple[bytes, str | None]:
    """One diff of all changed files, and how to apply it where that is not plain."""
    from whyidle.fix.base import base_of, below, how_to_apply
    from whyidle.fix.diff import unified

    changed = [(path, fixed) for path, fixed in results if fixed.before != fixed.after]
    if not changed:
        return b"", None
    base = base_of([path for path, _ in changed])
    parts = (unified(below(base, path), fixed.before, fixed.after) for path, fixed in changed)
    return b"".join(parts), how_to_apply(base)


def _apply(results: Sequence[tuple[str, Fixed]]) -> None:
    from whyidle import reports
    from whyidle.fix.writing import replace

    for path, fixed in results:
        if fixed.before == fixed.after:
            continue
        backup = replace(Path(path), fixed.before, fixed.after)
        reports.say(
            f"{path} is written; undo with `mv {backup} {path}`, or save this diff and use "
            "`git apply -R`"
        )
