"""Builds Nsight Systems exports of chosen schema years, row by row, for the reader's tests."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path

SESSION_NS = 1_700_000_000_000_000_000
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
COPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
SET = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
WAIT = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
CALL = "CUPTI_ACTIVITY_KIND_RUNTIME"

_SHARED = "start end deviceId contextId streamId correlationId globalPid"
_GRID = "gridX gridY gridZ blockX blockY blockZ"
_GPU = "id name busLocation totalMemory smCount computeMajor computeMinor maxWarpsPerSm"
COLUMNS: dict[int, dict[str, str]] = {
    2021: {
        KERNEL: f"{_SHARED} demangledName shortName {_GRID}",
        COPY: f"{_SHARED} bytes copyKind srcKind dstKind",
        SET: f"{_SHARED} value bytes",
        CALL: "start end eventClass globalTid correlationId nameId returnValue",
        "NVTX_EVENTS": "start end eventType globalTid text",
        "TARGET_INFO_CUDA_GPU": "deviceId name numMultiprocessors numThreadsPerWarp "
        "maxWarpsPerMultiprocessor computeCapabilityMajor computeCapabilityMinor totalMemory",
        "ThreadNames": "nameId priority globalTid",
    },
    2023: {
        KERNEL: f"{_SHARED} demangledName shortName mangledName {_GRID} graphNodeId",
        COPY: f"{_SHARED} bytes copyKind srcKind dstKind graphNodeId",
        SET: f"{_SHARED} value bytes graphNodeId memKind",
        GRAPH: f"{_SHARED} graphId",
        WAIT: f"{_SHARED} syncType eventId",
        CALL: "start end eventClass globalTid correlationId nameId returnValue callchainId",
        "OSRT_API": "start end eventClass globalTid correlationId nameId nestingLevel",
        "NVTX_EVENTS": "start end eventType globalTid text textId domainId",
        "CUPTI_ACTIVITY_KIND_OVERHEAD": "start end globalTid nameId overheadType",
        "TARGET_INFO_GPU": f"{_GPU} threadsPerWarp uuid",
        "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId pid uuid numMultiprocessors",
        "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime localTime",
        "ThreadNames": "nameId priority globalTid",
        "GPU_METRICS": "timestamp typeId metricId value",
        "TARGET_INFO_GPU_METRICS": "typeId sourceId typeName metricId metricName",
        "META_DATA_CAPTURE": "name value",
        "META_DATA_EXPORT": "name value",
        "DIAGNOSTIC_EVENT": "timestamp severity text",
    },
}
COLUMNS[2026] = {
    **COLUMNS[2023],
    KERNEL: COLUMNS[2023][KERNEL] + " greenContextId clusterX tensorSizeMinusOneElements",
    COPY: COLUMNS[2023][COPY] + " greenContextId copyCount",
    WAIT: COLUMNS[2023][WAIT] + " deprecatedSyncType eventSyncId",
}


def process(pid: int) -> int:
    """The global id of a process."""
    return (1 << 48) | (pid << 24)


def thread(pid: int, tid: int) -> int:
    """The global id of a thread."""
    return process(pid) | tid


class Export:
    """An export under construction: rows by table; texts are numbered on the way."""

    def __init__(self, year: int = 2026) -> None:
        """Have all tables of the year, without rows."""
        self.year = year
        self.rows: dict[str, list[Mapping[str, object]]] = {t: [] for t in COLUMNS[year]}
        self.texts: dict[str, int] = {}

    def text(self, value: str) -> int:
        """The number of a text in StringIds."""
        return self.texts.setdefault(value, len(self.texts) + 1)

    def add(self, table: str, **row: object) -> None:
        """One row; columns that the year does not have are forgotten."""
        self.rows.setdefault(table, []).append(row)

    def launch(
        self, name: str, start: int, end: int, call: tuple[int, int] | None, *, number: int,
        pid: int = 10, tid: int = 11, device: int = 0, stream: int = 7, grid: int = 1,
        table: str = KERNEL, by: str = "cudaLaunchKernel_v7000", **more: object,
    ) -> None:  # fmt: skip
        """Device work and the call that launched it."""
        if call is not None:
            self.call(by, *call, number=number, pid=pid, tid=tid)
        self.add(
            table, start=start, end=end, deviceId=device, streamId=stream, contextId=1,
            correlationId=number, globalPid=process(pid), demangledName=self.text(name),
            shortName=self.text("short"), gridX=grid, gridY=2, gridZ=1, blockX=128, blockY=1,
            blockZ=1, **more,
        )  # fmt: skip

    def call(
        self, name: str, start: int, end: int, *, number: int, pid: int = 10, tid: int = 11
    ) -> None:
        """A CUDA call."""
        self.add(
            CALL, start=start, end=end, eventClass=0, globalTid=thread(pid, tid),
            correlationId=number, nameId=self.text(name), returnValue=0,
        )  # fmt: skip

    def range(
        self, name: str, start: int, end: int | None, *, pid: int = 10, tid: int = 11,
        kind: int = 59, inline: bool = True,
    ) -> None:  # fmt: skip
        """An NVTX range, its text in the table or in StringIds."""
        where = {"text": name} if inline else {"textId": self.text(name)}
        self.add(
            "NVTX_EVENTS", start=start, end=end, eventType=kind, globalTid=thread(pid, tid), **where
        )

    def write(self, path: Path, without: Iterable[str] = ()) -> Path:
        """The database; ``without`` names tables, or TABLE.column, to leave out."""
        left_out = set(without)
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
            database.executemany(
                "INSERT INTO StringIds VALUES (?, ?)", [(n, t) for t, n in self.texts.items()]
            )
            for table, rows in self.rows.items():
                listed = COLUMNS[self.year].get(table, " ".join(rows[0]) if rows else "").split()
                columns = [c for c in listed if f"{table}.{c}" not in left_out]
                if not columns or table in left_out:
                    continue
                named = ", ".join(f'"{column}"' for column in columns)
                database.execute(f'CREATE TABLE "{table}" ({named})')
                holes = ", ".join("?" * len(columns))
                database.executemany(
                    f'INSERT INTO "{table}" VALUES ({holes})',
                    [[row.get(column) for column in columns] for row in rows],
                )
        return path


def training(year: int = 2026, steps: int = 5, pid: int = 10) -> Export:
    """Steps of 1 ms: 100 us of host work, a launch, a kernel of 600 us, a wait of 50 us beyond it.

    Per step the device is empty 100 + 10 us before the kernel begins, and 290 us after it: the
    wait holds it 50 us, Python the other 240 us.
    """
    made = Export(year)
    for number in range(steps):
        at = number * 1_000_000
        made.range(f"step {number}", at, at + 900_000, pid=pid)
        made.range(f"aten::mm, seq = {number}, op_id = {40 + number}, sizes = [[8, 8], [8, 8]]",
                   at + 60_000, at + 106_000, pid=pid)  # fmt: skip
        made.launch("gemm<float>(int)", at + 110_000, at + 710_000, (at + 100_000, at + 105_000),
                    number=number + 1, pid=pid, grid=32)  # fmt: skip
        made.call("cudaStreamSynchronize_v3020", at + 108_000, at + 760_000, number=1000 + number,
                  pid=pid)  # fmt: skip
    if year > 2021:
        made.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=SESSION_NS)
        made.add(
            "TARGET_INFO_GPU", id=3, name="NVIDIA H100", smCount=132, computeMajor=9,
            computeMinor=0, totalMemory=80 << 30, maxWarpsPerSm=64, threadsPerWarp=32, uuid="abc",
        )  # fmt: skip
        made.add("TARGET_INFO_CUDA_DEVICE", gpuId=3, cudaId=0, pid=pid, numMultiprocessors=132)
        made.add("META_DATA_EXPORT", name="EXPORT_SCHEMA_VERSION", value="3.20.0")
    else:
        made.add(
            "TARGET_INFO_CUDA_GPU", deviceId=0, name="Tesla V100", numMultiprocessors=80,
            numThreadsPerWarp=32, maxWarpsPerMultiprocessor=64, computeCapabilityMajor=7,
            computeCapabilityMinor=0, totalMemory=16 << 30,
        )  # fmt: skip
    return made
