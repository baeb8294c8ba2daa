"""Reads Nsight Systems reports exported to SQLite (``nsys export --type sqlite``), 2021 to 2026.

One file becomes one Evidence; a process that used a GPU becomes one source of it, with a rank.

What is deduced here, so that nothing later looks at the format:

- a global thread id is a process's global id plus the thread id in its low 24 bits; the process
  id lies in bits 24 to 47. Correlation ids, device numbers and streams are per process;
- instants are nanoseconds since 1970 where the export says when its session began, else
  nanoseconds since then;
- the copy, the set and the wait of CUPTI get the names that the PyTorch profiler gives them, and
  calls lose the CUDA version in their name (``cudaMalloc_v3020``);
- NVTX ranges that PyTorch wrote become operators with their shapes; others are annotations;
- a CUDA graph that was recorded as a whole is one kernel named after it;
- names of metrics and their units are ours.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path

import polars as pl

from whyidle.errors import NothingRecorded, UnknownEvidence
from whyidle.model import DEVICE_KINDS, DeviceInfo, Evidence, Facts, SourceInfo
from whyidle.readers.nsys_device import COPIES, GRAPHS, KERNELS, SETS, device_parts
from whyidle.readers.nsys_facts import Heading
from whyidle.readers.nsys_frame import Processes, gathered, processes, spans_of, threads_of
from whyidle.readers.nsys_host import CALLS, PROCESS_BITS, RANGES, SYSTEM, host_parts
from whyidle.readers.nsys_samples import samples_of
from whyidle.readers.nsys_tables import MAGIC, Tables, has_tables, opened

NAME = "nsys"

Progress = Callable[[int, int], None]

RECORD = "nsys profile --trace=cuda,nvtx,osrt --pytorch=autograd-shapes-nvtx -o report COMMAND"
_OURS = (KERNELS, CALLS, RANGES, SYSTEM, GRAPHS, "GPU_METRICS", "TARGET_INFO_SESSION_START_TIME",
         "META_DATA_EXPORT")  # fmt: skip
_LONG = (KERNELS, COPIES, SETS, CALLS, RANGES, SYSTEM)
_SIGN = b"CUPTI_ACTIVITY_KIND_"
_UNUSED = {
    "COMPOSITE_EVENTS": "samples of the processor's stacks",
    "SCHED_EVENTS": "switches of threads on the processors",
    "CUDA_CALLCHAINS": "call stacks of CUDA calls",
}
DIGEST_BYTES = 32 << 20


def sniff(path: Path, head: bytes) -> bool:
    """Whether this is an SQLite database with a table that only Nsight Systems writes."""
    if not head.startswith(MAGIC):
        return False
    found = has_tables(path, _OURS)
    return _SIGN in head or path.name.endswith(".nsys.sqlite") if found is None else found


def read(path: Path, progress: Progress | None = None) -> Evidence:
    """The evidence in one export. ``progress`` gets table bytes done and the file's size.

    Raises an EvidenceError with a sentence for whatever is not a whole, sound export.
    """
    size = path.stat().st_size
    with opened(path) as tables:
        if not any(table in tables.columns for table in _OURS):
            raise UnknownEvidence(
                str(path),
                "an SQLite database without the tables of an Nsight Systems export",
                "Name a file written by: nsys export --type sqlite REPORT.nsys-rep.",
            )
        heading = Heading(tables)
        notes = list(heading.problems)
        parts = chain(device_parts(tables), host_parts(tables))
        whole = gathered(_told(parts, tables, progress, size), notes)
        names = _thread_names(tables)
        found = processes(whole, heading.rank())
        samples = samples_of(tables, heading, found)
        notes += _said(tables, found)
    if not found.keys and samples is None:
        raise _nothing(path, tables)
    return _evidence(path, heading, whole, found, names, samples, notes)


def _told(
    parts: Iterable[pl.DataFrame], tables: Tables, progress: Progress | None, size: int
) -> Iterator[pl.DataFrame]:
    """The parts, telling how far along the file they are by the rows of its long tables."""
    expected = max(sum(tables.height(table) for table in _LONG), 1)
    done = 0
    for part in parts:
        yield part
        done += part.height
        if progress is not None:
            progress(size * min(done, expected) // expected, size)


def _evidence(
    path: Path,
    heading: Heading,
    whole: pl.DataFrame,
    found: Processes,
    names: dict[tuple[int, int], str],
    samples: pl.DataFrame | None,
    notes: list[str],
) -> Evidence:
    first_ns = whole["start_ns"].min()
    base_ns = heading.base_ns(first_ns if isinstance(first_ns, int) else 0)
    spans = spans_of(whole, found, base_ns)
    threads = threads_of(spans, found, names, PROCESS_BITS)
    spans = spans.drop("tid")
    tables = {"spans": spans, "threads": threads} if found.keys else {}
    if samples is not None:
        tables["samples"] = samples.with_columns(pl.col("t_ns") + base_ns)
    if not base_ns:
        notes.append("the report does not say when it began, so it joins no other evidence in time")
    counts = dict(spans["source"].value_counts().iter_rows())
    digest = _digest(path)
    sources = tuple(
        SourceInfo(str(path), NAME, rank, counts.get(number, 0), digest, tuple(notes))
        for number, rank in enumerate(found.ranks or (None,))
    )
    return Evidence(tables, _facts(heading, spans, found), sources)


def _facts(heading: Heading, spans: pl.DataFrame, found: Processes) -> Facts:
    work = spans.filter(pl.col("kind").is_in(DEVICE_KINDS)).select("source", "device").unique()
    devices: dict[tuple[int | None, int], DeviceInfo] = {
        (found.ranks[source], device): heading.info(found.keys[source], device)
        for source, device in work.iter_rows()
    }
    versions = {k: v for k, v in heading.versions.items() if k.startswith("nsys")}
    return Facts(devices=devices, world_size=heading.world_size(), versions=versions)


def _thread_names(tables: Tables) -> dict[tuple[int, int], str]:
    rows = tables.few("ThreadNames", "globalTid", "nameId")
    pairs = [(t, n) for t, n in rows if isinstance(t, int) and isinstance(n, int)]
    texts = tables.strings(n for _, n in pairs)
    low = (1 << PROCESS_BITS) - 1
    return {(t - (t & low), t & low): texts[n] for t, n in pairs if n in texts}


def _said(tables: Tables, found: Processes) -> list[str]:
    """Notes on what was deduced, left out, or recorded too coarsely."""
    notes = []
    if len(found.keys) > 1:
        notes.append(
            f"{len(found.keys)} processes used GPUs and do not name their ranks: they are numbered "
            "0 onwards in order of device and process id"
        )
    if found.others > 0:
        notes.append(f"{found.others} processes without work on a GPU are left out")
    if tables.height(GRAPHS):
        notes.append(
            "CUDA graphs were recorded as a whole, so the kernels and gaps inside them are not "
            "seen: record with --cuda-graph-trace=node"
        )
    for table, what in _UNUSED.items():
        if table in tables.columns and tables.few(table, "id", limit=1):
            notes.append(f"{what} ({table}) are not used")
    return notes


def _nothing(path: Path, tables: Tables) -> NothingRecorded:
    some = ", ".join(sorted(table for table in tables.columns if table.isupper())[:4])
    return NothingRecorded(
        str(path),
        "an Nsight Systems export without CUDA work, calls, NVTX ranges or GPU metrics"
        + (f" (tables found: {some})" if some else ""),
        f"Record with: {RECORD}.",
    )


def _digest(path: Path) -> str:
    """SHA-256 of a small file; of a large one of its two ends and its size."""
    size = path.stat().st_size
    digest = hashlib.sha256()
    with path.open("rb") as file:
        digest.update(file.read(DIGEST_BYTES))
        if size <= DIGEST_BYTES:
            return f"sha256:{digest.hexdigest()}"
        file.seek(max(DIGEST_BYTES, size - DIGEST_BYTES), os.SEEK_SET)
        digest.update(file.read(DIGEST_BYTES))
    digest.update(str(size).encode())
    return f"sha256-of-32MiB-at-both-ends:{digest.hexdigest()}"
