"""The job ledger: where the time of each device went over the whole run.

A device is a GPU that samples saw, or a training process whose steps a hook timed. The ledger is
coarse, and apart from the window's ledger, which is exact for a few profiled steps. Durations are
seconds; instants are integer nanoseconds from ``Window.origin_ns``. ``None`` means "not known".
"""

from __future__ import annotations

from typing import Literal

import msgspec


class JobDevice(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of one device of the whole run went.

    That is of a sampled GPU from its first reading to its last, of a training process (its meter is
    ``training_steps``) from its import of torch to its end.

    busy_s + idle_s + unknown_s = wall_s = useful_s + lost_s + unexplained_s + unknown_s. Busy is
    the share of time in which the meter saw any work; ``meter`` names it. Unknown is where there
    is no reading, or one without a value: never idle. ``gpu`` is what the source calls it,
    ``device`` the machine's index, ``process`` the pid of a training process, of which ``samples``
    counts the steps and ``period_s`` is the usual one. ``rank`` of a GPU is that of a trace of it,
    ``matched`` how that is known; both None where it is not. ``start_ns`` and ``end_ns`` count
    from ``Window.origin_ns``; None where the samples lie on another clock. ``shares`` are the busy
    shares of equal slices of the time, None where more than half of a slice is unknown.
    """

    host: str | None
    gpu: str | None
    device: int | None
    rank: int | None
    matched: str | None
    name: str | None
    meter: str
    start_ns: int | None
    end_ns: int | None
    wall_s: float
    busy_s: float
    idle_s: float
    unknown_s: float
    useful_s: float
    lost_s: float
    unexplained_s: float
    samples: int
    period_s: float
    shares: list[float | None]
    process: int | None = None


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one device that one cause won; share is of that device's wall."""

    host: str | None
    gpu: str | None
    device: int | None
    rank: int | None
    cause: str
    state: Literal["busy", "idle"]
    lost_s: float
    share: float
    process: int | None = None


class JobLedger(msgspec.Struct, frozen=True, kw_only=True):
    """The whole run as samples or a hook saw it; coarse, and apart from the window's ledger.

    All seconds are sums over ``devices``.
    """

    wall_s: float
    busy_s: float
    idle_s: float
    unknown_s: float
    useful_s: float
    lost_s: float
    unexplained_s: float
    devices: list[JobDevice]
    ledger: list[JobRow]
