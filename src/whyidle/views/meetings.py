"""Which collectives of which ranks are one: the meetings of the ranks of a job.

``entries`` is read from the evidence of a batch of ranks; one row per collective of a device:

============ ======== ==================================================================
window       UInt32   row of the windows view
row, event   UInt32   the span, and its ordinal in its source
source       UInt16
name, kind   String   of the device work
collective   String   "all-reduce", ...; "communication" when nothing tells
group        String   process group as written; "" when the trace does not say: the whole job
size         Int32    ranks in the group; null when not said
sequence     Int64    running number in the group, where written
order_ns     Int64    when it was issued: the launch call's start, else the work's own
start_ns     Int64    when the device entered it
end_ns       Int64
bytes        Int64    the full buffer in the sense of nccl-tests; null when not said
sender       Int32    rank in the group, of a send or receive; null otherwise
receiver     Int32
============ ======== ==================================================================

``matched`` gives each entry the number of its meeting. Running numbers decide where the trace
has them. Else the order in the group decides, if all ranks recorded the same kinds in the same
order; a rank that recorded more before or after is moved against the others by as many as make
kinds agree and ends differ least. What fits nowhere has no meeting.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from whyidle.intervals import Index, Ints
from whyidle.views import collectives, names
from whyidle.views.activity import COMMUNICATION

if TYPE_CHECKING:
    from whyidle.views import Views

ENTRIES = {
    "window": pl.UInt32, "row": pl.UInt32, "event": pl.UInt32, "source": pl.UInt16,
    "name": pl.String, "kind": pl.String, "collective": pl.String, "group": pl.String,
    "size": pl.Int32, "sequence": pl.Int64, "order_ns": pl.Int64,
    "start_ns": pl.Int64, "end_ns": pl.Int64,
    "bytes": pl.Int64, "sender": pl.Int32, "receiver": pl.Int32,
}  # fmt: skip
MOST_SHIFTS = 64
"""By how many collectives a recording may begin before another one."""

SAME_END_NS = 50_000
"""Ends of one collective on two ranks whose clocks agree differ by less than this."""

SAME_END_SHARE = 0.01
LOOSE_NS, FAR_NS = 5_000_000, 10_000_000
"""Transfers between processors end together only so far; clocks that differ by more than the
latter are not thought of while a match without it holds for most."""

HALF, MOST = 0.5, 0.8
_BITS = {
    "float": 32, "float32": 32, "int": 32, "int32": 32, "unsigned int": 32,
    "c10::bfloat16": 16, "bfloat16": 16, "c10::half": 16, "half": 16, "float16": 16, "short": 16,
    "double": 64, "float64": 64, "long": 64, "long int": 64, "int64": 64,
    "char": 8, "byte": 8, "bool": 8, "signed char": 8, "unsigned char": 8, "int8": 8, "uint8": 8,
    "c10::float8_e4m3fn": 8, "c10::float8_e5m2": 8, "float8_e4m3fn": 8, "float8_e5m2": 8,
}  # fmt: skip


def entries(views: Views) -> pl.DataFrame:
    """The collectives of every device of this evidence; see the module."""
    work = views.activity.filter(pl.col("state") == COMMUNICATION)
    if work.height == 0:
        return pl.DataFrame(schema=ENTRIES)
    spans = views.evidence.table("spans")
    rows = spans.filter(pl.col("row").is_in(work["row"].implode()))
    rows = rows.select("row", "event", pl.col("kind").cast(pl.String))
    kind = collectives.kinds(work, views.host)
    work = (
        work.with_columns(
            pl.Series("kinds", kind, dtype=pl.String),
            collectives.speaker_rows(work, views.host, told=False).alias("issuer"),
            collectives.speaker_rows(work, views.host, told=True).alias("speaker"),
        )
        .drop("kind")
        .join(rows, on="row", how="left", maintain_order="left")
    )
    work = _in_windows(work, views.windows)
    work = _with_messages(work, views)
    told = work.with_columns(
        pl.col("name").cast(pl.String),
        pl.coalesce("launch_ns", "start_ns").alias("order_ns"),
        pl.col("group").fill_null(""),
    )
    return told.select(pl.col(n).cast(t) for n, t in ENTRIES.items()).sort("window", "start_ns")


def _in_windows(work: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    bounds = windows.select(
        "rank", "device", "source",
        pl.col("start_ns").alias("low_ns"), pl.col("end_ns").alias("high_ns"),
        pl.int_range(pl.len(), dtype=pl.UInt32).alias("window"),
    )  # fmt: skip
    keys = ["rank", "device", "source"]
    found = work.join(bounds, on=keys, how="inner", nulls_equal=True, maintain_order="left")
    return found.filter(
        (pl.col("end_ns") > pl.col("low_ns")) & (pl.col("start_ns") < pl.col("high_ns"))
    )


def _with_messages(work: pl.DataFrame, views: Views) -> pl.DataFrame:
    """Group, size, sequence, bytes, sender and receiver: of the work, else of its operator."""
    told = views.evidence.table("messages")
    spans = views.evidence.table("spans")

    def around(column: str) -> pl.DataFrame:
        rows = spans.filter(pl.col("row").is_in(work[column].drop_nulls().unique().implode()))
        rows = rows.select(
            pl.col("row").alias(column), pl.col("event").alias("around"), "shapes", "types"
        )
        joined = work.select("source", column).join(
            rows, on=column, how="left", maintain_order="left"
        )
        keys = {"left_on": ["source", "around"], "right_on": ["source", "event"]}
        return joined.join(told, how="left", maintain_order="left", **keys)  # type: ignore[arg-type]

    own = work.select("source", "event").join(
        told, on=["source", "event"], how="left", maintain_order="left"
    )
    speaker, issuer = around("speaker"), around("issuer")
    whats = ["group", "size", "sequence", "collective", "elements", "dtype", "sender", "receiver"]
    both = work.with_columns(
        *(pl.coalesce(own[what], speaker[what], issuer[what]).alias(what) for what in whats),
        issuer["shapes"],
        issuer["types"],
    )
    named = names.told(both["collective"], collectives.collective_of)
    plain = pl.col("kinds").is_in(["communication", "send and receive"])
    both = both.with_columns(
        pl.when(plain).then(pl.coalesce(named, "kinds")).otherwise("kinds").alias("collective")
    )
    bits = names.told(both["dtype"], lambda text: str(_BITS.get(text.lower(), "")) or None)
    stated = pl.col("elements") * pl.Series(bits).cast(pl.Int64) // 8
    pairs = both.select("shapes", "types").unique().drop_nulls()
    sizes = [_bytes(str(s), str(t)) for s, t in pairs.iter_rows()]
    pairs = pairs.with_columns(pl.Series("written", sizes, dtype=pl.Int64))
    both = both.join(pairs, on=["shapes", "types"], how="left", maintain_order="left")
    return both.with_columns(pl.coalesce(stated, "written").alias("bytes"))


def _bytes(shapes: str, types: str) -> int | None:
    """Bytes of the first tensor of an operator's inputs, from their shapes and types as text."""
    try:
        first, kind = json.loads(shapes)[0], json.loads(types)[0]
        count = math.prod(first) if first and all(isinstance(n, int) for n in first) else 0
    except (ValueError, TypeError, IndexError, KeyError):
        return None
    bits = _BITS.get(str(kind).lower())
    return count * bits // 8 if bits and 0 < count < 1 << 50 else None


def matched(table: pl.DataFrame) -> Index:
    """The meeting of each entry, numbered from 0; -1 where it meets nobody.

    ``table``: entries of the whole job in any order, with ``member`` (who takes part: one number
    per device and recording) and ``began_ns`` and ``settled_ns`` (start and end on a clock that
    ranks share, as far as known).
    """
    found = np.full(table.height, -1, dtype=np.int64)
    at = table.with_row_index("at")
    # a pair exchanges in its own order; of the others every member takes part in all
    keys = ["group", pl.col("sender").fill_null(-1), pl.col("receiver").fill_null(-1)]
    first = 0
    for _, part in at.group_by(keys, maintain_order=True):
        place = _places(part)
        known = place >= 0
        rows = part["at"].to_numpy()[known]
        _, number = np.unique(place[known], return_inverse=True)
        found[rows] = number + first
        first += int(number.max()) + 1 if number.size else 0
    return _shared(found, table["member"].to_numpy())


def _shared(meeting: Index, member: Index) -> Index:
    """Meetings of at least two members, renumbered; others and doubled members leave -1."""
    known = np.flatnonzero(meeting >= 0)
    pair = np.stack([meeting[known], member[known]])
    _, index, count = np.unique(pair, axis=1, return_index=True, return_counts=True)
    once = known[index[count == 1]]
    members = np.bincount(meeting[once], minlength=1)
    kept = once[members[meeting[once]] > 1]
    found = np.full(meeting.size, -1, dtype=np.int64)
    _, found[kept] = np.unique(meeting[kept], return_inverse=True)
    return found


class Run(NamedTuple):
    """The entries of one member in one group, in order."""

    kind: npt.NDArray[np.uint32]
    start: Ints
    end: Ints


def _places(part: pl.DataFrame) -> Index:
    """A number per entry of one group that is the same for all members of a meeting; -1: none."""
    if part["sequence"].null_count() == 0:
        kinds = part["collective"].cast(pl.Categorical).to_physical().to_numpy().astype(np.int64)
        stated = part["sequence"].to_numpy()
        return np.unique(np.stack([stated, kinds]), axis=1, return_inverse=True)[1].reshape(-1)
    kind = part["collective"].cast(pl.Categorical).to_physical().to_numpy()
    starts, ends = part["began_ns"].to_numpy(), part["settled_ns"].to_numpy()
    lists = _lists(part["member"].to_numpy(), part["order_ns"].to_numpy())
    longest = max(lists, key=len)
    found = np.full(part.height, -1, dtype=np.int64)
    agreed = _in_step(longest, [rows for rows in lists if rows.size == longest.size], kind, ends)
    found[agreed] = np.arange(longest.size)
    one = Run(kind[longest], starts[longest], ends[longest])
    for rows in lists:
        if found[rows[0]] < 0:
            found[rows] = _against(one, Run(kind[rows], starts[rows], ends[rows]))
    return found


def _lists(member: Index, order_ns: Ints) -> list[Index]:
    """The rows of each member in its order, members as they first appear."""
    order = np.lexsort((order_ns, member))
    _, first, count = np.unique(member, return_index=True, return_counts=True)
    parts = np.split(order, np.cumsum(count)[:-1])
    return [parts[i] for i in np.argsort(first)]


def _in_step(
    longest: Index, lists: list[Index], kind: npt.NDArray[np.uint32], ends: Ints
) -> npt.NDArray[np.intp]:
    """Those members, one per line, that ``_against`` would match one by one with the longest."""
    rows = np.stack(lists)
    rows = rows[(kind[rows] == kind[longest]).all(axis=1)]
    apart = ends[rows] - ends[longest]
    middle = np.median(apart, axis=1)
    spread = np.median(np.abs(apart - middle[:, None]), axis=1)
    return np.asarray(rows[(np.abs(middle) <= FAR_NS) & (spread <= SAME_END_NS)])


def _against(one: Run, other: Run) -> Index:
    """The entry of ``one`` that each of ``other`` belongs to; -1 for none.

    By order, where ends then differ by the same each time; by time, where they do not, or where
    the clocks agree and the order puts ends far apart.
    """
    shift = _shift(one.kind, other.kind, one.end, other.end)
    place = np.arange(other.kind.size) + (shift or 0)
    sound = (place >= 0) & (place < one.kind.size)
    sound[sound] &= one.kind[place[sound]] == other.kind[sound]
    by_order = np.where(sound, place, -1)
    middle, spread = 0.0, float("inf")
    if shift is not None and sound.any():
        apart = other.end[sound] - one.end[place[sound]]
        middle = float(np.median(apart))
        spread = float(np.median(np.abs(apart - middle)))
        if abs(middle) <= FAR_NS and spread <= SAME_END_NS:
            return by_order
    by_time = _by_time(one, other)
    share = float((by_time >= 0).mean())
    if share >= (MOST if spread <= SAME_END_NS else HALF):
        return by_time
    return by_order if spread <= LOOSE_NS else np.full(other.kind.size, -1, dtype=np.int64)


def _shift(
    one: npt.NDArray[np.uint32], other: npt.NDArray[np.uint32], one_ends: Ints, other_ends: Ints
) -> int | None:
    """How many collectives ``other`` began later than ``one``; None when no shift fits."""
    if one.size == other.size and np.array_equal(one, other):
        return 0
    best: tuple[float, int] | None = None
    for shift in range(-MOST_SHIFTS, MOST_SHIFTS + 1):
        low, high = max(shift, 0), min(other.size + shift, one.size)
        if high - low < max(1, min(one.size, other.size) // 2):
            continue
        if not np.array_equal(one[low:high], other[low - shift : high - shift]):
            continue
        apart = other_ends[low - shift : high - shift] - one_ends[low:high]
        spread = float(np.median(np.abs(apart - np.median(apart)))) - (high - low) * 1e-3
        if best is None or (spread, abs(shift)) < best:
            best = (spread, shift)
    return best[1] if best else None


def _by_time(one: Run, other: Run) -> Index:
    """The entry of ``one`` that each of ``other`` ended together with; -1 for none.

    For recordings with holes, on clocks that agree already: the nearest end of the same kind,
    where each is the other's nearest.
    """
    found = np.full(other.kind.size, -1, dtype=np.int64)
    for kind in np.intersect1d(one.kind, other.kind):
        left, right = np.flatnonzero(one.kind == kind), np.flatnonzero(other.kind == kind)
        back = _nearest(other.end[right], one.end[left])
        nearest = _nearest(one.end[left], other.end[right])
        mutual = back[nearest] == np.arange(right.size)
        apart = np.abs(one.end[left][nearest] - other.end[right])
        took = np.minimum((one.end - one.start)[left][nearest], (other.end - other.start)[right])
        close = apart < SAME_END_NS + SAME_END_SHARE * took
        found[right[mutual & close]] = left[nearest[mutual & close]]
    return found


def _nearest(values: Ints, wanted: Ints) -> Index:
    """Index of the value nearest to each wanted one."""
    order = np.argsort(values, kind="stable")
    after = np.clip(np.searchsorted(values[order], wanted), 0, values.size - 1)
    before = np.maximum(after - 1, 0)
    nearer = np.abs(values[order[before]] - wanted) < np.abs(values[order[after]] - wanted)
    return np.asarray(order[np.where(nearer, before, after)])
