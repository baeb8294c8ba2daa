"""Gives each part of a wait to a cause, and says what each cause took from the way to a meeting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from whyidle.intervals import Index, Ints
from whyidle.leavings import LOSSES, Partial
from whyidle.ledger import PARTS_PER_NS
from whyidle.model import frame
from whyidle.views.waits import Waits
from whyidle.views.walk import (
    COMPUTE,
    FIXED,
    MOVING,
    OUTSET,
    SLOWER_PART,
    UNKNOWN,
    Ground,
    Shares,
    all_level,
)

Floats = npt.NDArray[np.float64]
PAUSE_NS = 5_000_000
"""A stretch without any record on the host is a pause from this length on."""

LEAST_STEPS = 3
SMALL_SHARE = 0.005
_ROOT = {
    "entry": pl.Int64, "share": pl.Float64, "cause": pl.String, "level": pl.String,
    "file": pl.String, "line": pl.Int32, "op": pl.String, "thread": pl.String, "peer": pl.Int32,
}  # fmt: skip
_WORDS = {
    "more_work": "{} waits for more computing there",
    "upstream": "{} waits for another stage's computing",
    "slower": "{} waits for slower kernels there",
    "held_up": "{} waits for the host there, which recorded nothing",
    "pauses": "{} waits for a pause of the host there",
    "unknown": "{} waits; what held that rank is not recorded",
    "outset": "{} waits for a rank that was late when the recording began",
    "moving": "{} waits for a rank that was still communicating",
}
_LEVELS = {"more_work": "deduced", "upstream": "deduced", "slower": "deduced"}


@dataclass(frozen=True)
class Charged:
    """Whom the waits go to.

    ``roots``: per waiting entry, shares with cause (null: the one that claimed the communication)
    and place. ``losses``: the job's, with pauses under their own cause. ``before``: per cell and
    cause, nanoseconds the cause took before it; and the causes' ids.
    """

    roots: pl.DataFrame
    losses: pl.DataFrame
    before: tuple[Floats, list[str]]


def charged(
    found: Shares, waits: Waits, ground: Ground, job: Partial, reasons: Mapping[str, str]
) -> Charged:
    """Each part of each wait with its cause and place."""
    pausing = _pausing(found, waits, ground, job) if "pauses" in reasons else np.zeros(0, np.int64)
    pauses = np.isin(np.arange(ground.first.size), pausing)
    reason = _reasons(found, ground, job, pauses)
    roots = _roots(found, reason, ground, job, reasons, waits)
    cells = _paused_cells(job, ground, pauses)
    losses = _with_pauses(job, cells, reasons.get("pauses"))
    return Charged(roots, losses, _before(waits, ground, job, roots, cells, pauses, reasons))


def _holes(ground: Ground, activity: str) -> Index:
    return np.array(
        [i + FIXED for i, (_, hole) in enumerate(ground.names) if hole == activity], dtype=np.int64
    )


def _pausing(found: Shares, waits: Waits, ground: Ground, job: Partial) -> Index:
    """Windows whose host pauses now and then: in less than half of the steps, for long."""
    hole = np.isin(found.part, _holes(ground, "nothing"))
    took = found.share * (waits.until - waits.arrival)[found.entry]
    late = np.unique(found.late[hole & (took >= PAUSE_NS)])
    paused: list[int] = []
    for window in np.unique(ground.window[late]).tolist():
        mine = late[ground.window[late] == window]
        place = job.windows.row(window, named=True)
        steps = job.steps.filter(
            pl.col("rank").eq_missing(place["rank"]) & (pl.col("source") == place["source"])
        )
        starts = steps["start_ns"].sort().to_numpy()
        at = np.searchsorted(starts, job.entries["start_ns"].to_numpy()[mine], side="right")
        count = starts.size or int((ground.level & (ground.window == window)).sum())
        times = np.unique(at).size if starts.size else mine.size
        if count >= LEAST_STEPS and 2 * times < count:
            paused.append(window)
    return np.array(paused, dtype=np.int64)


def _reasons(
    found: Shares, ground: Ground, job: Partial, pauses: npt.NDArray[np.bool_]
) -> pl.Series:
    """The reason of each share; null where a loss of a cause on the late device is one."""
    pair = job.entries.select(
        pl.col("sender").is_not_null() | (pl.col("collective") == "send and receive")
    ).to_series().to_numpy()[found.entry]  # fmt: skip
    nothing = np.isin(found.part, _holes(ground, "nothing"))
    collector = np.isin(found.part, _holes(ground, "collector"))
    paused = pauses[ground.window[found.late]]
    text = np.full(found.part.size, "", dtype="<U12")
    for where, name in (
        (found.part == COMPUTE, "more_work"),
        ((found.part == COMPUTE) & pair, "upstream"),
        (found.part == MOVING, "moving"),
        (found.part == UNKNOWN, "unknown"),
        (found.part == OUTSET, "outset"),
        (found.part == SLOWER_PART, "slower"),
        (nothing, "held_up"),
        ((nothing & paused) | collector, "pauses"),
    ):
        text[where] = name
    return pl.Series(text).replace("", None)


def _roots(
    found: Shares, reason: pl.Series, ground: Ground, job: Partial, reasons: Mapping[str, str],
    waits: Waits,
) -> pl.DataFrame:  # fmt: skip
    table = pl.DataFrame(
        {"entry": found.entry, "share": found.share, "part": found.part, "reason": reason}
    ).with_columns(
        pl.Series("window", ground.window[found.late], dtype=pl.UInt32),
        job.entries["collective"].gather(found.entry).alias("collective"),
        pl.Series("whole", waits.whole[found.entry]),
    )
    table = table.filter(pl.col("share") >= SMALL_SHARE)
    table = table.with_columns(pl.col("share") / pl.col("share").sum().over("entry"))
    names = pl.DataFrame(
        {
            "part": pl.Series(range(FIXED, FIXED + len(ground.names)), dtype=pl.Int64),
            "owner": pl.Series([n for n, _ in ground.names], dtype=pl.String),
        }
    )
    table = table.join(names, on="part", how="left", maintain_order="left")
    places = _places(job)
    table = table.join(
        places, left_on=["window", "owner"], right_on=["window", "cause"], how="left",
        maintain_order="left",
    )  # fmt: skip
    peers = job.windows.select(pl.col("rank").alias("peer")).with_row_index("window")
    table = table.join(peers, on="window", how="left", maintain_order="left")
    stands = dict(reasons)
    if "unknown" in stands:
        stands["outset"] = stands["unknown"]
    words = pl.col("reason").replace_strict(_WORDS, default=None, return_dtype=pl.String)
    own = pl.col("reason").is_null()
    sure = pl.col("reason").replace_strict(_LEVELS, default="suspected", return_dtype=pl.String)
    told = table.with_columns(
        pl.when(own).then("owner").otherwise(
            pl.col("reason").replace_strict(stands, default=None, return_dtype=pl.String)
        ).alias("cause"),
        pl.when(own).then("op").otherwise(
            words.str.replace("{}", pl.col("collective"), literal=True)
        ).alias("op"),
        pl.when(~pl.col("whole")).then(pl.lit("suspected")).when(own).then(
            pl.when(pl.col("level") == "suspected").then("level").otherwise(pl.lit("deduced"))
        ).otherwise(sure).alias("level"),
        *(pl.when(own).then(pl.col(c)).alias(c) for c in ("file", "line", "thread")),
    )  # fmt: skip
    keys = [name for name in _ROOT if name not in ("share",)]
    sums = told.group_by(keys, maintain_order=True).agg(pl.col("share").sum())
    return frame(_ROOT, sums)


def _places(job: Partial) -> pl.DataFrame:
    """Where each device lost most to each cause while it did not compute."""
    idle = job.losses.filter(pl.col("state").is_in(["empty", "copy"]))
    told = idle.with_columns(pl.col("cause", "level", "file", "op", "thread").cast(pl.String))
    told = told.sort("lost", "start_ns", descending=[True, False])
    top = told.unique(["window", "cause"], keep="first", maintain_order=True)
    return top.select("window", "cause", "level", "file", "line", "op", "thread")


def _paused_cells(job: Partial, ground: Ground, pauses: npt.NDArray[np.bool_]) -> pl.DataFrame:
    """Rows of cell_losses that are pauses of the host, with their window."""
    owner = job.cells["window"]
    rows = job.cell_losses.with_columns(
        owner.gather(job.cell_losses["cell"]).alias("window"),
        pl.col("activity").cast(pl.String),
        pl.col("cause").cast(pl.String),
    )
    long = (pl.col("longest") >= PAUSE_NS) & (pl.col("activity") == "nothing")
    return rows.filter(long & pl.Series(pauses[rows["window"].to_numpy()]))


def _with_pauses(job: Partial, cells: pl.DataFrame, cause: str | None) -> pl.DataFrame:
    """The job's losses, with what pauses took on their own device under their own cause."""
    if cause is None or not cells.height:
        return job.losses
    owed = {
        (w, c): ns * PARTS_PER_NS
        for w, c, ns in cells.group_by("window", "cause").agg(pl.col("ns").sum()).iter_rows()
    }
    windows = sorted({w for w, _ in owed})
    hit = pl.col("window").is_in(windows) & (pl.col("activity").cast(pl.String) == "nothing")
    hit = hit.fill_null(value=False)
    kept, moved = [], []
    rows = job.losses.filter(hit).sort("lost", descending=True)
    for row in rows.iter_rows(named=True):
        key = (row["window"], str(row["cause"]))
        take = min(owed.get(key, 0), row["lost"])
        owed[key] = owed.get(key, 0) - take
        kept.append(row | {"lost": row["lost"] - take})
        moved.append(row | {"lost": take, "cause": cause, "level": "suspected"})
    changed = frame(LOSSES, [row for row in kept + moved if row["lost"]])
    return pl.concat([job.losses.filter(~hit), changed])


def _before(
    waits: Waits, ground: Ground, job: Partial, roots: pl.DataFrame, cells: pl.DataFrame,
    pauses: npt.NDArray[np.bool_], reasons: Mapping[str, str],
) -> tuple[Floats, list[str]]:  # fmt: skip
    """What each cause took before each cell, from the device's own way to its meetings."""
    own = job.cell_losses.select("cell", pl.col("cause").cast(pl.String), "ns")
    own = own.join(cells.select("cell", "cause", "ns"), on=["cell", "cause", "ns"], how="anti")
    rows = [own, cells.select("cell", pl.lit(reasons.get("pauses")).alias("cause"), "ns")]
    waited = (waits.until - waits.arrival)[roots["entry"].to_numpy()]
    last = np.maximum(ground.leaves[roots["entry"].to_numpy()] - 1, 0)
    rows.append(
        roots.select(
            pl.Series("cell", last, dtype=pl.UInt32),
            "cause",
            (pl.col("share") * pl.Series(waited)).cast(pl.Int64).alias("ns"),
        )
    )
    for name, cause in reasons.items():
        cell, ns = _extra(name, waits, ground, pauses)
        rows.append(pl.DataFrame({"cell": pl.Series(cell, dtype=pl.UInt32), "ns": ns}).select(
            "cell", pl.lit(cause).alias("cause"), "ns"))  # fmt: skip
    table = pl.concat(rows).drop_nulls("cause").filter(pl.col("ns") > 0)
    names = table["cause"].unique().sort().to_list()
    total = np.zeros((job.cells.height + 1, len(names)))
    column = table["cause"].replace_strict(names, range(len(names)), return_dtype=pl.Int64)
    np.add.at(total, (table["cell"].to_numpy() + 1, column.to_numpy()), table["ns"].to_numpy())
    return np.cumsum(total, axis=0), names


def _extra(
    reason: str, waits: Waits, ground: Ground, pauses: npt.NDArray[np.bool_]
) -> tuple[Ints, Ints]:
    """(cell, ns): what members of a meeting did for longer than the middle one, by reason."""
    met = np.flatnonzero(waits.meeting >= 0)
    base = all_level(waits, ground)[met]
    low = np.where(base >= 0, ground.leaves[np.maximum(base, 0)], ground.first[ground.window[met]])
    high = np.maximum(ground.enters[met], low)
    spent = (ground.parts[high] - ground.parts[low]).astype(np.float64)
    speed = ground.speed[ground.window[met]]
    if reason == "slower":
        return _new(waits, ground, met, base, spent[:, COMPUTE] * (1 - 1 / speed))
    if reason in ("more_work", "upstream"):
        took = spent[:, COMPUTE] / speed
    elif reason == "held_up":
        took = spent[:, _holes(ground, "nothing")].sum(axis=1)
        took = np.where(pauses[ground.window[met]], 0.0, took)
    elif reason == "unknown":
        began = waits.arrival[met] - _lengths(ground, low, high)
        took = spent[:, UNKNOWN] + np.where(
            base < 0, (began - int(began.min())).astype(np.float64), 0.0
        )
    else:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    table = pl.DataFrame({"meeting": waits.meeting[met], "took": took})
    usual = table.select(pl.col("took").quantile(0.5, "lower").over("meeting")).to_series()
    return _new(waits, ground, met, base, np.maximum(took - usual.to_numpy(), 0.0))


def _lengths(ground: Ground, low: Index, high: Index) -> Ints:
    return np.asarray((ground.parts[high] - ground.parts[low]).sum(axis=1))


def _new(waits: Waits, ground: Ground, met: Index, base: Index, ns: Floats) -> tuple[Ints, Ints]:
    """What is new of totals that count since the same level point; placed before the entry."""
    order = np.lexsort((waits.arrival[met], ground.window[met]))
    met, base, ns = met[order], base[order], ns[order]
    # entries of one window since one level point, in order of their arrival
    since = ground.window[met].astype(np.int64) * (waits.meeting.size + 1) + base
    run = np.argsort(since, kind="stable")
    first = np.append(True, np.diff(since[run]) > 0)[: run.size]
    value, rank = np.unique(ns[run], return_inverse=True)  # ranks keep every digit of the totals
    offset = np.cumsum(first) * value.size
    most = value[np.maximum.accumulate(rank + offset) - offset]
    gained = np.empty_like(ns)
    gained[run] = most - np.where(first, 0.0, np.append(0.0, most[:-1])[: run.size])
    new = gained > 0
    cell = np.maximum(ground.enters[met[new]] - 1, 0)
    return cell, np.rint(gained[new]).astype(np.int64)
