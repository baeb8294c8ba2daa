"""What a trace says beside its events: devices, rank, how it was recorded, what went wrong."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from whyidle.errors import UnreadableEvidence
from whyidle.model import DeviceInfo, Facts
from whyidle.readers.json_text import null_for_no_number
from whyidle.readers.torch_names import as_integer
from whyidle.readers.torch_times import BASE_LIMIT_NS

FLAGS = ("with_stack", "record_shapes", "profile_memory", "with_flops", "with_modules")
NOTES_LIMIT = 12
NOTE_LENGTH = 240

_INCOMPLETE = re.compile(
    r"dropp|out.of.range|lost|truncat|exceeded|overflow|incomplete|missing|buffer.*full|"
    r"terminating tracing",
    re.I,
)
_OUT_OF_RANGE = re.compile(r"Record counts: Out-of-range = (\d+)")
_OUTSIDE_WINDOW = "the profiler left out {} records that it took to lie outside its window"
_VENDOR_NAMES = (
    ("amd", re.compile(r"\b(AMD|Instinct|Radeon)\b", re.I)),
    ("nvidia", re.compile(r"\b(NVIDIA|Tesla|GeForce|Quadro|TITAN|RTX)\b", re.I)),
    ("mtia", re.compile(r"\bMTIA\b", re.I)),
    ("intel", re.compile(r"\b(Intel|Data Center GPU Max|Arc)\b", re.I)),
)
_VENDOR_KEYS = (
    ("amd", ("hip_", "roctracer", "rocprofiler")),
    ("nvidia", ("cuda_", "cupti")),
)


class Heading:
    """The keys of a trace other than its events, decoded."""

    def __init__(self, path: str, keys: Mapping[str, bytes]) -> None:
        """Decode the raw values; one that is no JSON is a broken file."""
        self.values: dict[str, Any] = {}
        for key, raw in keys.items():
            try:
                self.values[key] = msgspec.json.decode(null_for_no_number(raw)[0])
            except (msgspec.DecodeError, RecursionError) as error:
                raise UnreadableEvidence(
                    path,
                    f"not valid JSON: the value of {key!r} cannot be read ({error})",
                    "Record the trace again with a current PyTorch, or repair the file.",
                ) from error
        self.problems: list[str] = []

    @property
    def distributed(self) -> dict[str, Any]:
        """``distributedInfo``, or nothing."""
        found = self.values.get("distributedInfo")
        return found if isinstance(found, dict) else {}

    @property
    def rank(self) -> int | None:
        """The rank the trace states; None when it does not, or states nonsense."""
        found = as_integer(self.distributed.get("rank"))
        return found if found is not None and 0 <= found < 1 << 31 else None

    def base_ns(self) -> int:
        """``baseTimeNanoseconds``, 0 when there is none; an unusable one becomes a problem."""
        stated = self.values.get("baseTimeNanoseconds")
        if stated is None:
            return 0
        found = as_integer(stated)
        if found is None or not 0 <= found < BASE_LIMIT_NS:
            self.problems.append(f"baseTimeNanoseconds {stated!r} is unusable; times count from 0")
            return 0
        return found

    def vendor(self, seen: Iterable[str]) -> str | None:
        """Who made the devices: by version keys, then by what the events show."""
        for vendor, prefixes in _VENDOR_KEYS:
            if any(key.startswith(prefixes) for key in self.values):
                return vendor
        found = set(seen)
        return next((v for v in ("amd", "mtia", "intel", "nvidia") if v in found), None)

    def facts(self, seen: Iterable[str], used: Iterable[int], host_only: bool) -> Facts:
        """Facts of one trace. ``used`` are the devices that events name."""
        vendor = None if host_only else self.vendor(seen)
        devices = {(self.rank, number): info for number, info in self._listed(self.vendor(seen))}
        for number in used:
            devices.setdefault((self.rank, number), DeviceInfo(vendor=vendor))
        world = as_integer(self.distributed.get("world_size"))
        backend = self.distributed.get("backend")
        return Facts(
            devices=devices,
            world_size=world if world is not None and world > 0 else None,
            backend=backend if isinstance(backend, str) else None,
            flags=self._flags(),
            versions=self._versions(),
        )

    def _listed(self, vendor: str | None) -> list[tuple[int, DeviceInfo]]:
        listed = self.values.get("deviceProperties") or self.values.get("computeProperties")
        found = []
        for entry in listed if isinstance(listed, list) else []:
            number = as_integer(entry.get("id")) if isinstance(entry, dict) else None
            if number is not None and 0 <= number < 1 << 31:
                found.append((number, _device(entry, vendor)))
        return found

    def _flags(self) -> dict[str, Any]:
        return {
            name: bool(self.values[name])
            for name in FLAGS
            if isinstance(self.values.get(name), int | bool)
        }

    def _versions(self) -> dict[str, str]:
        found = {k: str(v) for k, v in self.values.items() if k.endswith("_version")}
        found |= {k: str(v) for k, v in self.distributed.items() if k.endswith("_version")}
        return {key: text for key, text in found.items() if text and text != "unknown"}

    def notes(self) -> list[str]:
        """What the profiler logged about trouble: errors, warnings, hints of lost records."""
        found = list(self.problems)
        for key in ("ERROR", "WARNING", "INFO"):
            lines = self.values.get(key)
            for line in lines if isinstance(lines, list) else []:
                text = re.sub(r"^[A-Z]+:\S+ \S+ \d+:\d+ \S+\] ", "", str(line)).strip()
                if (counted := _OUT_OF_RANGE.match(text)) is not None:
                    if int(counted.group(1)):
                        found.append(_OUTSIDE_WINDOW.format(int(counted.group(1))))
                elif key != "INFO" or _INCOMPLETE.search(text):
                    found.append(f"the profiler logged: {text[:NOTE_LENGTH]}")
        found = list(dict.fromkeys(found))
        if len(found) > NOTES_LIMIT:
            more = len(found) - NOTES_LIMIT
            found = [*found[:NOTES_LIMIT], f"and {more} more lines of the profiler's log"]
        return found


def _device(entry: Mapping[str, Any], vendor: str | None) -> DeviceInfo:
    name = entry.get("name")
    name = name.strip() if isinstance(name, str) and name.strip() else None
    for known, pattern in _VENDOR_NAMES:
        if name is not None and pattern.search(name):
            vendor = known
            break
    major, minor = as_integer(entry.get("computeMajor")), as_integer(entry.get("computeMinor"))
    capable = vendor == "nvidia" and major is not None and minor is not None
    return DeviceInfo(
        name=name,
        sms=_positive(entry.get("numSms")),
        vendor=vendor,
        capability=(major, minor) if capable else None,  # type: ignore[arg-type]
        memory_bytes=_positive(entry.get("totalGlobalMem")),
        threads_per_sm=_positive(entry.get("maxThreadsPerMultiprocessor")),
    )


def _positive(value: Any) -> int | None:
    found = as_integer(value)
    return found if found is not None and found > 0 else None


def what_it_is(keys: Mapping[str, bytes]) -> tuple[str, str]:
    """What a JSON object without traceEvents seems to be, and what to do instead."""
    trace = "Name a trace written by torch.profiler (export_chrome_trace) instead."
    have = set(keys)
    if {"schema", "nodes"} <= have:
        return "a PyTorch execution trace (ET), which holds no times of the device", trace
    if {"segments", "device_traces"} <= have:
        return "a CUDA memory snapshot, not a trace", trace
    if keys.get("schema", b"").startswith(b'"whyidle.diagnosis'):
        return "a saved diagnosis, not evidence", "Show it: whyidle render FILE."
    if have and all(key.startswith(("aten::", "root")) for key in have):
        return "a map of operators, not a trace", trace
    if not have:
        return "an empty JSON object", trace
    some = ", ".join(sorted(have)[:4])
    return f"JSON without a traceEvents list (its keys: {some[:120]})", trace
