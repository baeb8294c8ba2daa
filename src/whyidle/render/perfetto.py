"""The original trace with the losses as tracks beside it, for ui.perfetto.dev or chrome://tracing.

The original events pass through byte by byte; new ones are appended to their list. Memory stays
bounded by a few chunks, whatever the size of the trace.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any, BinaryIO, cast

from whyidle.diagnosis import Diagnosis, Finding, Timeline, TimelineClaim
from whyidle.errors import OutputError
from whyidle.render import outlook, phrases
from whyidle.render.chrome_json import CHUNK_BYTES, Layout, find_layout, opened
from whyidle.render.plain import clean
from whyidle.render.slices import title_of

PROCESS = 1_999_999_973
"""Process id of our tracks; above any that an operating system hands out."""

LOST_TRACK = 1
UNEXPLAINED_TRACK = 2


def write(diagnosis: Diagnosis, trace: Path, out: Path) -> None:
    """Write ``trace`` with a track of losses to ``out``; packed when its name ends in ``.gz``.

    ``out`` appears whole or not at all. Raises OutputError when the diagnosis has no timeline,
    when ``out`` is the trace itself, when the trace is of another rank, or when writing fails.
    """
    timeline = _checked_timeline(diagnosis, trace, out)
    layout = find_layout(trace)
    lines = [_line(event) for event in events(diagnosis, timeline, layout.base_ns)]
    added = b",\n".join(lines) + b"\n"
    try:
        with _whole_file(out) as target, opened(trace) as source:
            _copy(source, target, layout, added)
    except OSError as error:
        raise OutputError(
            f"{out}: cannot be written ({error.strerror or error}).\nGive another place with -o."
        ) from error


def events(diagnosis: Diagnosis, timeline: Timeline, base_ns: int) -> Iterator[dict[str, Any]]:
    """The events of our tracks; ``ts`` and ``dur`` in microseconds, exact to the nanosecond.

    ``base_ns`` is what the trace adds to its own ``ts``, so that both share one clock.
    """
    device = phrases.device_name(timeline.rank, timeline.device)
    step = "" if timeline.step is None else f", step {timeline.step}"
    yield _name("process_name", 0, f"whyidle: {device}{step}")
    yield {"ph": "M", "name": "process_sort_index", "pid": PROCESS, "args": {"sort_index": -1}}
    yield _name("thread_name", LOST_TRACK, "whyidle: lost time (cause)")
    if any(claim.cause is None for claim in timeline.claims):
        yield _name("thread_name", UNEXPLAINED_TRACK, "whyidle: unexplained time")
    titles = {finding.cause: clean(finding.title) for finding in diagnosis.findings}
    advice = {finding.cause: _advice(finding) for finding in diagnosis.findings}
    origin_ns = int(diagnosis.window.origin_ns) - base_ns
    for claim in timeline.claims:
        start_ns = max(claim.start_ns, timeline.start_ns)
        end_ns = min(claim.end_ns, timeline.end_ns)
        if end_ns > start_ns:
            slice_ = _slice(claim, titles, origin_ns + start_ns, end_ns - start_ns)
            slice_["args"] |= advice.get(claim.cause or "", {})
            yield slice_


def _name(kind: str, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": PROCESS, "tid": thread, "args": {"name": name}}


def _advice(finding: Finding) -> dict[str, str]:
    """What to do first about a finding and what it would bring, for who clicks on its slices."""
    if not finding.remedies:
        return {}
    first = finding.remedies[0]
    told = {"do first": clean(first.what)}
    gain = outlook.gain(first)
    return {**told, "predicted": gain} if gain else told


def _slice(
    claim: TimelineClaim, titles: dict[str, str], start_ns: int, length_ns: int
) -> dict[str, Any]:
    cause = claim.cause
    args: dict[str, Any] = {"state": claim.state, "weight": claim.weight}
    if cause is not None:
        args["cause"] = clean(cause)
    if claim.what is not None:
        args["where"] = clean(claim.what)
    return {
        "ph": "X",
        "cat": "whyidle",
        "name": "unexplained" if cause is None else titles.get(cause) or title_of(cause),
        "pid": PROCESS,
        "tid": UNEXPLAINED_TRACK if cause is None else LOST_TRACK,
        "ts": start_ns,
        "dur": length_ns,
        "args": args,
    }


def _line(event: dict[str, Any]) -> bytes:
    """The event as JSON; ts and dur, in nanoseconds until now, become exact decimals."""
    times = "".join(f', "{k}": {_micros(event[k])}' for k in ("ts", "dur") if k in event)
    rest = {key: value for key, value in event.items() if key not in ("ts", "dur")}
    return (json.dumps(rest)[:-1] + times + "}").encode()


def _micros(value_ns: int) -> str:
    """Nanoseconds as microseconds with three digits, without a detour through floats."""
    sign, value_ns = ("-", -value_ns) if value_ns < 0 else ("", value_ns)
    return f"{sign}{value_ns // 1000}.{value_ns % 1000:03d}"


def _checked_timeline(diagnosis: Diagnosis, trace: Path, out: Path) -> Timeline:
    if diagnosis.timeline is None:
        raise OutputError(
            "This diagnosis has no timeline, so there is no track to write.\n"
            "Diagnose the trace again and render the new result."
        )
    if not diagnosis.window.origin_ns.removeprefix("-").isdecimal():
        raise OutputError(
            f"This diagnosis counts from {clean(diagnosis.window.origin_ns)[:40]!r}, which is no "
            "instant.\nDiagnose the trace again and render the new result."
        )
    if not trace.is_file():
        raise OutputError(f"{trace}: no such file.\nGive the trace that was diagnosed.")
    if out.exists() and out.samefile(trace):
        raise OutputError(f"{out}: would overwrite the original trace.\nGive another name.")
    rank = diagnosis.timeline.rank
    named = [s for s in diagnosis.sources if PurePath(s.path).name == trace.name]
    known = {s.rank for s in named if s.rank is not None}
    if rank is not None and known and rank not in known:
        right = [clean(s.path) for s in diagnosis.sources if s.rank == rank]
        raise OutputError(
            f"{trace}: is rank {min(known)}, but the timeline is of rank {rank}.\n"
            f"Give {right[0] if right else 'the trace of that rank'}."
        )
    return diagnosis.timeline


def _copy(source: BinaryIO, target: BinaryIO, layout: Layout, added: bytes) -> None:
    """Copy all bytes, with ``added`` before the bracket that closes the event list."""
    left = layout.end
    ends_with_comma = False
    while left > 0:
        piece = source.read(min(CHUNK_BYTES, left))
        if not piece:
            raise OSError("the trace changed while it was read")
        left -= len(piece)
        solid = piece.rstrip()
        ends_with_comma = solid.endswith(b",") if solid else ends_with_comma
        target.write(piece)
    target.write((b"\n" if layout.empty or ends_with_comma else b",\n") + added)
    while piece := source.read(CHUNK_BYTES):
        target.write(piece)


@contextmanager
def _whole_file(out: Path) -> Iterator[BinaryIO]:
    """A file beside ``out`` that takes its place when all went well, and vanishes otherwise."""
    temporary = out.with_name(f".{out.name}.{os.getpid()}.part")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            if out.name.lower().endswith(".gz"):
                with gzip.GzipFile("", "wb", 5, file, mtime=0) as packed:
                    yield cast(BinaryIO, packed)
            else:
                yield file
        os.replace(temporary, out)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
