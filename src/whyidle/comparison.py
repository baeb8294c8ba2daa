"""What a comparison says: the records that its reports and its gate draw from, and their JSON.

Figures are seconds per step and device where both sides have steps (``unit`` "step"), else shares
of wall time ("share"). ``None`` means "not known", never zero. Nothing here imports Polars.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from whyidle.diagnosis import Record, State

SCHEMA = "whyidle.comparison/1"

Verdict = Literal["more than noise", "within noise", "cannot tell"]
How = Literal["appeared", "vanished", "grew", "shrank", "same"]
Unit = Literal["step", "share"]
SeenBy = Literal["trace", "samples", "neither"]


class Side(Record, frozen=True, kw_only=True):
    """One of the two runs. ``steps`` are the interior steps that the tests look at.

    ``seen_by`` is what the seconds are from: a trace, samples alone, or neither, which has none.
    """

    name: str
    whyidle: str
    devices: int
    hardware: dict[str, int]
    wall_s: float
    steps: int
    step_s: float | None
    shortest_s: float | None
    longest_s: float | None
    seen_by: SeenBy = "trace"


class StepTime(Record, frozen=True, kw_only=True):
    """The median interior step on both sides; ``ratio`` is after / before.

    ``ratio_low`` and ``ratio_high`` bound it at 1 - alpha; None where so few steps cannot.
    """

    before_s: float
    after_s: float
    ratio: float
    ratio_low: float | None
    ratio_high: float | None
    how: How
    verdict: Verdict
    before: list[float]
    after: list[float]


class Line(Record, frozen=True, kw_only=True):
    """One quantity on both sides: a cause's loss, a state, useful or unexplained time.

    ``change`` is after minus before; ``low`` and ``high`` bound it at 1 - alpha where the steps
    allow. None for a side says that it was not judged there, and ``note`` why.
    """

    what: str
    title: str
    reason: int | None
    before: float | None
    after: float | None
    change: float | None
    low: float | None
    high: float | None
    how: How | None
    verdict: Verdict
    note: str | None


class KernelLine(Record, frozen=True, kw_only=True):
    """Device work of one call path on both sides; ``calls`` like the seconds, per step and device.

    ``replaced``: the names differ at the same path. A side without it has 0.
    """

    path: list[str]
    state: State
    before_name: str | None
    after_name: str | None
    before: float
    after: float
    change: float
    before_calls: float
    after_calls: float
    how: How
    replaced: bool
    verdict: Verdict


class Kernels(Record, frozen=True, kw_only=True):
    """Device work matched by call path, largest change first.

    ``matched`` is the share (0..1) of the listed device time of both sides whose path and name
    occur on both; ``same`` counts the lines that are within noise.
    """

    rows: list[KernelLine]
    matched: float
    same: int


class SignLine(Record, frozen=True, kw_only=True):
    """A sign without seconds, on one side or on both; None where it was not seen."""

    cause: str
    title: str
    before: str | None
    after: str | None


class Difference(Record, frozen=True, kw_only=True):
    """Something about the machine, the software or the recording that differs."""

    what: str
    before: str | None
    after: str | None


class Comparison(Record, frozen=True, kw_only=True):
    """Two runs side by side. ``same``: the two diagnoses show no difference at all."""

    schema: str = SCHEMA
    whyidle: str
    before: Side
    after: Side
    unit: Unit
    alpha: float
    same: bool
    step: StepTime | None
    causes: list[Line]
    states: list[Line]
    kernels: Kernels | None
    signs: list[SignLine] = []
    differences: list[Difference]
    notes: list[str]

    def to_json(self) -> str:
        """The comparison as one JSON object; ``from_json`` gives back an equal one."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode()

    @staticmethod
    def from_json(text: str | bytes) -> Comparison:
        """A comparison read back. Raises msgspec.DecodeError on anything else."""
        found = msgspec.json.decode(text, type=Comparison)
        if found.schema != SCHEMA:
            raise msgspec.ValidationError(f"schema is {found.schema!r}, this reads {SCHEMA!r}")
        return found


def json_schema() -> dict[str, Any]:
    """The JSON schema of ``compare --format json``, generated from the records above."""
    return msgspec.json.schema(Comparison)
