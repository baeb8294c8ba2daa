"""The nouns of the evidence: table schemas, Evidence, claims, and how causes are declared.

Instants are Int64 nanoseconds on the evidence's own clock (for a PyTorch trace
``baseTimeNanoseconds`` + ``ts``); intervals are half open, [start_ns, end_ns). A table that was
never recorded is absent from ``Evidence.tables``, never empty. Null means "not recorded".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

CPU_DEVICE = -1
"""The device number of a run without a GPU; printed as ``cpu``."""

HOST_KINDS = ("op", "python", "annotation", "runtime", "overhead")
"""op: framework operator; python: one Python call; annotation: record_function and the
profiler's own marks; runtime: CUDA/HIP runtime or driver call; overhead: the profiler at work."""

DEVICE_KINDS = ("kernel", "copy", "set")
"""What occupies a device lane. Synchronisation records and annotations echoed on the device are
not device work and are kept out of these."""

KINDS = pl.Enum([*HOST_KINDS, *DEVICE_KINDS, "device_annotation", "device_sync"])
STATES = pl.Enum(["compute", "communication", "copy", "empty"])
LEVELS = pl.Enum(["seen", "deduced", "suspected"])

SPANS: dict[str, Any] = {
    "row": pl.UInt32,  # unique in the Evidence, 0.. in order of start_ns
    "source": pl.UInt16,  # index into Evidence.sources
    "event": pl.UInt32,  # ordinal of the event in its source file, from 0
    "rank": pl.Int32,  # rank in the job; null when the source did not say
    "device": pl.Int32,  # device index in its process; null for host spans
    "thread": pl.UInt32,  # index into the threads table; null for device spans
    "lane": pl.Int64,  # stream of a device span; null for host spans
    "kind": KINDS,
    "name": pl.Categorical,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "correlation": pl.Int64,  # joins a launch call to its device work, within one source
    "external": pl.Int64,  # "External id": joins device work and calls to the operator
    "sequence": pl.Int64,  # autograd sequence number: joins backward to forward operators
    "bytes": pl.Int64,  # moved by a copy or set
    "blocks": pl.Int64,  # thread blocks of a kernel (product of the grid)
    "block_threads": pl.Int32,  # threads in one block
    "occupancy": pl.Float32,  # 0..1, estimated achieved occupancy as recorded
    "shapes": pl.Categorical,  # operator input shapes, raw JSON text
    "types": pl.Categorical,  # operator input types, raw JSON text
    "stack": pl.Categorical,  # Python call stack of an operator, as recorded
}
"""One row: one recorded interval of a host thread or a device stream."""

THREADS: dict[str, Any] = {
    "thread": pl.UInt32,  # key, unique in the Evidence
    "rank": pl.Int32,
    "process": pl.String,  # pid as written
    "name": pl.String,  # tid as written, or the thread's recorded name
}
"""One row: one host thread that recorded anything."""

SAMPLES: dict[str, Any] = {
    "rank": pl.Int32,
    "device": pl.Int32,
    "metric": pl.Categorical,
    "t_ns": pl.Int64,
    "value": pl.Float64,
    "unit": pl.Categorical,
}
"""One row: one reading of a metric, such as bytes reserved by the allocator."""

CLAIMS: dict[str, Any] = {
    "rank": pl.Int32,
    "device": pl.Int32,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "weight": pl.Float64,  # 0..1, the part of the interval that is lost
    "level": LEVELS,
    "file": pl.Categorical,  # source file of the line to change; null when unknown
    "line": pl.Int32,
    "op": pl.Categorical,  # operator, call or frame to name; null when unknown
    "thread": pl.UInt32,  # host thread; null when unknown
    "row": pl.UInt32,  # the span that shows it best; null when none
    "peer": pl.Int32,  # rank waited for; null when none
    "since_ns": pl.Int64,  # when the peer's lateness began; null when none
}
"""One row: one interval of one device that a cause says was lost."""

SCHEMAS: dict[str, dict[str, Any]] = {
    "spans": SPANS,
    "threads": THREADS,
    "samples": SAMPLES,
}


def frame(schema: Mapping[str, Any], rows: Any = None) -> pl.DataFrame:
    """A frame of exactly this schema; columns that ``rows`` lacks become null."""
    if rows is None:
        return pl.DataFrame(schema=dict(schema))
    found = rows if isinstance(rows, pl.DataFrame) else pl.DataFrame(rows, infer_schema_length=None)
    have = set(found.columns)
    return found.select(
        (pl.col(name) if name in have else pl.lit(None)).cast(dtype).alias(name)
        for name, dtype in schema.items()
    )


@dataclass(frozen=True)
class SourceInfo:
    """Where evidence came from: reader, digest of the bytes, clock, and what it had to say."""

    path: str
    reader: str
    rank: int | None
    events: int
    digest: str | None = None
    notes: tuple[str, ...] = ()
    clock_offset_ns: int = 0
    clock_error_ns: int | None = None


@dataclass(frozen=True)
class DeviceInfo:
    """What is known of one device of one rank; None = the source did not say."""

    name: str | None = None
    sms: int | None = None
    vendor: str | None = None  # "nvidia", "amd", "mtia"
    capability: tuple[int, int] | None = None  # CUDA compute capability
    memory_bytes: int | None = None
    threads_per_sm: int | None = None


@dataclass(frozen=True)
class Facts:
    """What holds for the whole run. ``devices`` is keyed by (rank, device)."""

    devices: Mapping[tuple[int | None, int], DeviceInfo] = field(default_factory=dict)
    world_size: int | None = None
    backend: str | None = None
    flags: Mapping[str, Any] = field(default_factory=dict)  # with_stack, record_shapes, ...
    versions: Mapping[str, str] = field(default_factory=dict)

    def device(self, rank: int | None, device: int) -> DeviceInfo:
        """What is known of a device; a DeviceInfo full of None when nothing is.

        Traces of AMD jobs number the work by the machine and list the devices by the process, so
        a number that is not listed is taken to be like the listed ones if those are all alike.
        """
        known = self.devices.get((rank, device))
        if known is not None:
            return known
        listed = {info for (owner, _), info in self.devices.items() if owner == rank}
        return listed.pop() if len(listed) == 1 else DeviceInfo()


@dataclass(frozen=True)
class Evidence:
    """Everything that was read, as named frames with the schemas above. Immutable."""

    tables: Mapping[str, pl.DataFrame]
    facts: Facts = Facts()
    sources: tuple[SourceInfo, ...] = ()

    def table(self, name: str) -> pl.DataFrame:
        """The table, or an empty one of its schema when it was never recorded."""
        found = self.tables.get(name)
        return frame(SCHEMAS[name]) if found is None else found

    def has(self, name: str) -> bool:
        """Whether the table was recorded and holds rows."""
        return name in self.tables and self.tables[name].height > 0


def evidence_of(
    spans: list[dict[str, Any]], facts: Facts | None = None, threads: tuple[str, ...] = ("main",)
) -> Evidence:
    """Tiny evidence from literal rows, for examples and tests.

    Each row needs kind, name, start_ns, end_ns; host rows a ``thread`` (index into ``threads``),
    device rows a ``device``. Rows are ordered and numbered here.
    """
    rows = frame(SPANS, spans).sort("start_ns", "end_ns", descending=[False, True])
    rows = rows.with_columns(
        pl.int_range(pl.len(), dtype=pl.UInt32).alias("row"),
        pl.int_range(pl.len(), dtype=pl.UInt32).alias("event"),
        pl.col("source").fill_null(0),
    )
    ranks = [r for r in rows["rank"].unique().to_list() if r is not None]
    rank = ranks[0] if len(ranks) == 1 else None
    table = frame(
        THREADS,
        {
            "thread": list(range(len(threads))),
            "rank": [rank] * len(threads),
            "process": ["1"] * len(threads),
            "name": list(threads),
        },
    )
    source = SourceInfo(path="example", reader="example", rank=rank, events=rows.height)
    return Evidence({"spans": rows, "threads": table}, facts or Facts(), (source,))
