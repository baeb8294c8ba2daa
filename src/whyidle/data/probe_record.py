"""What a probe found: the records behind its report, and the JSON of ``whyidle.probe/1``."""

from __future__ import annotations

from typing import Literal

import msgspec

from whyidle.data.limits import Limits
from whyidle.diagnosis import Finding, Record

SCHEMA = "whyidle.probe/1"

StageKind = Literal["read", "decode", "transform", "sample", "collate", "handover", "pin", "copy"]
"""What a stage is: ``sample`` is all of ``__getitem__`` that is none of the others."""


class Stage(Record, frozen=True, kw_only=True):
    """One stage of loading, in seconds per sample, without the stages inside it.

    ``wall_s`` and ``cpu_s`` are of the thread that loads. ``waiting_s`` is wall without CPU and
    without waiting for a CPU. ``rate`` is what this stage alone would do in one process.
    """

    name: str
    kind: StageKind
    wall_s: float
    cpu_s: float
    waiting_s: float
    rate: float | None


class SlowSample(Record, frozen=True, kw_only=True):
    """One of the slowest samples, by its index in the data set."""

    index: int
    wall_s: float


class Samples(Record, frozen=True, kw_only=True):
    """What single samples cost, in seconds of wall, over ``count`` samples."""

    count: int
    mean_s: float
    p50_s: float
    p99_s: float
    slowest: list[SlowSample]


class Storage(Record, frozen=True, kw_only=True):
    """Bytes and opens per sample. None: not known.

    ``asked_bytes`` went through system calls, ``device_bytes`` came from a device,
    ``chunk_bytes`` are whole chunks of chunked arrays that were touched, ``used_bytes`` is the
    sample that came out. ``cold_s`` and ``warm_s`` are seconds to read the files of a sample, with
    and without their pages dropped from memory.
    """

    opens: float
    asked_bytes: float | None
    device_bytes: float | None
    chunk_bytes: float | None
    used_bytes: float | None
    cold_s: float | None
    warm_s: float | None
    cold_reason: str | None
    mapped: bool = False


class Threads(Record, frozen=True, kw_only=True):
    """Threads in one process that loads.

    ``other_cpu_share`` is the share of its CPU time spent in threads other than the one that
    loads. ``lock_share`` is the share of time in which that thread holds the interpreter's lock, so
    that no other Python thread can go on. ``opencv``, ``torch``: what these libraries would use.
    """

    other_cpu_share: float | None
    lock_share: float | None
    opencv: int | None
    torch: int | None
    without_s: float | None = None
    with_s: float | None = None


class Handover(Record, frozen=True, kw_only=True):
    """What it takes to collate in a worker and hand over, in seconds per sample.

    ``bytes`` of one sample in a batch and ``tensors`` in one batch. ``float_share`` is the part of
    the bytes that is 32-bit floating point; ``eight_bits``: those numbers look like 8-bit ones.
    ``narrow_s`` is what the same in 8 bits takes; ``convert_s`` the conversion of one sample.
    """

    wall_s: float | None
    bytes: float
    tensors: int
    float_share: float
    eight_bits: bool
    narrow_s: float | None
    convert_s: float | None


class Prediction(Record, frozen=True, kw_only=True):
    """Samples per second with so many workers; ``busy`` needs the seconds of a step."""

    workers: int
    rate: float
    low: float
    high: float
    measured: bool
    bound: str
    busy: float | None


class Bound(Record, frozen=True, kw_only=True):
    """The most that these CPUs can do: decoding and transforming alone, and copying.

    ``reached`` is the best predicted rate over the lowest of these.
    """

    decode_rate: float | None
    copy_rate: float | None
    copy_bytes_per_s: float | None
    reached: float | None


class Model(Record, frozen=True, kw_only=True):
    """The numbers that predictions rest on, in seconds per sample."""

    alone_s: float
    worker_cpu_s: float
    worker_wait_s: float
    main_s: float
    slowdown: float
    cpus: float
    spread: float


class Probe(Record, frozen=True, kw_only=True):
    """The whole answer of ``whyidle data probe``; what was not measured is null."""

    schema: str = SCHEMA
    whyidle: str
    spec: str
    kind: str
    samples: int | None
    batch_size: int
    workers: int | None
    order: str | None
    step_s: float | None
    seconds: float
    stages: list[Stage]
    sample: Samples | None
    storage: Storage | None
    threads: Threads | None
    handover: Handover | None
    limits: Limits
    model: Model | None
    rates: list[Prediction]
    pick: int | None
    bound: Bound | None
    findings: list[Finding]
    notes: list[str] = []

    def to_json(self) -> str:
        """The record as indented JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode() + "\n"

    @staticmethod
    def from_json(text: str | bytes) -> Probe:
        """The record of such a text; msgspec's errors where it is none."""
        return msgspec.json.decode(text, type=Probe)
