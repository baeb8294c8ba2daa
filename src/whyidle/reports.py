"""Which report goes where: the format asked for, the file it lands in, the terminal it meets."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from whyidle.comparison import Comparison
from whyidle.diagnosis import Diagnosis, write_whole
from whyidle.errors import (
    EvidenceError,
    NotFound,
    OutputError,
    UnknownEvidence,
    UnreadableEvidence,
    UsageError,
)

FORMATS = ("terminal", "json", "markdown", "html")
"""What ``diagnose`` and ``render`` can draw; ``terminal`` is plain text in a pipe or a file."""

SUFFIXES = {
    ".json": "json",
    ".md": "markdown",
    ".markdown": "markdown",
    ".html": "html",
    ".htm": "html",
    ".txt": "terminal",
}
"""A report file's suffix -> its format, when no ``--format`` was given."""

TEXT_SUFFIXES = ("", ".log", ".out", ".text")
"""Further suffixes of plain text."""

PLAIN_WIDTH = 100
"""Columns of a text report that is not drawn on a terminal."""


@dataclass(frozen=True)
class Report:
    """One report to write: ``path`` None means stdout."""

    format: str
    path: Path | None


def planned(
    asked: str | None,
    outputs: Sequence[str],
    inputs: Sequence[str] = (),
    formats: Sequence[str] = FORMATS,
) -> list[Report]:
    """The reports that ``--format`` and every ``-o`` ask for, checked before any work is done.

    ``formats`` are those that the verb can draw. Raises UsageError when the two options contradict
    each other, when an output would overwrite an input, and when it has no folder to land in.
    """
    if not outputs:
        return [Report(asked or "terminal", None)]
    if asked and len(outputs) > 1:
        raise UsageError(
            f"--format {asked} with several -o: which file is meant?\n"
            "Leave --format out; each file's suffix (.json, .md, .html, .txt) tells its format."
        )
    for path in outputs:
        check_output(path, inputs)
    return [_report(asked, path, formats) for path in outputs]


def _report(asked: str | None, path: str, formats: Sequence[str]) -> Report:
    suffix = Path(path).suffix.lower()
    if asked is None and path != "-" and suffix not in SUFFIXES and suffix not in TEXT_SUFFIXES:
        raise UsageError(
            f"-o {path}: no report is known by the suffix {suffix}.\n"
            f"Use one of {', '.join(SUFFIXES)}, or say which with --format."
        )
    format = asked or SUFFIXES.get(suffix, "terminal")
    if format not in formats:
        raise UsageError(
            f"-o {path}: this verb does not write {format}.\nIt writes {', '.join(formats)}."
        )
    return Report(format, None if path == "-" else Path(path))


def check_output(path: str, inputs: Sequence[str]) -> None:
    """Raise UsageError when writing ``path`` would destroy an input or has no folder to land in."""
    if path == "-":
        return
    target = Path(path)
    if target.is_dir():
        raise UsageError(f"-o {path}: is a folder.\nGive the name of a file in it.")
    if not target.parent.is_dir():
        raise UsageError(f"-o {path}: the folder {target.parent} does not exist.\nCreate it first.")
    for source in map(Path, inputs):
        if target.exists() and source.exists() and _destroys(target, source):
            raise UsageError(f"-o {path}: would overwrite the evidence.\nGive another name.")


def _destroys(target: Path, source: Path) -> bool:
    """Whether ``target`` is the input or, where that is a folder, a file in it that is evidence.

    An earlier report in that folder is none.
    """
    if target.samefile(source):
        return True
    if (
        not source.is_dir()
        or source.resolve() not in (target.parent.resolve() / target.name).parents
    ):
        return False
    from whyidle.readers.finding import knowing
    from whyidle.readers.source_bytes import head_of

    try:
        return knowing(target, head_of(target)) is not None
    except EvidenceError:
        return False


_DIAGNOSED = {"markdown": "markdown", "html": "html", "terminal": "terminal"}
_COMPARED = {"markdown": "compare_markdown", "html": "compare_page", "terminal": "compare_terminal"}
"""Format -> the module of ``render`` that draws it; loaded when it is asked for."""


def text_of(told: Diagnosis | Comparison, format: str, *, on_terminal: bool) -> str:
    """What is told, drawn in one of FORMATS; colour and real width only on a terminal."""
    if format == "json":
        return told.to_json()
    modules = _COMPARED if isinstance(told, Comparison) else _DIAGNOSED
    draw = importlib.import_module(f"whyidle.render.{modules[format]}").render
    if format == "terminal":
        drawn = draw(told, width=columns(on_terminal), color=on_terminal and wants_color())
    else:
        drawn = draw(told)
    return str(drawn)


def deliver(told: Diagnosis | Comparison, reports: Sequence[Report], *, quiet: bool) -> None:
    """Draw and write every report of a diagnosis or a comparison."""
    deliver_text(
        lambda format, on_terminal: text_of(told, format, on_terminal=on_terminal),
        reports,
        quiet=quiet,
    )


def deliver_text(
    draw: Callable[[str, bool], str], reports: Sequence[Report], *, quiet: bool
) -> None:
    """Write what ``draw(format, on a terminal?)`` returns for every report.

    A line on stderr tells which files were written, unless ``quiet``.
    """
    for report in reports:
        text = draw(report.format, report.path is None and sys.stdout.isatty())
        if report.path is None:
            write_stdout(text)
        else:
            write_file(report.path, text)
            if not quiet:
                say(f"wrote {report.path}")


def deliver_track(saved_at: str, trace: str | None, outputs: Sequence[str], *, quiet: bool) -> None:
    """Write the original trace with the losses of a saved diagnosis as one more track."""
    if trace is None or len(outputs) != 1 or outputs[0] == "-":
        raise UsageError(
            "--format perfetto adds a track to a trace, so it needs that trace and one new file.\n"
            "Write: whyidle render DIAGNOSIS --format perfetto --with TRACE -o FILE.json.gz"
        )
    if not Path(trace).is_file():
        raise NotFound(trace)
    check_output(outputs[0], (saved_at, trace))
    from whyidle.render import perfetto

    perfetto.write(saved(saved_at), Path(trace), Path(outputs[0]))
    if not quiet:
        say(f"wrote {outputs[0]}")


def saved(path: str) -> Diagnosis:
    """The diagnosis saved at ``path``; EvidenceError when there is none."""
    if not Path(path).exists():
        raise NotFound(path)
    try:
        return Diagnosis.from_json(Path(path).read_bytes())
    except OSError as error:
        raise UnreadableEvidence(
            path, f"cannot be read ({error.strerror or error})", "Check its permissions."
        ) from error
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise UnknownEvidence(
            path,
            f"not a saved diagnosis ({error})",
            "Save one with: whyidle diagnose TRACE -o diagnosis.json",
        ) from error


def columns(on_terminal: bool) -> int:
    """Columns to draw in: the terminal's own, or PLAIN_WIDTH in a pipe or a file."""
    return shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns if on_terminal else PLAIN_WIDTH


def wants_color() -> bool:
    """Whether colour codes on a terminal are welcome (NO_COLOR and a dumb terminal say no)."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def write_file(path: Path, text: str) -> None:
    """Replace ``path`` by ``text``, whole or not at all; OutputError when that fails."""
    try:
        write_whole(path, _ended(text))
    except OSError as error:
        raise OutputError(
            f"{path}: cannot be written ({error.strerror or error}).\nGive another place with -o."
        ) from error


def write_stdout(told: str | bytes) -> None:
    """Print text, or bytes as they are; a reader that has gone away (``| head``) is no error."""
    try:
        if isinstance(told, bytes):
            sys.stdout.flush()
            sys.stdout.buffer.write(told)
        else:
            sys.stdout.write(_ended(told))
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise OutputError(
                f"The report cannot be written ({error.strerror or error}).\n"
                "Make room, or write it to a file elsewhere with -o."
            ) from error


def say(text: str) -> None:
    """A sentence for the user on stderr; silently lost when stderr is gone."""
    from whyidle.render.plain import clean_block

    try:
        sys.stderr.write(f"whyidle: {clean_block(text)}\n")
        sys.stderr.flush()
    except OSError:
        pass


def _ended(text: str) -> str:
    return text if text.endswith("\n") else text + "\n"
