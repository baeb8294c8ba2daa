"""What a diagnosis says: the one object that every renderer, exporter, gate and fix draws from.

Durations are seconds (``*_s``). Instants are integer nanoseconds (``*_ns``) relative to
``Window.origin_ns``, which is itself a decimal string on the evidence's own clock. ``None`` means
"not known", never zero. Nothing here imports Polars, so a saved diagnosis renders quickly.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from whyidle.job_records import JobLedger, JobRow

SCHEMA = "whyidle.diagnosis/1"

Level = Literal["seen", "deduced", "suspected"]
State = Literal["compute", "communication", "copy", "empty"]
Status = Literal["stable", "preview"]

REASONS: dict[str, int] = {
    "small_work": 1,
    "data_loading": 2,
    "model_design": 3,
    "memory": 4,
    "communication": 5,
    "scheduling": 6,
    "blind_spots": 7,
}
"""Folder of a cause -> the number of the reason for low utilisation it belongs to."""

REASON_TITLES: dict[int, str] = {
    1: "too little parallel work",
    2: "data loading",
    3: "model and settings",
    4: "memory",
    5: "communication",
    6: "allocation and scheduling",
    7: "monitoring and instrumentation",
}


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every record: immutable, built by keyword, written to JSON field by field."""


class Source(Record, frozen=True, kw_only=True):
    """One piece of evidence that was read; the offset was added to its clock to join the others."""

    path: str
    reader: str
    rank: int | None
    events: int
    notes: list[str] = []
    clock_offset_ns: int = 0
    clock_error_ns: int | None = None


class Window(Record, frozen=True, kw_only=True):
    """The interval judged, widest over devices; half open, relative to ``origin_ns``."""

    origin_ns: str
    start_ns: int
    end_ns: int
    steps: int | None


class Step(Record, frozen=True, kw_only=True):
    """One recorded step of one device; number as in ``ProfilerStep#N``."""

    number: int
    start_ns: int
    end_ns: int


class Device(Record, frozen=True, kw_only=True):
    """Where the wall time of one device went.

    compute_s + communication_s + copy_s + empty_s = wall_s = useful_s + lost_s + unexplained_s.
    ``unrecorded_s`` is the part of empty_s and unexplained_s that is likely work that the
    recorder dropped. ``device`` is the index in the process (after CUDA_VISIBLE_DEVICES), or
    ``"cpu"`` for a run without a GPU, whose useful time counts as compute.
    """

    rank: int | None
    device: int | str
    name: str | None
    sms: int | None
    start_ns: int
    end_ns: int
    wall_s: float
    compute_s: float
    communication_s: float
    copy_s: float
    empty_s: float
    useful_s: float
    lost_s: float
    unexplained_s: float
    unrecorded_s: float
    steps: list[Step]
    step_s: float | None


class LedgerRow(Record, frozen=True, kw_only=True):
    """Seconds that one cause won on one device in one state; share is of that device's wall."""

    rank: int | None
    device: int | str
    cause: str
    state: State
    lost_s: float
    share: float


class Where(Record, frozen=True, kw_only=True):
    """A place that lost time: source line, operator, thread, rank; any of them may be unknown."""

    file: str | None
    line: int | None
    op: str | None
    thread: str | None
    rank: int | None
    device: int | str | None
    lost_s: float
    host: str | None = None
    gpu: str | None = None


class EvidenceRow(Record, frozen=True, kw_only=True):
    """One row a figure rests on: the ordinal of an event in its source, and what it shows."""

    source: str
    row: int | None
    what: str


class Gain(Record, frozen=True, kw_only=True):
    """Predicted step seconds and speed-up of a remedy; low = the cautious end of the gain."""

    step_s_low: float
    step_s_mid: float
    step_s_high: float
    speedup_low: float
    speedup_mid: float
    speedup_high: float


class Remedy(Record, frozen=True, kw_only=True):
    """A change to make. ``effect`` says, as data, what it does to the timeline."""

    what: str
    how: str
    patch: str | None = None
    safe: bool
    why_safe: str
    effect: dict[str, Any]
    gain: Gain | None = None
    prove: str


class Finding(Record, frozen=True, kw_only=True):
    """One cause, what it cost, where, how sure we are, and what to do."""

    cause: str
    reason: int
    title: str
    ledger: Literal["window", "job"]
    lost_s: float
    share: float
    job_cost_s: float | None
    contested_s: float
    level: Level
    status: Status
    where: list[Where]
    evidence: list[EvidenceRow]
    remedies: list[Remedy]


class Place(Record, frozen=True, kw_only=True):
    """Where something was observed; any part may be unknown."""

    file: str | None = None
    line: int | None = None
    op: str | None = None
    rank: int | None = None
    device: int | str | None = None
    host: str | None = None
    gpu: str | None = None


class Sign(Record, frozen=True, kw_only=True):
    """What a cause sees in the evidence without seconds that could be put on it."""

    level: Level
    what: str
    where: list[Place] = []
    evidence: list[EvidenceRow] = []
    remedies: list[Remedy] = []


class Observation(Record, frozen=True, kw_only=True):
    """A sign of a cause: a narrow link, a rank absent from a collective, memory in pieces.

    It has no seconds: the evidence shows that it is so, not what it cost.
    """

    cause: str
    reason: int
    title: str
    level: Level
    status: Status
    what: str
    where: list[Place]
    evidence: list[EvidenceRow]
    remedies: list[Remedy]


class PlanStep(Record, frozen=True, kw_only=True):
    """One remedy of a plan, in order of gain."""

    cause: str
    what: str


class PredictedStep(Record, frozen=True, kw_only=True):
    """Seconds of a median interior step after the whole plan."""

    low: float
    mid: float
    high: float


class Plan(Record, frozen=True, kw_only=True):
    """All remedies replayed together."""

    remedies: list[PlanStep]
    step_s: float
    predicted: PredictedStep


class Replay(Record, frozen=True, kw_only=True):
    """How well the replay of *no change* meets the measured step."""

    measured_step_s: float
    replayed_step_s: float
    error: float
    constants_s: float


class StepCost(Record, frozen=True, kw_only=True):
    """What one recorded step cost, as the mean over the devices that recorded it.

    ``recording`` counts the recordings of a device that was recorded several times, from 0. A
    step lasts from when the device was done with earlier steps (or the mark began, if later)
    until it is done with this one. ``step_s`` = compute + communication + copy + empty = useful
    + unexplained + sum of ``lost_s``, which is by cause.
    """

    recording: int
    number: int
    devices: int
    step_s: float
    compute_s: float
    communication_s: float
    copy_s: float
    empty_s: float
    useful_s: float
    unexplained_s: float
    lost_s: dict[str, float]


class KernelCost(Record, frozen=True, kw_only=True):
    """Device work of one name launched from one call path, per device.

    ``path`` names ranges, modules and operators around the launch, outermost first; empty when
    none is known. ``calls`` and ``seconds`` are per interior step, or of the whole window where
    no step was marked; ``per_step_s`` are the seconds in each interior step, evenly thinned out.
    """

    path: list[str]
    name: str
    state: State
    calls: float
    seconds: float
    per_step_s: list[float]


class Kernels(Record, frozen=True, kw_only=True):
    """The device work that takes most time, largest first, on the ``devices`` looked at.

    ``steps`` is the number of interior steps, None when none was marked. ``left`` rows are not
    listed; the largest of them takes ``largest_left_s`` seconds.
    """

    devices: int
    steps: int | None
    rows: list[KernelCost]
    left: int
    largest_left_s: float


class Environment(Record, frozen=True, kw_only=True):
    """What the evidence says of the job and its software; absent keys were not recorded."""

    world_size: int | None
    backend: str | None
    versions: dict[str, str]
    flags: dict[str, str]


class TimelineSpan(Record, frozen=True, kw_only=True):
    """An interval drawn on a lane: ``lane`` is a device stream or a host thread."""

    lane: str
    kind: str
    name: str
    start_ns: int
    end_ns: int
    depth: int = 0


class TimelineClaim(Record, frozen=True, kw_only=True):
    """An interval that a cause won on the device; ``cause`` None = unexplained."""

    cause: str | None
    state: State
    weight: float
    start_ns: int
    end_ns: int
    what: str | None


class Timeline(Record, frozen=True, kw_only=True):
    """The worst step of the device that lost most. ``capped`` tells what was left out."""

    rank: int | None
    device: int | str
    step: int | None
    start_ns: int
    end_ns: int
    spans: list[TimelineSpan]
    claims: list[TimelineClaim]
    capped: str | None


class NotJudged(Record, frozen=True, kw_only=True):
    """A cause that the evidence cannot show, and the command that records what is missing."""

    cause: str
    missing: list[str]
    record_with: str


class Crashed(Record, frozen=True, kw_only=True):
    """A cause that raised; it costs its own line, never the report."""

    cause: str
    error: str


class Diagnosis(Record, frozen=True, kw_only=True):
    """Where every second of every device went, why, and what to do.

    ``no_gain`` tells in one sentence why no remedy has a gain; null where one has, or where there
    is nothing to gain from.
    """

    schema: str = SCHEMA
    whyidle: str
    sources: list[Source]
    window: Window
    devices: list[Device]
    ledger: list[LedgerRow]
    job: JobLedger | None = None
    findings: list[Finding]
    observations: list[Observation] = []
    plan: Plan | None = None
    replay: Replay | None = None
    no_gain: str | None = None
    timeline: Timeline | None = None
    step_costs: list[StepCost] = []
    kernels: Kernels | None = None
    environment: Environment | None = None
    not_judged: list[NotJudged] = []
    crashed: list[Crashed] = []
    notes: list[str] = []

    @property
    def wall_s(self) -> float:
        """Wall seconds summed over the devices judged."""
        return sum(d.wall_s for d in self.devices)

    @property
    def lost_s(self) -> float:
        """Seconds that causes won, summed over devices."""
        return sum(d.lost_s for d in self.devices)

    @property
    def useful_s(self) -> float:
        """Compute seconds that no cause claimed, summed over devices."""
        return sum(d.useful_s for d in self.devices)

    @property
    def unexplained_s(self) -> float:
        """Seconds not computing that no cause claimed, summed over devices."""
        return sum(d.unexplained_s for d in self.devices)

    @property
    def unrecorded_s(self) -> float:
        """The part of unexplained_s that is likely work the recorder dropped."""
        return sum(d.unrecorded_s for d in self.devices)

    @property
    def recorded_s(self) -> float:
        """Wall minus unrecorded time; where no device was traced, known time of sampled GPUs."""
        if not self.devices and self.job is not None:
            return self.job.wall_s - self.job.unknown_s
        return self.wall_s - self.unrecorded_s

    def share_lost(self, prefix: str = "") -> float:
        """Share (0..1) of the recorded wall lost to causes whose id starts with ``prefix``.

        The base is ``recorded_s``, as ``--fail-on`` uses it; 0 when nothing is left.
        """
        rows: Sequence[LedgerRow | JobRow] = self.ledger
        if not self.devices and self.job is not None:
            rows = self.job.ledger
        base = self.recorded_s
        lost = sum(r.lost_s for r in rows if matches_cause(r.cause, prefix))
        return lost / base if base > 0 else 0.0

    def to_json(self) -> str:
        """The diagnosis as one JSON object; ``from_json`` gives back an equal one."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode()

    @staticmethod
    def from_json(text: str | bytes) -> Diagnosis:
        """A diagnosis read back. Raises msgspec.DecodeError on anything else."""
        found = msgspec.json.decode(text, type=Diagnosis)
        if found.schema != SCHEMA:
            raise msgspec.ValidationError(f"schema is {found.schema!r}, this reads {SCHEMA!r}")
        return found

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the JSON to ``path``; an interrupted write leaves an old file whole."""
        write_whole(Path(path), self.to_json() + "\n")

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from whyidle.render import html

        return html.fragment(self)


def matches_cause(cause: str, prefix: str) -> bool:
    """Whether ``cause`` is ``prefix`` or lies below it (``data_loading`` holds its causes)."""
    return not prefix or cause == prefix or cause.startswith(prefix + ".")


def write_whole(path: Path, text: str) -> None:
    """Replace ``path`` by ``text`` in one rename, so that a reader sees old or new, never half."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.chmod(temporary, _mode_for(path))
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _mode_for(path: Path) -> int:
    if path.exists():
        return path.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def json_schema() -> dict[str, Any]:
    """The JSON schema of ``diagnose --format json``, generated from the records above."""
    return msgspec.json.schema(Diagnosis)
