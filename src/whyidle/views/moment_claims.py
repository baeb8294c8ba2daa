"""What hooks timed of the whole run, as claims on the idle time of the job's devices.

On a training process that is a device of its own a claim is *seen*: the hook timed just that. On
the sampled GPU that it ran on it is *deduced*: the GPU's readings are idle, and the process that
feeds it did this meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
import polars as pl

from whyidle.model import JOB_CLAIMS, frame
from whyidle.views.moments import STEP, Trainer

if TYPE_CHECKING:
    from whyidle.views import Views


class Loader(NamedTuple):
    """File and line that make a loader, and its worker processes; None where not known."""

    file: str | None
    line: int | None
    workers: int | None


def seconds(ns: pl.Expr) -> pl.Expr:
    """Nanoseconds as text for a sentence, such as ``0.25 s``."""
    return pl.format("{} s", (ns / 1e9).round_sig_figs(3))


def placed(views: Views) -> Iterator[tuple[Trainer, int, str]]:
    """Each trainer with the device of the job ledger to claim on, and how sure that is."""
    moments = views.moments
    for at, trainer in enumerate(moments.trainers):
        if at in moments.own:
            yield trainer, moments.own[at], "seen"
        elif at in moments.gpus:
            yield trainer, moments.gpus[at], "deduced"


def pauses(
    views: Views, which: pl.Expr, words: pl.Expr, *, once_begun: bool = False
) -> pl.DataFrame:
    """Claims for the pauses for which ``which`` holds; schema JOB_CLAIMS.

    Both expressions may use kind, start_ns, end_ns, file, line, what of each pause. With
    ``once_begun`` pauses of the start-up are left to it.
    """
    found = []
    for trainer, number, level in placed(views):
        mine = trainer.pauses
        if once_begun:
            mine = mine.filter(pl.col("start_ns") >= trainer.first_ns)
        mine = mine.with_columns(pl.col("kind", "file").cast(pl.String))
        told = mine.filter(which).with_columns(words.alias("what"))
        found.append(_claims(told, number, level))
    return _all(found)


def starts_again(views: Views) -> pl.DataFrame:
    """Claims for starts of a loader that its line, or the loader itself, had started before."""
    found = []
    for trainer, number, level in placed(views):
        mine = trainer.pauses.with_columns(pl.col("kind", "file").cast(pl.String)).filter(
            pl.col("kind") == "loader_start"
        )
        which = pl.coalesce(pl.format("{}:{}", "file", "line"), "what", pl.lit(""))
        again = mine.filter(pl.int_range(pl.len()).over(which) > 0)
        lasted = pl.col("end_ns") - pl.col("start_ns")
        words = pl.format("a loader started again for {}", seconds(lasted))
        found.append(_claims(again.with_columns(words.alias("what")), number, level))
    return _all(found)


def start_ups(views: Views) -> pl.DataFrame:
    """Claims for the time from the import of torch to the work of the first step."""
    found = []
    for trainer, number, level in placed(views):
        lasted = trainer.first_ns - trainer.start_ns
        if trainer.from_first and lasted > 0:
            words = f"{_words(lasted)} from the import of torch to the work of the first step"
            row = {"start_ns": trainer.start_ns, "end_ns": trainer.first_ns, "what": words}
            found.append(_claims(pl.DataFrame(row), number, level))
    return _all(found)


def tails(views: Views, shortest_ns: int) -> pl.DataFrame:
    """Claims for what comes after the last step, where it lasts so long."""
    found = []
    for trainer, number, level in placed(views):
        lasted = trainer.end_ns - trainer.last_ns
        if lasted >= shortest_ns:
            words = f"{_words(lasted)} from the last step to the end of the process"
            row = {"start_ns": trainer.last_ns, "end_ns": trainer.end_ns, "what": words}
            found.append(_claims(pl.DataFrame(row), number, level))
    return _all(found)


def loader_waits(views: Views) -> pl.DataFrame:
    """Claims for what steps waited in their loader; the place is the line of the DataLoader."""
    found = []
    for trainer, number, level in placed(views):
        told = _runs(trainer) if level == "seen" else _beside_gpu(views, trainer, number)
        loader = loader_of(views, trainer)
        workers = "" if loader.workers is None else f" (num_workers={loader.workers})"
        place = (
            pl.lit(loader.file, pl.String).alias("file"),
            pl.lit(loader.line, pl.Int32).alias("line"),
            (pl.col("what") + workers).alias("what"),
        )
        found.append(_claims(told.with_columns(*place), number, level))
    return _all(found)


def _runs(t: Trainer) -> pl.DataFrame:
    """Stretches of steps without a pause; all that is idle in them is wait for the loader."""
    cuts = t.cuts
    mine = np.flatnonzero(cuts.role == STEP)
    if not mine.size:
        return pl.DataFrame(schema={"start_ns": pl.Int64, "end_ns": pl.Int64, "what": pl.String})
    first = np.flatnonzero(np.concatenate([[True], np.diff(mine) > 1]))
    last = np.append(first[1:], mine.size) - 1
    idle = cuts.end[mine] - cuts.start[mine] - cuts.busy[mine]
    sums = np.add.reduceat(idle, first)
    steps = cuts.step[mine[last]] - cuts.step[mine[first]] + 1
    told = pl.DataFrame(
        {
            "start_ns": cuts.start[mine[first]],
            "end_ns": cuts.end[mine[last]],
            "waited": sums,
            "steps": steps,
        }
    ).filter(pl.col("waited") > 0)
    many = pl.format("{} steps waited {} for batches", "steps", seconds(pl.col("waited")))
    one = pl.format("a step waited {} for a batch", seconds(pl.col("waited")))
    return told.with_columns(pl.when(pl.col("steps") == 1).then(one).otherwise(many).alias("what"))


def _beside_gpu(views: Views, t: Trainer, number: int) -> pl.DataFrame:
    """Readings of the GPU during steps; what is idle in each is wait up to what steps waited."""
    readings = views.sampled.pieces.filter(
        (pl.col("number") == number) & pl.col("busy_ns").is_not_null()
    )
    start, end = readings["start_ns"].to_numpy(), readings["end_ns"].to_numpy()
    origin = t.step_start[0]
    at = np.concatenate([[0], t.step_end - origin])
    total = np.concatenate([[0], np.cumsum(t.waited)])
    waited = np.interp(end - origin, at, total) - np.interp(start - origin, at, total)
    idle = end - start - readings["busy_ns"].to_numpy()
    share = np.divide(waited, idle, out=np.zeros(idle.size), where=idle > 0)
    told = readings.select("start_ns", "end_ns").with_columns(
        pl.Series("weight", np.minimum(share, 1.0)), pl.Series("waited", np.rint(waited))
    )
    words = pl.format("steps waited {} for batches meanwhile", seconds(pl.col("waited")))
    return told.filter(pl.col("weight") > 0).with_columns(words.alias("what"))


def loader_of(views: Views, t: Trainer) -> Loader:
    """The loader that the steps of a process wait for, as far as its events tell.

    Of several loaders it is the one that steps waited for most, else the one that gave the process
    most batches, by the time they took.
    """
    sites = views.evidence.table("sites").filter(
        (pl.col("source") == t.source) & pl.col("process").eq_missing(t.process)
        & pl.col("file").is_not_null()
    ).select(pl.col("what", "file").cast(pl.String), "line", "detail")  # fmt: skip
    chosen = _most_waited(sites)
    chosen = _most_used(views, t) if chosen is None else chosen
    told = {
        kind: [
            (Loader(row["file"], row["line"], _detail(row["detail"], "num_workers")),
             _detail(row["detail"], "loader"))
            for row in sites.filter(pl.col("what") == kind).rows(named=True)
        ]
        for kind in ("loader_made", "loader", "loader_iterated")
    }  # fmt: skip
    for rows in told.values() if chosen is not None else ():
        found = {loader for loader, number in rows if number == chosen}
        if len(found) == 1:
            return found.pop()
    for rows in told.values():
        found = {loader for loader, _ in rows}
        if len(found) == 1:
            return found.pop()
    return Loader(None, None, None)


def _most_waited(sites: pl.DataFrame) -> int | None:
    """The running number of the loader that steps waited for most; None where that is unknown."""
    rows = sites.filter(pl.col("what") == "loader_iterated")["detail"].to_list()
    waits = [(_detail(row, "waited_ns"), _detail(row, "loader")) for row in rows]
    known = [(waited, loader) for waited, loader in waits if waited and loader is not None]
    return max(known, default=(None, None))[1]


def _most_used(views: Views, t: Trainer) -> int | None:
    """The running number of the loader whose batches for this process took most time."""
    batches = views.evidence.table("batches").filter(
        (pl.col("source") == t.source) & pl.col("rank").eq_missing(t.rank)
    )
    sums = batches.group_by("loader").agg(pl.col("wall_ns").sum()).sort("wall_ns", "loader")
    return sums["loader"].last() if sums.height else None  # type: ignore[return-value]


def _detail(detail: str | None, name: str) -> int | None:
    try:
        found = msgspec.json.decode(detail or "{}").get(name)
    except (msgspec.DecodeError, AttributeError):
        return None
    return found if isinstance(found, int) else None


def _words(ns: int) -> str:
    return f"{ns / 1e9:,.3g} s"


def _claims(found: pl.DataFrame, number: int, level: str) -> pl.DataFrame:
    """Claims on the idle part of one device; ``found`` has start_ns, end_ns, what and more."""
    weight = [] if "weight" in found.columns else [pl.lit(1.0).alias("weight")]
    return frame(
        JOB_CLAIMS,
        found.with_columns(
            pl.lit(number, pl.UInt32).alias("number"),
            pl.lit("idle").alias("part"),
            pl.lit(level).alias("level"),
            *weight,
        ),
    )


def _all(found: list[pl.DataFrame]) -> pl.DataFrame:
    return pl.concat(found) if found else frame(JOB_CLAIMS)
