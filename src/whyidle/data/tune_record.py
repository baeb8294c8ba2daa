"""What tuning found: the records behind its report, and the JSON of ``whyidle.tune/1``."""

from __future__ import annotations

from typing import Literal

import msgspec

from whyidle.data.limits import Limits
from whyidle.data.probe_record import Prediction
from whyidle.diagnosis import Finding, Record

SCHEMA = "whyidle.tune/1"

Kind = Literal["DataLoader", "Loader"]
"""torch's DataLoader with processes, or whyidle.data.Loader with threads."""


class Setting(Record, frozen=True, kw_only=True):
    """What is tried: so many workers of a kind, each so many batches ahead (0 without workers)."""

    loader: Kind
    workers: int
    prefetch: int = 2


class Trial(Record, frozen=True, kw_only=True):
    """One setting, measured in processes of its own.

    ``rates`` are samples/s of each run and ``rate`` their median. ``first_s`` is the time to the
    first batch. ``batch_s`` and ``batch_p95_s`` are the median and 95th percentile of what making
    a batch takes, known without workers only. Bytes are proportional set sizes: ``main_bytes`` of
    the training process, ``worker_bytes`` of the largest worker. ``failed`` says why there is no
    rate.
    """

    setting: Setting
    rates: list[float]
    rate: float | None
    first_s: float | None = None
    batch_s: float | None = None
    batch_p95_s: float | None = None
    main_bytes: int | None = None
    worker_bytes: int | None = None
    failed: str | None = None


class Bound(Record, frozen=True, kw_only=True):
    """A limit that settings must keep: the most worker processes at this number of batches ahead.

    ``most`` None: this sets no limit here. ``what`` says how it was computed.
    """

    name: str
    most: int | None
    what: str


class Arguments(Record, frozen=True, kw_only=True):
    """The arguments advised; None leaves torch's default."""

    loader: Kind
    num_workers: int
    prefetch_factor: int | None
    persistent_workers: bool | None
    pin_memory: bool | None
    multiprocessing_context: str | None = None
    in_order: bool | None = None

    def given(self) -> dict[str, str]:
        """Name -> code, of those that are not left to torch."""
        names = self.__struct_fields__[1:]
        values = {name: getattr(self, name) for name in names}
        return {name: repr(value) for name, value in values.items() if value is not None}

    def code(self, batch_size: int) -> str:
        """The call."""
        parts = [f"batch_size={batch_size}", *(f"{n}={v}" for n, v in self.given().items())]
        return f"{self.loader}(dataset, {', '.join(parts)})"


class Tune(Record, frozen=True, kw_only=True):
    """The whole answer of ``whyidle data tune``; what is not known is null.

    ``rate`` with ``low`` and ``high`` (lowest and highest run) is that of ``chosen``; ``predicted``
    what was expected of it before it was tried; ``now`` the rate as it was, of ``workers``.
    ``enough``: samples/s beyond which a faster loader gains nothing at this step time. ``reasons``
    say why each argument is what it is. ``findings`` are what no setting can help, and what would.
    """

    schema: str = SCHEMA
    whyidle: str
    spec: str
    samples: int | None
    batch_size: int
    workers: int | None
    step_s: float | None
    seconds: float
    chosen: Arguments
    code: str
    rate: float | None
    low: float | None
    high: float | None
    predicted: Prediction | None
    now: float | None
    enough: float | None
    limit: float | None
    reasons: list[str]
    bounds: list[Bound]
    trials: list[Trial]
    predictions: list[Prediction]
    limits: Limits
    findings: list[Finding]
    notes: list[str] = []

    def to_json(self) -> str:
        """The record as indented JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode() + "\n"

    @staticmethod
    def from_json(text: str | bytes) -> Tune:
        """The record of such a text; msgspec's errors where it is none."""
        return msgspec.json.decode(text, type=Tune)
