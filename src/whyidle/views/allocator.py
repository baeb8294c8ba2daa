"""What the history of the caching allocator shows: levels, peaks, who holds memory, who keeps it.

Everything is per ``Device`` history: one device of one source. Bytes are those asked for
(``allocated``) or those taken from the driver (``reserved``).

A history may begin in the middle. What was there before is known from the end: the snapshot's
blocks are the last state, and the events lead back from it. Memory freed that was never seen
allocated has no stack of its own ("before the recording").

One row of ``lifetimes``: one allocation.

======== ====== ==========================================================================
address  UInt64
bytes    Int64
stack    Cat    who asked; null when not recorded or before the recording
born     Int64  position of the event in the device's history; -1 before the recording
died     Int64  position of the event that freed it; the length of the history when none did
seen     Bool   whether the allocation itself was recorded
======== ====== ==========================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

if TYPE_CHECKING:
    from whyidle.model import Evidence

Ints = npt.NDArray[np.int64]

GROWS = ("segment_alloc", "segment_map")
SHRINKS = ("segment_free", "segment_unmap")
BINS = 10
LEAST_BINS = 5


@dataclass(frozen=True)
class Peak:
    """The highest level: bytes, the position of its event, and when (None: no clock)."""

    bytes: int
    at: int
    t_ns: int | None


@dataclass(frozen=True)
class Shortage:
    """An allocation that failed."""

    at: int
    t_ns: int | None
    bytes: int
    device_free: int | None
    allocated: int  # just before
    reserved: int
    stack: str | None


class DeviceMemory:
    """The history and the last blocks of one device of one source."""

    def __init__(self, events: pl.DataFrame, blocks: pl.DataFrame) -> None:
        """``events`` in the order recorded, ``blocks`` at the snapshot; either may be empty."""
        self.events = events
        self.blocks = blocks
        first = events if events.height else blocks
        self.source: int = first["source"][0]
        self.rank: int | None = first["rank"][0]
        self.device: int | None = first["device"][0]

    @cached_property
    def action(self) -> pl.Series:
        """The action of every event."""
        return self.events["action"].cast(pl.String)

    def _is(self, *actions: str) -> npt.NDArray[np.bool_]:
        return self.action.is_in(actions).fill_null(value=False).to_numpy()

    @cached_property
    def _sizes(self) -> Ints:
        return self.events["bytes"].fill_null(0).to_numpy().astype(np.int64)

    @cached_property
    def frees(self) -> tuple[str, ...]:
        """The event that ends an allocation: the request, or its completion where only that is."""
        asked = self._is("free_requested").any()
        return ("free_requested",) if asked else ("free_completed", "free")

    @cached_property
    def allocated(self) -> Ints:
        """Bytes allocated after each event."""
        change = self._sizes * (self._is("alloc").astype(np.int64) - self._is(*self.frees))
        held = self.blocks.filter(pl.col("state") == "active_allocated")
        asked = pl.coalesce("requested_bytes", "bytes")
        last = int(held.select(asked.sum()).item() or 0) if self.blocks.height else None
        return _levels(change, last)

    @cached_property
    def reserved(self) -> Ints:
        """Bytes taken from the driver after each event."""
        change = self._sizes * (self._is(*GROWS).astype(np.int64) - self._is(*SHRINKS))
        return _levels(change, self.segment_bytes if self.blocks.height else None)

    @cached_property
    def segments(self) -> pl.DataFrame:
        """One row per segment: segment_bytes, held (in use), free, largest (free block), blocks."""
        free = pl.col("state") == "inactive"
        return self.blocks.group_by("segment", "segment_bytes", "pool", maintain_order=True).agg(
            pl.col("bytes").filter(~free).sum().alias("held"),
            pl.col("bytes").filter(free).sum().alias("free"),
            pl.col("bytes").filter(free).max().fill_null(0).alias("largest"),
            pl.len().alias("blocks"),
        )

    @cached_property
    def segment_bytes(self) -> int:
        """Bytes of all segments at the snapshot."""
        whole = self.segments["segment_bytes"].fill_null(0).sum()
        return int(whole or self.blocks["bytes"].sum())

    def peak(self, levels: Ints) -> Peak | None:
        """The first highest of some levels; None without events."""
        if not len(levels):
            return None
        at = int(np.argmax(levels))
        return Peak(int(levels[at]), at, self.events["t_ns"][at])

    @cached_property
    def lifetimes(self) -> pl.DataFrame:
        """Every allocation with its birth and death; see the head of this module."""
        births, deaths = self._is("alloc"), self._is(*self.frees)
        rows = self.events.select("address", "bytes", "stack").with_columns(
            pl.int_range(pl.len(), dtype=pl.Int64).alias("at"), pl.Series("born", births)
        )
        rows = rows.filter(pl.Series(births | deaths)).sort("address", "at")
        after = pl.col("at").shift(-1).over("address")
        before = pl.col("born").shift(1).over("address").fill_null(value=False)
        count = self.events.height
        rows = rows.with_columns(after.alias("died"), before.alias("paired"))
        own = rows.filter(pl.col("born")).select(
            "address", "bytes", "stack", pl.col("at").alias("born"),
            pl.col("died").fill_null(count), pl.lit(value=True).alias("seen"),
        )  # fmt: skip
        old = rows.filter(~pl.col("born") & ~pl.col("paired")).select(
            "address", "bytes", pl.lit(None, dtype=pl.Categorical).alias("stack"),
            pl.lit(-1, dtype=pl.Int64).alias("born"), pl.col("at").alias("died"),
            pl.lit(value=False).alias("seen"),
        )  # fmt: skip
        kept = self.blocks.filter(pl.col("state") == "active_allocated")
        living = own.filter(pl.col("died") == count)
        kept = kept.join(living, on="address", how="anti").select(
            "address", pl.coalesce("requested_bytes", "bytes").alias("bytes"), "stack",
            pl.lit(-1, dtype=pl.Int64).alias("born"), pl.lit(count, dtype=pl.Int64).alias("died"),
            pl.lit(value=False).alias("seen"),
        )  # fmt: skip
        return pl.concat([own, old, kept])

    def held_by(self, at: int) -> pl.DataFrame:
        """stack, bytes, count of what was allocated after event ``at``, most bytes first."""
        alive = self.lifetimes.filter((pl.col("born") <= at) & (pl.col("died") > at))
        return _by_stack(alive)

    @cached_property
    def shortages(self) -> list[Shortage]:
        """Allocations that failed, in order."""
        rows = np.flatnonzero(self._is("oom"))
        found = []
        for at in rows.tolist()[:1000]:
            row = self.events.row(at, named=True)
            found.append(
                Shortage(
                    at, row["t_ns"], row["bytes"] or 0, row["free_bytes"],
                    int(self.allocated[at]), int(self.reserved[at]), row["stack"],
                )
            )  # fmt: skip
        return found

    @cached_property
    def retries(self) -> list[tuple[int, int]]:
        """Memory given back to the driver so that the next request could be met.

        (position of the request, bytes given back): a run of freed segments, not asked for by
        ``empty_cache``, that a new segment follows at once.
        """
        shrinks, grows = self._is(*SHRINKS), self._is(*GROWS)
        emptied = self._emptied()
        ends = np.flatnonzero(shrinks[:-1] & ~emptied[:-1] & grows[1:])
        found = []
        for end in ends.tolist():
            start = end
            while start > 0 and shrinks[start - 1]:
                start -= 1
            found.append((end + 1, int(self._sizes[start : end + 1].sum())))
        return found

    @cached_property
    def emptied(self) -> list[tuple[int, int]]:
        """(position of the last event, bytes) of each time ``empty_cache`` gave segments back."""
        flags = self._emptied()
        ends = np.flatnonzero(flags & ~np.append(flags[1:], False))
        starts = np.flatnonzero(flags & ~np.insert(flags[:-1], 0, False))
        sums = np.insert(np.cumsum(np.where(flags, self._sizes, 0)), 0, 0)
        pairs = zip(starts.tolist(), ends.tolist(), strict=True)
        return [(end, int(sums[end + 1] - sums[start])) for start, end in pairs]

    def _emptied(self) -> npt.NDArray[np.bool_]:
        asked = self.events["stack"].cast(pl.String).str.contains("empty_cache", literal=True)
        flags: npt.NDArray[np.bool_] = asked.fill_null(value=False).to_numpy()
        return np.logical_and(self._is(*SHRINKS), flags)

    @cached_property
    def kept(self) -> pl.DataFrame:
        """Stacks whose allocations stay, again and again, over most of the history.

        stack, bytes (kept), count, bins (of ten equal parts of the history from the first kept to
        the end, how many add to it), total (allocations of that stack), first and last (positions).
        One burst, such as parameters or the state of an optimizer, fills one part or two.
        """
        count = self.events.height
        own = self.lifetimes.filter(pl.col("seen") & pl.col("stack").is_not_null())
        totals = own.group_by("stack").agg(pl.len().alias("total"))
        stays = own.filter(pl.col("died") == count)
        part = (pl.col("born") * BINS // max(count, 1)).alias("part")
        rows = stays.with_columns(part).group_by("stack").agg(
            pl.col("bytes").sum(), pl.len().alias("count"), pl.col("part").n_unique().alias("bins"),
            pl.col("born").min().alias("first"), pl.col("born").max().alias("last"),
        )  # fmt: skip
        wide = pl.col("last") - pl.col("first") >= count // 2
        rows = rows.filter((pl.col("bins") >= LEAST_BINS) & wide)
        return rows.join(totals, on="stack").sort("bytes", "first", descending=[True, False])

    def falls(self, least: float) -> int:
        """How often the allocated bytes fell by at least so many from a high, as steps do."""
        high = low = 0
        count, falling = 0, False
        for level in _outline(self.allocated).tolist():
            if falling:
                low = min(low, level)
                if level >= low + least:
                    falling, high = False, level
            else:
                high = max(high, level)
                if level <= high - least:
                    falling, low = True, level
                    count += 1
        return count

    @cached_property
    def baseline_growth(self) -> int:
        """How much the lowest level of allocated bytes rose from the second part to the last."""
        parts = [p for p in np.array_split(self.allocated, BINS) if len(p)]
        lows = [int(part.min()) for part in parts]
        return lows[-1] - lows[1] if len(lows) > 2 else 0


def _outline(levels: Ints, points: int = 10_000) -> Ints:
    """The levels, or where there are many the lowest and highest of short stretches, in order."""
    if len(levels) <= 2 * points:
        return levels
    starts = np.linspace(0, len(levels), points, endpoint=False).astype(np.int64)
    lows, highs = np.minimum.reduceat(levels, starts), np.maximum.reduceat(levels, starts)
    rising = levels[starts] <= (lows + highs) // 2
    first, second = np.where(rising, lows, highs), np.where(rising, highs, lows)
    return np.stack([first, second], axis=1).ravel()


def _levels(change: Ints, last: int | None) -> Ints:
    """The level after each event; the last one is known, or else the lowest is 0."""
    levels = np.cumsum(change)
    if not len(levels):
        return levels
    first = 0 if last is None else last - int(levels[-1])
    return levels + max(first, -int(min(levels.min(), 0)))


def _by_stack(rows: pl.DataFrame) -> pl.DataFrame:
    found = rows.group_by("stack", "seen").agg(
        pl.col("bytes").sum(), pl.len().alias("count"), pl.col("born").min()
    )
    return found.sort("bytes", "born", descending=[True, False])


def device_memories(evidence: Evidence) -> list[DeviceMemory]:
    """Every device that any snapshot tells of, in order of source and device."""
    events, blocks = evidence.table("allocations"), evidence.table("memory_blocks")
    keys = ["source", "rank", "device"]
    pairs = pl.concat([events.select(keys).unique(), blocks.select(keys).unique()]).unique()
    found = []
    for source, rank, device in pairs.sort(keys).iter_rows():
        here = (
            (pl.col("source") == source)
            & pl.col("rank").eq_missing(rank)
            & pl.col("device").eq_missing(device)
        )
        found.append(DeviceMemory(events.filter(here).sort("event"), blocks.filter(here)))
    return found
