"""The record of a proof: what ran, how fast, how sure, and whether training stayed the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from whyidle.diagnosis import Finding

SCHEMA = "whyidle.proof/1"

Verdict = Literal["faster", "slower", "no difference", "changes training", "failed"]

What = Literal["median step", "mean step", "wall of the command"]


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of what a proof is made of."""


class RunRecord(Record, frozen=True, kw_only=True):
    """One run: seconds per step (null without steps), wall seconds, and how it ended.

    ``steps`` are those of the rank that the pace comes from, null where none were seen.
    ``exit_code`` is 128 + n after signal n, null when the run was ended for its time.
    """

    seconds_per_step: float | None
    wall_s: float
    steps: int | None
    loss_last: float | None
    exit_code: int | None


class SideRecord(Record, frozen=True, kw_only=True):
    """One command; ``median``, ``low`` and ``high`` are of its runs, in seconds of ``measure``.

    ``tree`` says which revision or tree it ran in, null for the current folder.
    """

    command: list[str]
    runs: list[RunRecord]
    median: float | None
    low: float | None
    high: float | None
    tree: str | None = None


class MeasureRecord(Record, frozen=True, kw_only=True):
    """What the seconds are of, and why that."""

    what: What
    why: str


class RatioRecord(Record, frozen=True, kw_only=True):
    """How many times faster *after* is, with the interval that holds the true ratio."""

    low: float
    mid: float
    high: float
    confidence: float
    method: str


class LossRecord(Record, frozen=True, kw_only=True):
    """Whether the losses were compared, and what that gave; differences are relative."""

    compared: bool
    why: str
    largest_relative_difference: float | None
    tolerance: float
    verdict: Literal["within tolerance", "changes training", "cannot tell", "not compared"]


class Machine(Record, frozen=True, kw_only=True):
    """Where it ran: whyidle's own Python, and the CPUs that it may use."""

    python: str
    cpus: int
    platform: str


class Proof(Record, frozen=True, kw_only=True):
    """The whole record; ``digest`` is the SHA-256 of all the rest, in its canonical JSON.

    ``proven`` is what the exit code tells: faster by at least ``at_least``, with the certainty of
    the interval, and training not changed. ``reasons`` are sentences that say why not, and
    ``findings`` the same as records that all verbs share; both are empty for what is proven.
    ``notes`` say what a reader should know besides.
    """

    schema: str
    whyidle: str
    started: str
    verdict: Verdict
    proven: bool
    at_least: float
    reasons: list[str]
    measure: MeasureRecord
    before: SideRecord
    after: SideRecord
    ratio: RatioRecord | None
    loss: LossRecord
    machine: Machine
    findings: list[Finding] = []
    notes: list[str] = []
    digest: str = ""

    def to_json(self) -> str:
        """The record as JSON, ended by a line break."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode() + "\n"


def json_schema() -> dict[str, Any]:
    """The JSON schema of a proof, generated from the records above."""
    return msgspec.json.schema(Proof)


def signed(proof: Proof) -> Proof:
    """The proof with its digest filled in."""
    return msgspec.structs.replace(proof, digest=digest_of(msgspec.to_builtins(proof)))


def digest_of(document: Mapping[str, Any]) -> str:
    """SHA-256 (hexadecimal) of the canonical JSON of ``document`` without its ``digest``.

    Canonical: UTF-8, keys sorted, no white space, floats as Python writes them.
    """
    rest = {key: value for key, value in document.items() if key != "digest"}
    text = json.dumps(
        rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def verify(document: Mapping[str, Any] | str | bytes) -> bool:
    """Whether a saved proof is whole: of our schema, and as it was when its digest was taken.

    The digest tells of changes, not of who made the proof: anyone can take a digest anew.
    """
    try:
        known = json.loads(document) if isinstance(document, str | bytes) else dict(document)
        told = known.get("digest") if isinstance(known, dict) else None
        if not isinstance(told, str) or told != digest_of(known):
            return False
        return msgspec.convert(known, Proof).schema == SCHEMA
    except (ValueError, TypeError, RecursionError):
        return False
