"""``whyidle fix``: the arguments, and what the verb says."""

from __future__ import annotations

import argparse
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from whyidle.errors import EvidenceError, NotFound, UnreadableEvidence, UsageError

if TYPE_CHECKING:
    from whyidle.diagnosis import Diagnosis
    from whyidle.fix.edits import Change
    from whyidle.fix.one_file import Fixed

MOST_BYTES = 5_000_000
"""A source file larger than this is not one that a person wrote."""


def add(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``whyidle fix``."""
    parser.add_argument("files", nargs="*", metavar="FILE", help="Python files of the training job")
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

    changes = _known()
    if options.list:
        reports.write_stdout("".join(_listed(c) for c in changes))
        return 0
    if not options.files:
        raise UsageError("No file was given.\nName the training script: whyidle fix train.py")
    diagnosis = reports.saved(options.diagnosis) if options.diagnosis else None
    chosen = _chosen(changes, options, diagnosis)
    results = [(path, _one(path, chosen, diagnosis)) for path in _paths(options.files)]
    if chosen:
        for path, fixed in results:
            _tell(path, fixed, getattr(options, "quiet", False))
    diffs = b"".join(_diff(path, fixed) for path, fixed in results)
    if not diffs:
        reports.say(f"nothing to change{_unasked(changes, options)}")
        return 0
    if options.apply:
        _apply(results)
    reports.write_stdout(diffs)
    return 0


def _known() -> tuple[Change, ...]:
    try:
        from whyidle.fix.catalogue import CHANGES
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "libcst":
            raise
        raise UsageError(
            "Changing source needs LibCST, which is not installed.\n"
            "Install it with: pip install 'whyidle[fix]'"
        ) from error
    return CHANGES


def _listed(change: Change) -> str:
    kind = "safe" if change.SAFE else "unsafe"
    return f"{change.NAME} ({kind}): {change.WHY}\n  answers {', '.join(change.CAUSES)}\n"


def _chosen(
    changes: Sequence[Change], options: argparse.Namespace, diagnosis: Diagnosis | None
) -> list[Change]:
    """The changes that were asked for and that answer the diagnosis; unsafe ones say why."""
    from whyidle import reports

    found = list(changes)
    if options.only is not None:
        wanted = {name.strip() for name in options.only.split(",")}
        unknown = sorted(wanted - {c.NAME for c in changes})
        if unknown:
            raise UsageError(
                f"No change is called {unknown[0]!r}.\n`whyidle fix --list` shows what there is."
            )
        found = [c for c in found if c.NAME in wanted]
    if diagnosis is not None:
        causes = {f.cause for f in diagnosis.findings}
        causes |= {o.cause for o in diagnosis.observations}
        found = [c for c in found if causes & set(c.CAUSES)]
        if not found:
            reports.say("no change here answers what the diagnosis found")
    if not options.unsafe:
        for change in found:
            if not change.SAFE and (options.only is not None or diagnosis is not None):
                reports.say(f"{change.NAME} needs --unsafe: {change.WHY}")
        found = [c for c in found if c.SAFE]
    return found


def _unasked(changes: Sequence[Change], options: argparse.Namespace) -> str:
    return "" if options.unsafe or all(c.SAFE for c in changes) else " (without --unsafe)"


def _paths(files: Sequence[str]) -> list[str]:
    """Each file once, as the user wrote it."""
    return list({os.path.realpath(f): f for f in reversed(files)}.values())[::-1]


def _one(path: str, changes: Sequence[Change], diagnosis: Diagnosis | None) -> Fixed:
    from whyidle.fix.one_file import fixed

    return fixed(path, _text(path), changes, _lines_named(path, diagnosis))


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


def _lines_named(path: str, diagnosis: Diagnosis | None) -> Collection[int]:
    """Lines of this file, from 1, that the diagnosis points at; its paths may be of elsewhere."""
    if diagnosis is None:
        return ()
    own = Path(path).resolve().parts
    found = set()
    places = [(w.file, w.line) for f in diagnosis.findings for w in f.where]
    places += [(w.file, w.line) for o in diagnosis.observations for w in o.where]
    for file, line in places:
        parts = Path(file).parts[-2:] if file else ()
        if line and parts and own[-len(parts) :] == parts:
            found.add(line)
    return found


def _tell(path: str, fixed: Fixed, quiet: bool) -> None:
    from whyidle import reports

    if quiet:
        return
    for told in fixed.done:
        reports.say(f"{path}:{told.line}: {told.change}: {told.what}")
    for told in fixed.left:
        reports.say(f"{path}:{told.line}: {told.change} left alone: {told.what}")


def _diff(path: str, fixed: Fixed) -> bytes:
    from whyidle.fix.diff import unified

    try:
        name = os.path.relpath(path)
    except ValueError:  # another drive
        name = path
    return unified(name.replace(os.sep, "/"), fixed.before, fixed.after)


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
