"""Each collective of each device: who came last, and how long the device waited for that one.

A collective's kernel starts on a device when that device has arrived, and moves bytes once the
last one has. What lies between is waiting.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from whyidle.intervals import Index, Ints
from whyidle.views.clocks import TOGETHER, Clocks, clocks
from whyidle.views.meetings import matched

LEAST_PRESENT = 0.5
"""Of a group of which fewer members were recorded, nobody can say who came last."""

USUAL = 2.0
MARGIN_NS = 20_000
"""Where members are missing, a transfer longer than so many times the usual one, and so much,
was itself waiting for one of them."""


@dataclass(frozen=True)
class Waits:
    """Per entry (row of the entries of a job), as parallel arrays; instants on the common clock.

    rank, group: codes of its rank, and of its process group or pair. meeting: -1 for none.
    arrival, end. last: the entry that came last into the same meeting, -1 where that is not known
    or is the entry itself. until: when that one arrived; the entry's own arrival where it waited
    for nobody. whole: every member of the group was recorded. absent: members missing, per meeting.
    """

    clocks: Clocks
    rank: Index
    group: Index
    meeting: Index
    arrival: Ints
    end: Ints
    last: Index
    until: Ints
    whole: npt.NDArray[np.bool_]
    absent: Ints


def waits(entries: pl.DataFrame, ranks: Index, count: int, world: int | None) -> Waits:
    """Who waited for whom. ``ranks``: code of the rank of each entry; ``count`` of them all."""
    table = entries.select(
        "group", "sender", "receiver", "sequence", "collective", "order_ns",
        pl.col("window").alias("member"), pl.col("start_ns").alias("began_ns"),
        pl.col("end_ns").alias("settled_ns"),
    )  # fmt: skip
    sound = np.flatnonzero(entries["collective"].is_in(TOGETHER).to_numpy())
    start, end = entries["start_ns"].to_numpy(), entries["end_ns"].to_numpy()
    for _ in range(2):  # the second time on clocks that the first one aligned
        meeting = matched(table)
        found = clocks(count, ranks, meeting, end, sound)
        if not np.any(found.offset_ns):
            break
        table = table.with_columns(
            pl.Series("began_ns", found.put(ranks, start)),
            pl.Series("settled_ns", found.put(ranks, end)),
        )
    arrival, end = found.put(ranks, start), found.put(ranks, end)
    keys = table.select(pl.struct("group", "sender", "receiver").rank("dense")).to_series()
    group = keys.to_numpy().astype(np.int64)
    last, until = _last(meeting, arrival)
    absent = _absent(entries, meeting, world)
    whole = meeting >= 0
    whole[whole] = absent[meeting[whole]] == 0
    told = _told(entries, meeting, end, until, absent)
    sure = found.error_ns[ranks] + found.error_ns[ranks[np.maximum(last, 0)]]
    waited = (last >= 0) & (until - arrival > sure) & told
    return Waits(
        found, ranks, group, meeting, arrival, end,
        np.where(waited, last, -1), np.where(waited, until, arrival), whole, absent,
    )  # fmt: skip


def _last(meeting: Index, arrival: Ints) -> tuple[Index, Ints]:
    """Per entry the last one to arrive in its meeting, and when; -1 for itself or no meeting."""
    last = np.full(meeting.size, -1, dtype=np.int64)
    until = arrival.copy()
    met = np.flatnonzero(meeting >= 0)
    if met.size:
        order = met[np.lexsort((met, arrival[met]))]
        holder = np.zeros(int(meeting.max()) + 1, dtype=np.int64)
        holder[meeting[order]] = order  # the latest is written last
        last[met] = holder[meeting[met]]
        until[met] = arrival[last[met]]
        last[last == np.arange(last.size)] = -1
    return last, until


def _absent(entries: pl.DataFrame, meeting: Index, world: int | None) -> Ints:
    """Per meeting how many members of its group were not recorded."""
    told = entries.select(
        pl.Series("meeting", meeting),
        pl.when((pl.col("group") == "") & pl.col("size").is_null())
        .then(pl.lit(world, pl.Int32))
        .otherwise("size")
        .alias("size"),
        "sender",
    ).filter(pl.col("meeting") >= 0)
    sums = told.group_by("meeting").agg(
        pl.len(), pl.col("size").max(), pl.col("sender").is_not_null().any().alias("pair")
    ).sort("meeting")  # fmt: skip
    expected = pl.when("pair").then(2).otherwise(pl.col("size").fill_null(pl.col("len")))
    return (
        sums.select((expected.cast(pl.Int64) - pl.col("len")).clip(lower_bound=0))
        .to_series()
        .to_numpy()
    )


def _told(
    entries: pl.DataFrame, meeting: Index, end: Ints, until: Ints, absent: Ints
) -> npt.NDArray[np.bool_]:
    """Whether the last member recorded is likely the last there was.

    With members missing, it is where at least half of them were recorded and the bytes then took
    no longer to move than usual; else all waited for one that is missing.
    """
    if not absent.size:
        return np.zeros(meeting.size, dtype=bool)
    at = np.maximum(meeting, 0)
    present = np.bincount(meeting[meeting >= 0], minlength=absent.size)
    share = present / (present + absent)
    took = (end - until).astype(np.float64)
    keys = entries.select("group", "collective", "bytes", pl.Series("took", took))
    usual = keys.select(
        pl.col("took").quantile(0.25).over("group", "collective", "bytes")
    ).to_series().to_numpy()  # fmt: skip
    usually = took <= USUAL * usual + MARGIN_NS
    return np.asarray(
        (meeting >= 0) & ((absent[at] == 0) | ((share[at] >= LEAST_PRESENT) & usually))
    )
