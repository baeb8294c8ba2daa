"""The record of a trial: what was tried, what it gained, and how to keep it."""

from __future__ import annotations

from typing import Any

import msgspec

from whyidle.trial.proof import LossRecord, Machine, RatioRecord, RunRecord
from whyidle.trial.try_judged import Verdict, What
from whyidle.trial.try_table import Value

SCHEMA = "whyidle.try/1"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of what a trial is made of."""


class Predicted(Record, frozen=True, kw_only=True):
    """How many times faster a diagnosis says a remedy of this kind makes the step."""

    low: float
    mid: float
    high: float


class BaselineRecord(Record, frozen=True, kw_only=True):
    """The runs of the job as it is; ``step_s`` is the median over runs, null without steps."""

    step_s: float | None
    what: What
    runs: list[RunRecord]


class RowRecord(Record, frozen=True, kw_only=True):
    """One thing tried. ``measured`` is how many times faster (samples, for other batch sizes).

    ``values`` maps remedies to values, several for all together. ``keep`` is the command that
    writes it, where there is one, and ``source`` the line for the source.
    """

    remedy: str
    values: dict[str, Value]
    does: str
    causes: list[str]
    safe: bool
    why_safe: str
    predicted: Predicted | None
    measured: RatioRecord | None
    what: What | None
    verdict: Verdict
    why: str
    took_effect: list[str]
    loss: LossRecord | None
    keep: str | None
    source: str
    runs: list[RunRecord]


class Trial(Record, frozen=True, kw_only=True):
    """The whole record. ``steps`` null: the job ran to its end; ``seed`` null: the job's own."""

    schema: str
    whyidle: str
    started: str
    command: list[str]
    steps: int | None
    warm_up: int
    pairs: int
    pays_from: float
    seed: int | None
    baseline: BaselineRecord
    remedies: list[RowRecord]
    together: RowRecord | None
    not_offered: dict[str, str]
    notes: list[str]
    machine: Machine

    def to_json(self) -> str:
        """The record as JSON, ended by a line break."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode() + "\n"


def json_schema() -> dict[str, Any]:
    """The JSON schema of a trial, generated from the records above."""
    return msgspec.json.schema(Trial)
