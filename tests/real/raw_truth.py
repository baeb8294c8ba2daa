"""Where each device's window went, recomputed from the raw JSON with nothing of the product.

The rules are those of the design ("How blame is found", items 1 and 2) and of the contract ("What
is communication", "What is copy"). Everything here is exact integer nanoseconds on the file's
own clock, in plain Python, and slower than it could be: a plain sweep over the edges of intervals.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

STATES = ("compute", "communication", "copy")
"""Busy states in order of precedence; what is left of a window is "empty"."""

DEVICE_CATEGORIES = {
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "gpu_memset": "copy",
    "memcpy": "copy",
    "memset": "copy",
    "mtia_ccp_events": "kernel",
}
"""Lower-cased category of an event that occupies a device, and what it is."""

COMMUNICATION = (
    "nccl",
    "rccl",
    "msccl",
    "oneccl",
    "nvshmem",
    "multimem",
    "symm_mem",
    "one_shot_all_reduce",
    "two_shot_all_reduce",
    "cross_device_reduce",
    "custom_all_reduce",
    "all_reduce",
    "allreduce",
    "all_gather",
    "allgather",
    "reduce_scatter",
    "all_to_all",
    "alltoall",
    "deep_ep",
    "hccl",
    "sendrecv",
)
COMPILED = ("triton_",)
COPIES = ("Memcpy", "Memset", "CopyDeviceToHost", "copyBuffer", "fillBuffer", "dma_request")
STEP = re.compile(r"ProfilerStep#\d+")


@dataclass(frozen=True)
class Shares:
    """The window of one device, [start_ns, end_ns) on the file's clock, and its four parts in ns.

    ``stated`` is False where the file gave no device number and the process id stands in.
    """

    rank: int | None
    device: int
    stated: bool
    start_ns: int
    end_ns: int
    compute_ns: int
    communication_ns: int
    copy_ns: int
    empty_ns: int

    @property
    def wall_ns(self) -> int:
        """Length of the window."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class Activity:
    """One piece of device work; ``launch_ns`` is the start of its launch call where recorded."""

    start_ns: int
    end_ns: int
    state: str
    launch_ns: int | None


def load(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The events of a trace, numbers with a fraction as exact decimals, and its other keys."""
    raw = path.read_bytes()
    if raw[:2] == b"\x1f\x8b":
        raw = gzip.decompress(raw)
    found = json.loads(raw, parse_float=Decimal)
    if isinstance(found, list):
        return found, {}
    return found["traceEvents"], {k: v for k, v in found.items() if k != "traceEvents"}


def nanoseconds(microseconds: Any) -> int:
    """A time of the file, in microseconds (integer, decimal or text), as whole nanoseconds."""
    return int((Decimal(microseconds) * 1000).to_integral_value())


def span(event: dict[str, Any]) -> tuple[int, int]:
    """Start and end of a complete event; a negative or missing duration counts as none."""
    start, length = Decimal(event["ts"]), Decimal(event.get("dur") or 0)
    return nanoseconds(start), nanoseconds(start + max(length, Decimal(0)))


def complete(events: Iterable[Any]) -> Iterator[tuple[dict[str, Any], str, dict[str, Any]]]:
    """Each complete ("X") event with its lower-cased category and its arguments."""
    for event in events:
        if isinstance(event, dict) and event.get("ph") == "X":
            arguments = event.get("args")
            known = arguments if isinstance(arguments, dict) else {}
            yield event, str(event.get("cat", "")).lower(), known


def state_of(category: str, name: str) -> str:
    """What a device is doing while this activity runs."""
    if DEVICE_CATEGORIES[category] == "copy" or any(part in name for part in COPIES):
        return "copy"
    lowered = name.lower()
    generated = lowered.startswith(COMPILED)
    if not generated and any(part in lowered for part in COMMUNICATION):
        return "communication"
    return "compute"


def launches(events: list[dict[str, Any]]) -> dict[int, int]:
    """Correlation id -> start of the runtime or driver call that carries it."""
    found: dict[int, int] = {}
    for event, category, arguments in complete(events):
        if category.endswith(("runtime", "driver")) and "correlation" in arguments:
            start, _ = span(event)
            correlation = int(arguments["correlation"])
            found[correlation] = min(start, found.get(correlation, start))
    return found


def step_marks(events: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """Host intervals of the profiler's step marks, in order."""
    return sorted(
        span(event)
        for event, category, _ in complete(events)
        if category != "gpu_user_annotation" and STEP.fullmatch(str(event.get("name")))
    )


def activities(events: list[dict[str, Any]]) -> dict[tuple[int, bool], list[Activity]]:
    """(device, stated in the file) -> its activities; stated is False for a process id."""
    calls = launches(events)
    found: dict[tuple[int, bool], list[Activity]] = defaultdict(list)
    for event, category, arguments in complete(events):
        if category not in DEVICE_CATEGORIES:
            continue
        stated = "device" in arguments
        device = int(arguments["device"] if stated else event["pid"])
        correlation = arguments.get("correlation")
        launch = None if correlation is None else calls.get(int(correlation))
        state = state_of(category, str(event["name"]))
        found[device, stated].append(Activity(*span(event), state, launch))
    return found


def window(work: list[Activity], marks: list[tuple[int, int]]) -> tuple[int, int]:
    """The interval that is judged."""
    if not marks:
        return min(a.start_ns for a in work), max(a.end_ns for a in work)
    first, last = marks[0][0], max(end for _, end in marks)
    earlier = [a.end_ns for a in work if a.launch_ns is not None and a.launch_ns < first]
    own = [a.end_ns for a in work if a.launch_ns is None or a.launch_ns < last]
    return max([first, *earlier]), max([last, *own])


def sweep(work: list[Activity], start_ns: int, end_ns: int) -> dict[str, int]:
    """Nanoseconds of [start_ns, end_ns) in each busy state, by precedence."""
    edges: dict[int, dict[str, int]] = defaultdict(lambda: dict.fromkeys(STATES, 0))
    for activity in work:
        begin, finish = max(activity.start_ns, start_ns), min(activity.end_ns, end_ns)
        if begin < finish:
            edges[begin][activity.state] += 1
            edges[finish][activity.state] -= 1
    spent, running, before = dict.fromkeys(STATES, 0), dict.fromkeys(STATES, 0), start_ns
    for instant in sorted(edges):
        for state in STATES:
            if running[state] > 0:
                spent[state] += instant - before
                break
        for state, change in edges[instant].items():
            running[state] += change
        before = instant
    return spent


def rank_of(header: dict[str, Any]) -> int | None:
    """The rank that the file states."""
    rank = (header.get("distributedInfo") or {}).get("rank")
    return None if rank is None else int(rank)


@cache
def measure(path: Path) -> list[Shares]:
    """The window and the four parts of every device in the file, by device number."""
    events, header = load(path)
    marks = step_marks(events)
    found = []
    for (device, stated), work in sorted(activities(events).items()):
        start, end = window(work, marks)
        spent = sweep(work, start, end)
        compute, communication, copy = (spent[state] for state in STATES)
        found.append(
            Shares(
                rank=rank_of(header),
                device=device,
                stated=stated,
                start_ns=start,
                end_ns=end,
                compute_ns=compute,
                communication_ns=communication,
                copy_ns=copy,
                empty_ns=end - start - compute - communication - copy,
            )
        )
    return found


def base_ns(path: Path) -> int:
    """What the file adds to every time, in nanoseconds; 0 when it says nothing."""
    return int(load(path)[1].get("baseTimeNanoseconds", 0))
