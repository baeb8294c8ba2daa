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

HOST_KINDS = ("op", "python", "annotation", "runtime", "overhead", "system")
"""op: framework operator; python: one Python call; annotation: record_function, NVTX ranges and
the profiler's own marks; runtime: CUDA/HIP runtime or driver call; overhead: the profiler at work;
system: a call of the operating system's libraries, such as read or poll."""

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

MESSAGES: dict[str, Any] = {
    "source": pl.UInt16,
    "event": pl.UInt32,  # with source: the span it belongs to
    "group": pl.Categorical,  # process group as written: name and ranks
    "size": pl.Int32,  # ranks in the group
    "sequence": pl.Int64,  # running number in the group
    "collective": pl.Categorical,  # as written, such as "allreduce" or "_allgather_base"
    "elements": pl.Int64,  # of the larger of input and output: the full buffer
    "dtype": pl.Categorical,
    "sender": pl.Int32,  # rank in the group; null where all take part
    "receiver": pl.Int32,
}
"""One row: what a span of communication says of its message."""

OPERATIONS: dict[str, Any] = {
    "source": pl.UInt16,
    "rank": pl.Int32,
    "replica": pl.Int32,  # data-parallel rank
    "stage": pl.Int32,  # of the pipeline
    "step": pl.Int64,
    "name": pl.Categorical,  # forward-compute, forward-send, ..., as recorded
    "sequence": pl.Int32,  # running number of its kind in the rank's step
    "micro_batch": pl.Int32,  # -1 where it has none
    "chunk": pl.Int32,  # part of the model, counted over all stages; -1 where it has none
    "start_ns": pl.Int64,  # from the start of the step
    "end_ns": pl.Int64,
}
"""One row: one operation of one rank in one step of a pipeline, as a trainer recorded it."""

SAMPLES: dict[str, Any] = {
    "source": pl.UInt16,  # index into Evidence.sources
    "rank": pl.Int32,  # null when the source knows machines, not ranks
    "device": pl.Int32,  # index as the source counts: the machine's for nvidia-smi and DCGM
    "host": pl.Categorical,  # machine; null when the source does not name it
    "gpu": pl.Categorical,  # what the source calls the GPU: uuid, bus id or index, as text
    "process": pl.Int64,  # pid a reading is about; null when it is about the whole GPU
    "job": pl.Categorical,  # the scheduler's job, or pod/container; null when the source has none
    "metric": pl.Categorical,  # of METRICS or HOST_METRICS, or "user/" + the user's own tag
    "t_ns": pl.Int64,  # nanoseconds since 1970 where the source says so; null without a clock
    "period_ns": pl.Int64,  # the span that ends at t_ns and that the reading stands for
    "value": pl.Float64,  # in the unit of METRICS; null when unknown
    "unit": pl.Categorical,
    "reason": pl.Categorical,  # why the value is unknown; null when it is known
}
"""One row: one reading of a metric. Unknown readings are rows too, with their reason."""

METRICS: dict[str, str] = {
    "gpu_utilization": "ratio",  # share of the period in which any kernel was resident
    "memory_utilization": "ratio",  # share of the period in which device memory was read or written
    "graphics_engine_active": "ratio",
    "sm_active": "ratio",  # cycles an SM held a warp, averaged over SMs
    "sm_occupancy": "ratio",  # resident warps over the most that fit
    "tensor_active": "ratio",
    "dram_active": "ratio",
    "fp64_active": "ratio",
    "fp32_active": "ratio",
    "fp16_active": "ratio",
    "encoder_utilization": "ratio",
    "decoder_utilization": "ratio",
    "memory_used": "bytes",
    "memory_free": "bytes",
    "memory_total": "bytes",
    "memory_reserved": "bytes",
    "power": "W",
    "power_limit": "W",
    "temperature": "C",
    "sm_clock": "Hz",
    "sm_clock_max": "Hz",
    "memory_clock": "Hz",
    "memory_clock_max": "Hz",
    "pcie_tx": "bytes/s",  # as the GPU sees it: device to host
    "pcie_rx": "bytes/s",
    "nvlink_tx": "bytes/s",
    "nvlink_rx": "bytes/s",
    "pcie_gen": "count",
    "pcie_gen_max": "count",
    "pcie_width": "count",
    "pcie_width_max": "count",
    "fan_speed": "ratio",
    "memory_temperature": "C",
    "jpeg_utilization": "ratio",
    "ofa_utilization": "ratio",
    "graphics_clock": "Hz",
    "graphics_clock_max": "Hz",
    "video_clock": "Hz",
    "bar1_used": "bytes",
    "energy": "J",  # counted since the driver was loaded
    "ecc_corrected": "count",  # counted since the driver was loaded
    "ecc_uncorrected": "count",
    "pcie_replays": "count",
    "power_violation": "ratio",  # share of the period held down by the power limit
    "thermal_violation": "ratio",
    "throttle_gpu_idle": "ratio",  # 1 when the clocks were low for this reason at the instant
    "throttle_clocks_setting": "ratio",
    "throttle_sw_power_cap": "ratio",
    "throttle_hw_slowdown": "ratio",
    "throttle_hw_thermal_slowdown": "ratio",
    "throttle_hw_power_brake": "ratio",
    "throttle_sw_thermal_slowdown": "ratio",
    "throttle_sync_boost": "ratio",
}
"""Our name of a metric -> its unit. Readers translate their source's names and units."""

HOST_METRICS: dict[str, str] = {
    "host/cpu_utilization": "ratio",  # of the machine or of the job's process, as the source says
    "host/memory_utilization": "ratio",
    "host/cpus": "count",  # logical CPUs of the machine
    "host/cpu_time": "s",  # counted since it started, over all CPUs, without idle and I/O wait
    "host/load": "count",  # threads that run or want to, averaged over a minute
    "job/cpus": "count",  # CPUs that the job may use
    "job/cpu_time": "s",  # counted since the job started, over its CPUs
    "job/cpu_quota": "s",  # CPU time that a container may use in each period
    "job/cpu_period": "s",
    "job/quota_periods": "count",  # counted: periods in which the container ran
    "job/quota_periods_held": "count",  # counted: those of them in which its quota ran out
    "job/threads_running": "count",  # that run or want to
    "job/threads_on_disk": "count",  # that wait for a disk and cannot be interrupted
    "job/cpus_used": "count",  # CPUs' worth of CPU time that the job's processes took, per second
    "job/cpu_pressure": "ratio",  # share of the period in which a thread waited for a CPU
    "job/memory_used": "bytes",  # in memory; what processes share counts in each of them
    "job/read_bytes": "bytes/s",  # from storage, by the job's processes
    "job/written_bytes": "bytes/s",
    "job/processes": "count",
    "host/net_received": "bytes/s",  # over all interfaces but the loopback
    "host/net_sent": "bytes/s",
    "host/memory_available": "bytes",  # that programs could take without swapping
}
"""Metrics of a machine, or of a job on it, which are about none of its GPUs -> their unit."""

SETTINGS: dict[str, Any] = {
    "source": pl.UInt16,
    "rank": pl.Int32,
    "device": pl.Int32,
    "host": pl.Categorical,
    "gpu": pl.Categorical,
    "key": pl.Categorical,
    "value": pl.String,  # null when unknown
    "reason": pl.Categorical,  # why it is unknown; null when it is known
}
"""One row: one fact in words, such as a throttle reason, a mode or a driver version."""

COLLECTIVES: dict[str, Any] = {
    "source": pl.UInt16,
    "event": pl.UInt32,  # ordinal in its dump: the order in which the host enqueued
    "rank": pl.Int32,  # rank in the job
    "group": pl.Categorical,  # process group, as in the groups table
    "sequence": pl.Int64,  # running number in the group, from 1; collectives and p2p apart
    "p2p": pl.Boolean,
    "operation": pl.Int64,  # running number over all operations of the group; null when not said
    "name": pl.Categorical,  # such as "nccl:all_reduce"
    "bytes_in": pl.Int64,
    "bytes_out": pl.Int64,
    "shapes": pl.Categorical,  # raw text
    "types": pl.Categorical,  # raw text
    "state": pl.Enum(["scheduled", "started", "completed"]),
    "created_ns": pl.Int64,
    "started_ns": pl.Int64,
    "completed_ns": pl.Int64,
    "duration_ns": pl.Int64,  # on the device, where the recorder timed it
    "timeout_ns": pl.Int64,
    "caller": pl.String,  # thread that enqueued it, as the recorder names it
    "stack": pl.Categorical,  # innermost call first, one "file(line): function" per line
}
"""One row: one collective or point-to-point operation of one rank, as a flight recorder kept it."""

GROUPS: dict[str, Any] = {
    "source": pl.UInt16,
    "rank": pl.Int32,  # the rank that said so
    "group": pl.Categorical,
    "description": pl.String,
    "ranks": pl.List(pl.Int32),  # ranks in the job
    "last_enqueued": pl.Int64,  # sequence of the last operation; null when not said
    "last_completed": pl.Int64,
}
"""One row: one process group as one rank knows it."""

ALLOCATIONS: dict[str, Any] = {
    "source": pl.UInt16,
    "event": pl.UInt32,  # ordinal in the device's trace
    "rank": pl.Int32,
    "device": pl.Int32,
    "action": pl.Categorical,  # alloc, free_requested, free_completed, segment_alloc, oom, ...
    "t_ns": pl.Int64,  # null when the recorder kept no time
    "address": pl.UInt64,
    "bytes": pl.Int64,
    "lane": pl.Int64,  # stream
    "free_bytes": pl.Int64,  # free on the device when an allocation failed; else null
    "stack": pl.Categorical,  # innermost call first, one "file(line): function" per line
}
"""One row: one event of the caching allocator of one device."""

MEMORY_BLOCKS: dict[str, Any] = {
    "source": pl.UInt16,
    "rank": pl.Int32,
    "device": pl.Int32,
    "segment": pl.UInt64,  # address of the segment that holds the block
    "segment_bytes": pl.Int64,
    "segment_kind": pl.Categorical,  # small, large
    "pool": pl.Categorical,  # private pool, such as a CUDA graph's; null for the common one
    "expandable": pl.Boolean,
    "lane": pl.Int64,  # stream
    "address": pl.UInt64,
    "bytes": pl.Int64,
    "requested_bytes": pl.Int64,
    "state": pl.Categorical,  # active_allocated, active_pending_free, inactive
    "stack": pl.Categorical,  # as in allocations
}
"""One row: one block of the caching allocator at the moment of the snapshot."""

LINKS: dict[str, Any] = {
    "source": pl.UInt16,
    "host": pl.Categorical,
    "one": pl.Categorical,  # GPU0, NIC1, ...
    "other": pl.Categorical,
    "kind": pl.Categorical,  # NV18, PIX, PXB, PHB, NODE, SYS, X; for peer access OK, CNS, ...
    "about": pl.Categorical,  # topology, peer_read, peer_write, nvlink, pcie
}
"""One row: how two parts of one machine are connected, as a matrix or an XML file says."""

MOMENTS: dict[str, Any] = {
    "source": pl.UInt16,
    "rank": pl.Int32,  # null in a job of one process that says none
    "process": pl.Int64,  # pid
    "kind": pl.Enum(
        [
            "process",
            "step",
            "loader_wait",
            "loader_start",
            "evaluation",
            "checkpoint",
            "collector",
            "profiler",
            "stalled",
        ]
    ),  # process: from the import of torch to the last event
    "number": pl.Int64,  # of a step or of a loader; else null
    "start_ns": pl.Int64,  # Unix nanoseconds
    "end_ns": pl.Int64,
    "length_ns": pl.Int64,  # what it lasted within [start_ns, end_ns): all of it, but for the
    # loader_wait of a step, a sum of waits somewhere in it
    "file": pl.Categorical,
    "line": pl.Int32,
    "what": pl.String,
}
"""One row: one stretch of the whole run of one process, as a hook inside it timed it."""

BATCHES: dict[str, Any] = {
    "source": pl.UInt16,
    "rank": pl.Int32,  # of the training process that the batch is for
    "process": pl.Int64,  # pid that fetched it
    "worker": pl.Int32,  # number of the loader worker; null for the training process itself
    "loader": pl.Int32,  # running number of the loader in its training process
    "start_ns": pl.Int64,  # Unix nanoseconds
    "wall_ns": pl.Int64,  # to fetch, transform and collate the batch
    "cpu_ns": pl.Int64,  # CPU time of the fetching thread in it
    "collate_ns": pl.Int64,  # part of wall_ns
    "read_bytes": pl.Int64,  # asked of the system for reading meanwhile; null unless known
    "items": pl.Int64,  # samples in the batch
}
"""One row: one batch that a loader's process made, as a hook inside it timed it."""

SITES: dict[str, Any] = {
    "source": pl.UInt16,
    "rank": pl.Int32,
    "process": pl.Int64,
    "what": pl.Categorical,  # loader, optimizer, data_parallel, anomaly_mode, threads, ...
    "file": pl.Categorical,
    "line": pl.Int32,
    "detail": pl.String,  # JSON text: what was chosen there
}
"""One row: a line of the user's source where something was made or a switch was set."""

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

JOB_CLAIMS: dict[str, Any] = {
    "number": pl.UInt32,  # the sampled GPU or training process: ``number`` of views.moments.devices
    "start_ns": pl.Int64,  # on the clock of the samples or moments
    "end_ns": pl.Int64,
    "part": pl.Enum(["busy", "idle"]),  # which part of what the readings say of the interval
    "weight": pl.Float64,  # 0..1, the share of that part that is lost
    "level": LEVELS,
    "what": pl.String,  # a clause for the report: what the readings show; null when nothing more
    "file": pl.Categorical,  # source file of the line to change; null when unknown
    "line": pl.Int32,
}
"""One row: one interval of one device of the job ledger that a cause says was lost, in part or
wholly."""

SCHEMAS: dict[str, dict[str, Any]] = {
    "spans": SPANS,
    "threads": THREADS,
    "messages": MESSAGES,
    "operations": OPERATIONS,
    "samples": SAMPLES,
    "settings": SETTINGS,
    "collectives": COLLECTIVES,
    "groups": GROUPS,
    "allocations": ALLOCATIONS,
    "memory_blocks": MEMORY_BLOCKS,
    "links": LINKS,
    "moments": MOMENTS,
    "batches": BATCHES,
    "sites": SITES,
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
