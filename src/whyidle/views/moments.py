"""The whole run of each training process, as the hook of ``whyidle run`` timed it inside.

A process that makes steps is judged like a sampled GPU whose meter is ``training_steps``: its time
from the import of torch to its end is cut into pieces, and a piece is busy as far as a step does
not wait for its loader. Idle are those waits, pauses, what comes before the first step, and what
comes after the last one. A step that was overdue is idle as a whole, unless it waited for its
loader. Unknown, never idle, are the pauses of the recording itself, holes
between steps, and the whole first step where it is the only one: nothing tells how much of it was
preparation.

The hook lets the first step begin when torch has been imported. Its work is taken to last as long
as the usual step and to end with it; what lies before is start-up.

Where the GPUs of the same bundle were sampled and did work, those readings stay the meter: the
process makes no device of its own, and what the hook timed makes claims on the GPU it ran on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from whyidle.intervals import Ints, covered, union
from whyidle.model import frame
from whyidle.views.moment_gpus import gpus_of
from whyidle.views.sampled import GPUS, PIECES

if TYPE_CHECKING:
    from whyidle.views import Views

METER = "training_steps"
START_UP, STEP, PAUSE, UNKNOWN, TAIL = range(5)
"""What a piece of the time of a process is."""

DEVICES: dict[str, Any] = {**GPUS, "process": pl.Int64}
"""One row: one device of the job ledger, a sampled GPU or a training process. ``process`` is null
for a GPU; for a process ``samples`` counts steps and ``period_ns`` is the usual step."""


@dataclass(frozen=True)
class Cuts:
    """The time of a process, end to end: pieces, what each is, and its busy ns (-1 unknown).

    ``step`` is the row of the step that a piece of role STEP belongs to.
    """

    start: Ints
    end: Ints
    busy: Ints
    role: npt.NDArray[np.int8]
    step: npt.NDArray[np.intp]


@dataclass(frozen=True)
class Trainer:
    """One process that makes steps. Instants are Unix nanoseconds; arrays have one row per step.

    ``pauses`` has kind, start_ns, end_ns, file, line, what, within [start_ns, end_ns).
    """

    source: int
    host: str | None
    rank: int | None
    process: int | None
    start_ns: int
    end_ns: int
    step_start: Ints
    step_end: Ints
    wait: Ints
    from_first: bool
    pauses: pl.DataFrame

    @property
    def usual_ns(self) -> int:
        """The median step after the first one; of the first one where it is the only one."""
        lasted = self.step_end - self.step_start
        return int(np.median(lasted[1:] if lasted.size > 1 else lasted))

    @property
    def first_ns(self) -> int:
        """When the work of the first step began, at the latest; see the module."""
        if not self.from_first or self.step_end.size < 2:
            return int(self.step_start[0])
        return int(max(self.step_start[0], self.step_end[0] - self.usual_ns))

    @property
    def last_ns(self) -> int:
        """When the last step ended."""
        return int(self.step_end[-1])

    @cached_property
    def waited(self) -> Ints:
        """Loader wait of each step; in the first one no more than usual, the rest is start-up."""
        found = self.wait.copy()
        if self.from_first and found.size > 1:
            found[0] = min(int(found[0]), int(np.median(found[1:])))
        return found

    @cached_property
    def cuts(self) -> Cuts:
        """The pieces of its time."""
        return _cut(self)

    def intervals(self, *, recording: bool) -> tuple[Ints, Ints]:
        """Its pauses as a set: those of the recording itself, or all others."""
        mine = self.pauses.filter((pl.col("kind") == "profiler") == recording)
        return union(mine["start_ns"].to_numpy(), mine["end_ns"].to_numpy())


def _cut(t: Trainer) -> Cuts:
    ours, theirs = t.intervals(recording=True), t.intervals(recording=False)
    whole = np.array([t.start_ns, t.first_ns, t.end_ns], np.int64)
    edges = np.concatenate([whole, t.step_start, t.step_end, *ours, *theirs])
    edges = np.sort(np.clip(edges, t.start_ns, t.end_ns), kind="stable")  # mostly in order
    edges = edges[np.concatenate([[True], edges[1:] > edges[:-1]])]
    start, end = edges[:-1], edges[1:]
    step = np.searchsorted(t.step_end, start, side="right")
    at = np.minimum(step, t.step_end.size - 1)
    inside = (step < t.step_end.size) & (t.step_start[at] <= start)
    role = np.where(inside, STEP, UNKNOWN).astype(np.int8)
    if t.from_first:
        role[start < t.first_ns] = START_UP
        if t.step_end.size < 2:
            role[inside] = UNKNOWN
    role[start >= t.last_ns] = TAIL
    role[covered(start, theirs)] = PAUSE
    role[covered(start, ours)] = UNKNOWN
    return Cuts(start, end, _busy(t, end - start, role, at), role, at)


def _busy(t: Trainer, lasted: Ints, role: npt.NDArray[np.int8], step: npt.NDArray[np.intp]) -> Ints:
    """Busy ns of each piece: a step's wait is spread evenly over what pauses leave of it."""
    busy = np.where(role == UNKNOWN, -1, 0).astype(np.int64)
    mine = np.flatnonzero(role == STEP)
    if not mine.size:
        return busy
    whole = np.zeros(t.step_end.size, np.int64)
    np.add.at(whole, step[mine], lasted[mine])
    work = np.maximum(whole - t.waited, 0)
    until = np.cumsum(lasted[mine])
    first = np.concatenate([[True], step[mine][1:] != step[mine][:-1]])
    base = np.maximum.accumulate(np.where(first, until - lasted[mine], 0))
    share = work[step[mine]] / whole[step[mine]]
    after = np.rint((until - base) * share).astype(np.int64)
    last = np.append(first[1:], True)
    after[last] = work[step[mine]][last]
    before = np.where(first, 0, np.concatenate([[0], after[:-1]]))
    busy[mine] = after - before
    return busy


class Moments:
    """What hooks timed in all training processes; ``trainers`` in order of source and rank."""

    def __init__(self, views: Views) -> None:
        """Nothing is looked at before it is asked for."""
        self._views = views

    @cached_property
    def trainers(self) -> list[Trainer]:
        """The processes that made steps."""
        table = self._views.evidence.table("moments")
        made = table.filter(pl.col("kind") == "step").select("source", "process").unique()
        mine = table.join(made, on=["source", "process"], how="semi", nulls_equal=True)
        parts = mine.partition_by("source", "process", maintain_order=True)
        found = [trainer for part in parts for trainer in _trainers(part, self.hosts)]
        rankless = 1 << 31
        return sorted(found, key=lambda t: (t.source, rankless if t.rank is None else t.rank))

    @cached_property
    def hosts(self) -> dict[int, str]:
        """The machine of each source that names one in its settings."""
        named = self._views.evidence.table("settings").filter(pl.col("host").is_not_null())
        pairs = named.select("source", pl.col("host").cast(pl.String)).unique(maintain_order=True)
        return dict(pairs.rows())

    @cached_property
    def gpus(self) -> dict[int, int]:
        """Place of a trainer in ``trainers`` -> number of the sampled GPU that it ran on."""
        return {at: number for at, number in self._placed.items() if number is not None}

    @cached_property
    def _placed(self) -> dict[int, int | None]:
        """Trainers on machines whose GPUs are the meter, and their GPU where it is known."""
        places = [(t.source, t.process, t.rank) for t in self.trainers]
        return gpus_of(self._views, places)

    @cached_property
    def own(self) -> dict[int, int]:
        """Place of a trainer -> its number as a device of its own."""
        sampled = self._views.sampled
        numbers = sampled.members["number"].to_list()
        first = max(numbers, default=-1) + 1
        alone = [at for at in range(len(self.trainers)) if at not in self._placed]
        return {at: first + i for i, at in enumerate(alone)}

    @property
    def without_gpu(self) -> int:
        """How many trainers ran on sampled GPUs, of which it is not known on which."""
        return sum(number is None for number in self._placed.values())

    @cached_property
    def devices(self) -> pl.DataFrame:
        """Everything with a meter: the sampled GPUs, then training processes; see DEVICES."""
        mine = [
            {
                "number": number, "host": t.host, "rank": t.rank, "process": t.process,
                "meter": METER, "start_ns": t.start_ns, "end_ns": t.end_ns,
                "period_ns": t.usual_ns, "samples": t.step_end.size, "source": t.source,
            }
            for number, t in ((self.own[at], self.trainers[at]) for at in self.own)
        ]  # fmt: skip
        sampled = frame(DEVICES, self._views.sampled.gpus)
        return pl.concat([sampled, frame(DEVICES, mine)]) if mine else sampled

    @cached_property
    def pieces(self) -> pl.DataFrame:
        """The time of all ``devices``; see views.sampled.PIECES."""
        found = [self._views.sampled.pieces]
        for at, number in self.own.items():
            cuts = self.trainers[at].cuts
            known = pl.col("busy_ns") >= 0
            columns = {"start_ns": cuts.start, "end_ns": cuts.end, "busy_ns": cuts.busy}
            table = pl.DataFrame(columns).with_columns(
                pl.lit(number, pl.UInt32).alias("number"),
                pl.when(known).then("busy_ns").alias("busy_ns"),
            )
            lasted = pl.col("end_ns") - pl.col("start_ns")
            found.append(frame(PIECES, table.with_columns((pl.col("busy_ns") / lasted).alias(
                "value"))))  # fmt: skip
        return pl.concat(found)

    def labels(self) -> dict[int, str]:
        """What to call each device in a sentence."""
        found = self._views.sampled.labels()
        several = len({t.host for t in self.trainers}) > 1
        for at, number in self.own.items():
            t = self.trainers[at]
            where = f" of {t.host}" if several and t.host else ""
            lone = "The training process" if len(self.trainers) == 1 else f"Process {t.process}"
            found[number] = (lone if t.rank is None else f"Rank {t.rank}") + where
        return found

    @property
    def recording_ns(self) -> int:
        """What starting and ending profiles took, over all trainers."""
        sets = (t.intervals(recording=True) for t in self.trainers)
        return sum(int((end - start).sum()) for start, end in sets)


def _trainers(rows: pl.DataFrame, hosts: dict[int, str]) -> list[Trainer]:
    """The trainers under one process id; a program that replaced itself is another one."""
    kind = pl.col("kind").cast(pl.String)
    rows = rows.with_columns(kind.alias("kind")).sort("start_ns", maintain_order=True)
    lives = rows.filter(pl.col("kind") == "process")
    begins = lives["start_ns"].to_list() or [rows["start_ns"][0]]
    bounds = [*begins[1:], None]
    found = []
    for begin, until in zip(begins, bounds, strict=True):
        inside = pl.col("start_ns") >= begin
        mine = rows.filter(inside if until is None else inside & (pl.col("start_ns") < until))
        trainer = _trainer(mine, begin, until, hosts)
        found += [trainer] if trainer.step_end.size else []
    return found


def _trainer(rows: pl.DataFrame, begin: int, until: int | None, hosts: dict[int, str]) -> Trainer:
    source, rank, process = rows.select("source", "rank", "process").row(0)
    latest = int(rows["end_ns"].to_numpy().max())
    end = latest if until is None else min(latest, until)
    steps = rows.filter((pl.col("kind") == "step") & (pl.col("end_ns") <= end)).select(
        "number", "start_ns", "end_ns"
    )
    waits = rows.filter(pl.col("kind") == "loader_wait").select("start_ns", "length_ns")
    waits = waits.group_by("start_ns").agg(pl.col("length_ns").sum())
    joined = steps.join(waits, on="start_ns", how="left", maintain_order="left")
    pauses = rows.filter(~pl.col("kind").is_in(["process", "step", "loader_wait"])).select(
        "kind", "start_ns", pl.col("end_ns").clip(upper_bound=end), "file", "line", "what"
    )
    return Trainer(
        source=source,
        host=hosts.get(source),
        rank=rank,
        process=process,
        start_ns=begin,
        end_ns=end,
        step_start=steps["start_ns"].to_numpy(),
        step_end=steps["end_ns"].to_numpy(),
        wait=joined["length_ns"].fill_null(0).to_numpy(),
        from_first=steps["number"].first() == 0,
        pauses=_told_once(pauses.filter(pl.col("end_ns") > pl.col("start_ns")), joined),
    )


def _told_once(pauses: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Pauses without overdue steps that waited for their loader: those are waits, not unknown."""
    waits = steps.filter(pl.col("length_ns") * 2 >= pl.col("end_ns") - pl.col("start_ns"))
    waiting = (pl.col("kind") == "stalled") & pl.col("start_ns").is_in(waits["start_ns"].implode())
    return pauses.filter(~waiting)
