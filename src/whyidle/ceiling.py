"""How busy a GPU could at most be behind the data loader that was measured.

The loader's rate is what its processes took for their batches, as if they never waited. The GPU's
step is what the profiled step asks of it, at 20 % to 60 % of what its data sheet promises, which is
where training usually lies. Both are kind to the job: what a step spends elsewhere is left out.
The two ends are no bounds of the GPU's own: a step that reaches more of the peak is shorter still,
and one that reaches less is longer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from whyidle.errors import NothingRecorded
from whyidle.gpu_peaks import Peak
from whyidle.model import Evidence
from whyidle.render.numerals import about, count, digits, duration, percent
from whyidle.step_work import StepWork, step_work

EFFICIENCY = (0.2, 0.6)
"""The shares of a GPU's peak, of arithmetic and of bandwidth, between which a step may lie."""

UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""))

LEAST_CALL_S = (5e-6, 2e-6)
"""What the kernel of an operator with next to no work takes, at the slow and the fast end."""

AHEAD = 2
"""Batches that a worker makes before they are asked for, where nobody chose another number."""


@dataclass(frozen=True)
class Loading:
    """What one rank's loader can deliver.

    ``batch_s`` are the seconds of a process for a batch of ``items``. ``workers`` is 0 where the
    training process itself loads. ``cpus`` are those that it may use, its share where ``ranks`` of
    one machine use them together; None where unknown.
    """

    items: float
    unit: str
    batch_s: float
    batch_cpu_s: float
    workers: int
    cpus: float | None
    batches_per_step: int
    ranks: int = 1

    @property
    def seconds(self) -> float:
        """Seconds between two batches, with all workers at work."""
        by_workers = self.batch_s / max(self.workers, 1)
        return max(by_workers, self.batch_cpu_s / self.cpus) if self.cpus else by_workers

    @property
    def rate(self) -> float:
        """Items per second."""
        return self.items / self.seconds


@dataclass(frozen=True)
class Ceiling:
    """The answer for one GPU: pairs are (low, high), from a fast GPU step to a slow one.

    ``step_s`` are the GPU's seconds for a step, ``needed`` the items per second that keep it busy
    (low at the slow step), ``busy`` the share of time that it can be busy, ``workers`` how many
    it takes.
    """

    gpu: str
    loading: Loading
    work: StepWork
    step_s: tuple[float, float]
    needed: tuple[float, float]
    busy: tuple[float, float]
    workers: tuple[int, int]


def ceiling(evidence: Evidence, gpu: Peak) -> Ceiling | str:
    """The ceiling of ``gpu``, or a sentence that says what it lacks."""
    loading = loading_of(evidence)
    if loading is None:
        return "No batch of a data loader was timed, so how busy a GPU could be is not known."
    work = step_work(evidence)
    if work is None or not work.pieces:
        return (
            "No step was profiled with its shapes, so how busy a GPU could be is not known; "
            "observe more steps, without --no-profile."
        )
    slow, fast = (
        work.seconds(gpu.single * share, gpu.half * share, gpu.bandwidth * share, least_s)
        for share, least_s in zip(EFFICIENCY, LEAST_CALL_S, strict=True)
    )
    items = loading.items * loading.batches_per_step
    needed = (items / slow, items / fast)
    per_worker = loading.items / loading.batch_s
    return Ceiling(
        gpu=gpu.name,
        loading=loading,
        work=work,
        step_s=(fast, slow),
        needed=needed,
        busy=(_busy(fast, loading), _busy(slow, loading)),
        workers=(math.ceil(needed[0] / per_worker), math.ceil(needed[1] / per_worker)),
    )


def _busy(step_s: float, loading: Loading) -> float:
    """The largest share of time in a step; loading in the training process lies beside it."""
    loads_s = loading.seconds * loading.batches_per_step
    return step_s / (max(step_s, loads_s) if loading.workers else step_s + loads_s)


def told(found: Ceiling) -> list[str]:
    """The ceiling in sentences."""
    loading, work = found.loading, found.work
    who = count(loading.workers, "worker") if loading.workers else "the training process itself"
    step = _between(*map(duration, found.step_s))
    needed = _between(*map(_rounded, found.needed))
    each = f" of each of {loading.ranks} ranks" if loading.ranks > 1 else ""
    rate = f"{_rounded(loading.rate)} {loading.unit}/s"
    lines = [
        f"The loader{each}, {who}, could deliver at most {rate}.",
        f"{found.gpu}, at {about(EFFICIENCY[0])} to {about(EFFICIENCY[1])} of its peak, would do a "
        f"step ({_flop(work.flop)}, {_precision(work)}) in {step}, and need {needed} "
        f"{loading.unit}/s to be always busy.",
        f"Behind this loader it is busy at most {_between(*map(percent, found.busy))} of the time.",
    ]
    if found.busy[0] < 1 and found.workers[1] > max(loading.workers, 1):
        workers = _between(*(_rounded(number) for number in found.workers))
        lines.append(f"Keeping it busy takes {workers} workers as fast as these{_beside(loading)}.")
    if work.uncounted:
        lines.append(f"Not counted: the arithmetic of {', '.join(work.uncounted)}.")
    return lines


def _beside(loading: Loading) -> str:
    if not loading.cpus:
        return ""
    if loading.ranks > 1:
        return f"; a rank's share of the CPUs here is {digits(loading.cpus)}"
    return f"; the job may use {digits(loading.cpus)} CPUs here"


def _flop(number: float) -> str:
    size, unit = next((s, u) for s, u in UNITS if number >= s or s == 1)
    return f"{digits(number / size)} {unit}FLOP"


def _precision(work: StepWork) -> str:
    half = math.fsum(piece.flop for piece in work.pieces if piece.half)
    return "mostly in half precision" if half > work.flop / 2 else "mostly in float32"


def _between(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def _rounded(number: float) -> str:
    """Two significant digits; all of those before the point below 100."""
    return f"{float(f'{number:.2g}'):,.0f}" if number >= 10 else digits(number)


def loading_of(evidence: Evidence) -> Loading | None:
    """What the training loader of the first rank can deliver; None where none was timed."""
    batches = evidence.tables.get("batches")
    if batches is None or not batches.height:
        return None
    rank = batches.sort(pl.col("rank").fill_null(0))["rank"][0]
    mine = batches.filter(pl.col("rank").eq_missing(pl.lit(rank, pl.Int32)))
    moments = evidence.tables.get("moments")
    ranks = _together(moments, mine["source"][0])
    if moments is not None:
        moments = moments.filter(pl.col("rank").eq_missing(pl.lit(rank, pl.Int32)))
        mine = _outside_evaluations(mine, moments)
    if not mine.height:
        return None
    sizes = mine.group_by("loader").len().sort("len", "loader", descending=[True, False])
    mine = mine.filter(pl.col("loader").eq_missing(pl.lit(sizes["loader"][0], pl.Int32)))
    steps = 0 if moments is None else moments.filter(pl.col("kind") == "step").height
    settled = _settled(mine)
    wall_s = float(settled["wall_ns"].sum()) / settled.height / 1e9
    if wall_s <= 0:
        return None
    items, cpus = settled["items"].drop_nulls(), _cpus(evidence)
    known = bool(items.len()) and float(items.sum()) > 0
    own = mine["worker"].drop_nulls()
    return Loading(
        items=float(items.sum()) / items.len() if known else 1.0,
        unit="samples" if known else "batches",
        batch_s=wall_s,
        batch_cpu_s=float(settled["cpu_ns"].fill_null(0).sum()) / settled.height / 1e9,
        workers=own.n_unique() if own.len() else 0,
        cpus=None if cpus is None else cpus / ranks,
        batches_per_step=_per_step(mine.height, steps, own.n_unique() if own.len() else 0),
        ranks=ranks,
    )


def _together(moments: pl.DataFrame | None, source: int) -> int:
    """Training processes of one bundle, which is of one machine."""
    if moments is None:
        return 1
    made = moments.filter((pl.col("kind") == "step") & (pl.col("source") == source))
    return max(made["process"].n_unique(), 1)


def _per_step(batches: int, steps: int, workers: int) -> int:
    """Batches that a step takes; workers are some ahead when a job ends before its loader does."""
    if not steps or batches % steps == 0:
        return max(batches // steps, 1) if steps else 1
    return max(round((batches - AHEAD * workers) / steps), 1)


def _outside_evaluations(batches: pl.DataFrame, moments: pl.DataFrame) -> pl.DataFrame:
    evaluations = (
        moments.filter(pl.col("kind") == "evaluation")
        .select(begin_ns="start_ns", until_ns="end_ns")
        .sort("begin_ns")
    )
    if not evaluations.height:
        return batches
    return (
        batches.sort("start_ns")
        .join_asof(evaluations, left_on="start_ns", right_on="begin_ns", strategy="backward")
        .filter(pl.col("until_ns").is_null() | (pl.col("start_ns") >= pl.col("until_ns")))
    )


def _settled(batches: pl.DataFrame) -> pl.DataFrame:
    """Without the first batch of each process, which opens files and fills caches."""
    first = pl.col("start_ns") == pl.col("start_ns").min().over("process")
    later = batches.filter(~first)
    return later if later.height else batches


def _cpus(evidence: Evidence) -> float | None:
    """The CPUs that the first process may use: its affinity, or a container's quota."""
    settings = evidence.tables.get("settings")
    if settings is None:
        return None
    rows = settings.filter(pl.col("key").cast(pl.String).is_in(["cpus", "cpu_quota"]))
    known = rows["value"].cast(pl.Float64, strict=False).drop_nulls()
    return float(known.min()) if known.len() else None  # type: ignore[arg-type]


def said_of(paths: Sequence[str], gpu: Peak) -> list[str]:
    """The ceiling of a GPU from evidence that is read for it, in sentences."""
    from whyidle.readers import read

    try:
        found = ceiling(read(paths), gpu)
    except NothingRecorded as error:
        return str(error).splitlines()
    return [found] if isinstance(found, str) else told(found)
