"""Reads traces of the PyTorch Profiler (Kineto, Chrome JSON), plain or gzip, 2021 to today.

One file becomes one Evidence with ``spans``, ``threads`` and, where the allocator's totals were
recorded, ``samples``. The file is streamed: memory is bounded by the columns kept.

What is deduced here, so that nothing later looks at a vendor's format:

- a thread is (process, thread) as text; its name is the recorded one, else its id;
- a device is ``args.device``, else the process id of its lane, which Kineto sets to the device;
- launch calls and device work are joined by correlation id; where ids join nothing, by the
  trace's arrows, then with an id below zero;
- ``blocks`` of an AMD kernel come from its launching call, which says whether it counted blocks
  or threads; a kernel without that call has none;
- times are integer nanoseconds, exactly as written, rounded half to even below that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from whyidle.errors import NothingRecorded, UnknownEvidence
from whyidle.model import Evidence, Facts, SourceInfo
from whyidle.readers.chrome_json import EventStream, NoEvents
from whyidle.readers.collector import collector_paused
from whyidle.readers.source_bytes import SourceBytes
from whyidle.readers.torch_columns import Columns
from whyidle.readers.torch_events import EventDecoder
from whyidle.readers.torch_facts import Heading, what_it_is
from whyidle.readers.torch_frame import Rows, Table, rows_of, samples_frame, spans_frames
from whyidle.readers.torch_links import Arrows
from whyidle.readers.torch_messages import Messages, message_frames
from whyidle.readers.torch_times import InexactTimes

NAME = "torch_trace"

Progress = Callable[[int, int], None]

_SIGNS = (b'"traceEvents"', b'"deviceProperties"', b'"distributedInfo"', b'"baseTimeNanoseconds"')
_EVENT = re.compile(rb'\[\s*\{[^{}]*"ph"\s*:', re.S)


def sniff(path: Path, head: bytes) -> bool:
    """Whether the first bytes look like a trace; ``head`` is decompressed, up to 64 KiB."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"{"):
        return any(sign in text for sign in _SIGNS)
    return text.startswith(b"[") and (_EVENT.match(text) is not None or b'"ph"' in text)


@dataclass(frozen=True)
class Gathered:
    """One trace whose tables are still to be built."""

    rows: Rows
    messages: Messages
    samples: pl.DataFrame | None
    facts: Facts
    info: SourceInfo


def read(path: Path, progress: Progress | None = None) -> Evidence:
    """The evidence in one trace. ``progress`` gets bytes read and the file's size.

    Raises an EvidenceError with a sentence for every file that is not a whole, sound trace.
    """
    return built([gathered(path, progress)])[0]


def built(traces: Sequence[Gathered]) -> list[Evidence]:
    """One Evidence per trace; many are built in little more time than one."""
    spans = spans_frames([trace.rows for trace in traces])
    messages = message_frames([trace.messages for trace in traces])
    found = []
    for trace, (own, threads), told in zip(traces, spans, messages, strict=True):
        tables = {"spans": own, "threads": threads, "samples": trace.samples, "messages": told}
        known = {name: table for name, table in tables.items() if table is not None}
        found.append(Evidence(known, trace.facts, (trace.info,)))
    return found


def gathered(path: Path, progress: Progress | None = None) -> Gathered:
    """What one trace holds, for ``built``. Raises as ``read`` does."""
    columns, decoder = Columns(), EventDecoder()
    with SourceBytes(path) as source, collector_paused():
        stream = EventStream(source)
        try:
            for _ in stream.batches(lambda array: _take_in(array, decoder, columns)):
                if progress is not None:
                    progress(source.at, source.size)
        except NoEvents as error:
            found, next_step = what_it_is(error.keys)
            raise UnknownEvidence(str(path), found, next_step.replace("FILE", str(path))) from None
        digest, notes = source.digest(), list(source.notes)
    heading = Heading(str(path), stream.keys)
    if not columns.count:
        raise _nothing(path, columns, decoder, stream.is_list)
    table = Table(columns)
    if table.wants_arrows():
        joined = table.follow(_arrows(path, columns))
        if joined:
            notes.append(f"{joined} device spans were joined to their launch by arrows")
    vendors = columns.labels.vendors
    table.carry(amd=heading.vendor(vendors) == "amd")
    base_ns, rank = heading.base_ns(), heading.rank
    used = np.unique(table.device[table.is_work[table.on_device]]).tolist()
    rows = rows_of(table, base_ns, rank)
    samples = samples_frame(columns, base_ns, rank)
    notes += heading.notes() + _counted(columns, decoder, stream.repaired)
    info = SourceInfo(str(path), NAME, rank, columns.seen, digest, tuple(notes))
    return Gathered(rows, columns.messages, samples, heading.facts(vendors, used, not used), info)


def _take_in(array: memoryview, decoder: EventDecoder, columns: Columns) -> int:
    """Decode a chunk with the fastest decoder that holds every digit and value of it."""
    batch = decoder.decode(array)
    for _ in range(2):
        try:
            columns.add(batch)
        except InexactTimes:
            decoder.distrust_floats()
            batch = decoder.decode(array)
        except (TypeError, ValueError, OverflowError):
            batch = decoder.decode_leniently(array)
        else:
            return len(batch.events)
    columns.add(decoder.decode_leniently(array) if batch.unit != "ns" else batch)
    return len(batch.events)


def _arrows(path: Path, columns: Columns) -> Arrows:
    arrows = Arrows(columns.lanes)
    with SourceBytes(path) as source:
        for _ in EventStream(source).batches(arrows.decode):
            pass
    return arrows


def _counted(columns: Columns, decoder: EventDecoder, repaired: int) -> list[str]:
    """Notes on what was left out or read in another sense than written."""
    notes = [f"{count} events {what}" for what, count in columns.notes.items() if count]
    notes += [f"{count} entries {what}, left out" for what, count in decoder.dropped.items()]
    for category, count in columns.left_out.most_common(8):
        notes.append(f"{count} events of category {category!r} are not used")
    if repaired:
        notes.append(f"{repaired} bare NaN or infinities read as missing")
    return notes


def _nothing(
    path: Path, columns: Columns, decoder: EventDecoder, is_list: bool
) -> NothingRecorded | UnknownEvidence:
    record = (
        "Record with torch.profiler.profile(activities=[CPU, CUDA]) around a few training steps."
    )
    if not columns.seen:
        return NothingRecorded(str(path), "a trace without any events", record)
    if is_list and decoder.dropped["are not events"] == columns.seen:
        what = "a JSON list that holds no events, perhaps a memory timeline"
        return UnknownEvidence(str(path), what, "Name a trace written by torch.profiler instead.")
    what = f"{columns.seen} events, none of them an operator, a call or device work"
    if columns.left_out:
        some = ", ".join(repr(name) for name, _ in columns.left_out.most_common(3))
        what += f" (categories found: {some})"
    return NothingRecorded(str(path), what, record)
