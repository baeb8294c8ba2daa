"""What an Nsight Systems export says beside its events: clock, devices, ranks, trouble."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from whyidle.model import DeviceInfo
from whyidle.readers.nsys_tables import Tables

DAY_NS = 86_400_000_000_000
LATEST_NS = 1 << 62
PROCESS_BITS = 24
NOTES_LIMIT = 8
NOTE_LENGTH = 240

_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
_SIZES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_VARIABLE = re.compile(r'^(\w+)="?(\d{1,9})"?$')
_WARNING, _ERROR = 2, 3


class Gpu(NamedTuple):
    """One GPU of the machine. number: as the machine counts; name: uuid, bus or the number."""

    number: int
    name: str
    info: DeviceInfo


class Heading:
    """The small tables of an export."""

    def __init__(self, tables: Tables) -> None:
        """Read them; what is not there is absent."""
        self.versions = _exported(tables)
        self.gpus = _gpus(tables)
        self._visible = tables.few(
            "TARGET_INFO_CUDA_DEVICE", "pid", "cudaId", "gpuId", "numMultiprocessors"
        )
        self._environment = _environment(tables)
        self.session_ns = _session_ns(tables, self.versions)
        self.problems = _problems(tables)

    def base_ns(self, first_ns: int) -> int:
        """What to add to the export's instants to get nanoseconds since 1970; 0 = unknown.

        Instants count from the start of the session, unless the export was told to shift them to
        the wall clock (``--ts-normalize``), which their size gives away.
        """
        return 0 if self.session_ns is None or first_ns > DAY_NS * 3650 else self.session_ns

    def gpu_of(self, process: int, device: int) -> Gpu | None:
        """The GPU that a process (global id) counts as ``device``."""
        pid = process >> PROCESS_BITS & ((1 << PROCESS_BITS) - 1)
        for owner, number, gpu, _ in self._visible:
            if number == device and owner in (pid, None, 0):
                return self.gpus.get(gpu) if isinstance(gpu, int) else None
        return None if self._visible else self.gpus.get(device)

    def info(self, process: int, device: int) -> DeviceInfo:
        """What is known of a device of a process."""
        found = self.gpu_of(process, device)
        if found is not None:
            return found.info
        listed = [sms for _, number, _, sms in self._visible if number == device]
        return DeviceInfo(sms=_positive(listed[0]) if listed else None, vendor="nvidia")

    def rank(self) -> int | None:
        """The rank that the launcher gave to the profiled command; None when it gave none."""
        return next((self._environment[k] for k in _RANKS if k in self._environment), None)

    def world_size(self) -> int | None:
        """The number of ranks that the launcher said there are."""
        return next((self._environment[k] for k in _SIZES if self._environment.get(k, 0) > 0), None)


def _exported(tables: Tables) -> dict[str, str]:
    wanted = {
        "EXPORT_SCHEMA_VERSION": "nsys_schema_version",
        "EXPORT_PRODUCT_VERSION": "nsys_version",
        "EXPORT_PARAM_TIME_NORMALIZE": "time_normalize",
        "EXPORT_CONFIG_TIME_SHIFT": "time_shift",
        "EXPORT_PARAM_TIME_SHIFT": "time_shift",
    }
    found: dict[str, str] = {}
    for table in ("META_DATA_EXPORT", "EXPORT_SCHEMA"):
        for name, value in tables.few(table, "name", "value", limit=2000):
            if name in wanted and isinstance(value, str):
                found.setdefault(wanted[str(name)], value[:80])
    return found


def _environment(tables: Tables) -> dict[str, int]:
    """The launcher's counts among the environment variables; no other variable is looked at."""
    found: dict[str, int] = {}
    for name, value in tables.few("META_DATA_CAPTURE", "name", "value"):
        if isinstance(name, str) and name.endswith("ENVIRONMENT_VARIABLE"):
            match = _VARIABLE.match(value) if isinstance(value, str) else None
            if match and match[1] in (*_RANKS, *_SIZES):
                found.setdefault(match[1], int(match[2]))
    return found


def _session_ns(tables: Tables, said: Mapping[str, str]) -> int | None:
    """When the session began, nanoseconds since 1970, on the clock of the exported instants."""
    rows = tables.few("TARGET_INFO_SESSION_START_TIME", "utcEpochNs", limit=1)
    start = rows[0][0] if rows else None
    if not isinstance(start, int) or not 0 < start < LATEST_NS:
        return None
    if said.get("time_normalize", "").lower() == "true":
        return None
    shift = said.get("time_shift", "0")
    return start - int(shift) if re.fullmatch(r"-?\d{1,18}", shift) else start


def _gpus(tables: Tables) -> dict[int, Gpu]:
    """The machine's GPUs by number; the table has had two names and two spellings of columns."""
    table = "TARGET_INFO_GPU" if tables.has("TARGET_INFO_GPU") else "TARGET_INFO_CUDA_GPU"
    rows = tables.few(
        table, "id", "deviceId", "name", "smCount", "numMultiprocessors", "totalMemory",
        "computeMajor", "computeMinor", "computeCapabilityMajor", "computeCapabilityMinor",
        "maxWarpsPerSm", "maxWarpsPerMultiprocessor", "threadsPerWarp", "numThreadsPerWarp",
        "uuid", "busLocation", limit=1024,
    )  # fmt: skip
    found: dict[int, Gpu] = {}
    for (
        key, old_key, name, sms, old_sms, memory, major, minor, old_major, old_minor,
        warps, old_warps, lanes, old_lanes, uuid, bus,
    ) in rows:  # fmt: skip
        number = key if isinstance(key, int) else old_key
        if not isinstance(number, int) or not 0 <= number < 1 << 31:
            continue
        capability = _positive(_first(major, old_major)), _first(minor, old_minor)
        warp = _positive(_first(warps, old_warps)), _positive(_first(lanes, old_lanes))
        info = DeviceInfo(
            name=name.strip() or None if isinstance(name, str) else None,
            sms=_positive(_first(sms, old_sms)),
            vendor="nvidia",
            capability=(capability[0], capability[1])
            if capability[0] is not None and isinstance(capability[1], int)
            else None,
            memory_bytes=_positive(memory),
            threads_per_sm=warp[0] * warp[1] if warp[0] and warp[1] else None,
        )
        label = f"GPU-{uuid}" if isinstance(uuid, str) and uuid else bus
        found[number] = Gpu(
            number, label if isinstance(label, str) and label else str(number), info
        )
    return found


def _problems(tables: Tables) -> list[str]:
    """Warnings and errors that the profiler noted about this recording."""
    found: dict[str, None] = {}
    for severity, text in tables.few("DIAGNOSTIC_EVENT", "severity", "text"):
        if severity in (_WARNING, _ERROR) and isinstance(text, str):
            found[f"the profiler said: {' '.join(text.split())[:NOTE_LENGTH]}"] = None
    told = list(found)
    if len(told) > NOTES_LIMIT:
        told = [*told[:NOTES_LIMIT], f"and {len(told) - NOTES_LIMIT} more of its warnings"]
    return told


def _first(*values: object) -> object:
    return next((value for value in values if value is not None), None)


def _positive(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
