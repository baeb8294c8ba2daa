"""The worst step of the device that lost most, small enough to draw."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import polars as pl

from whyidle.diagnosis import State, Timeline, TimelineClaim, TimelineSpan
from whyidle.intervals import intersect, subtract, union
from whyidle.ledger import Ledger
from whyidle.model import CPU_DEVICE
from whyidle.summary import device_name
from whyidle.views import Views
from whyidle.views.activity import COMMUNICATION, COPY, EMPTY, STATE_NAMES

if TYPE_CHECKING:
    from whyidle.leavings import Partial

MOST_DEVICE_SPANS = 2000
MOST_HOST_SPANS = 2500
MOST_CLAIMS = 3000
MOST_UNEXPLAINED = 1000
WITHOUT_STEPS_NS = 200_000_000
"""Without step marks the stretch of this length that lost most is shown."""


def timeline(ledger: Ledger, views: Views) -> tuple[Timeline | None, int]:
    """Spans and won claims of the step that lost most on the device that lost most.

    With it, what that device lost, in parts of PARTS_PER_S.
    """
    won = ledger.won
    if views.windows.height == 0:
        return None, 0
    sums = (
        won.group_by("window")
        .agg(pl.col("lost").sum())
        .sort("lost", "window", descending=[True, False])
    )
    number = sums["window"][0] if sums.height else 0
    worst = int(sums["lost"][0]) if sums.height else 0
    place = views.windows.row(number, named=True)
    mine = won.filter(pl.col("window") == number)
    step, low, high = _worst(mine, views, place)
    spans, left_out = _spans(views, number, place, low, high)
    claims, claims_left = _claims(mine, low, high, views.origin_ns)
    claims += _unexplained(mine, views, number, low, high)
    cuts = [text for text in (left_out, claims_left) if text]
    drawn = Timeline(
        rank=place["rank"],
        device=_device(place["device"]),
        step=step,
        start_ns=low - views.origin_ns,
        end_ns=high - views.origin_ns,
        spans=spans,
        claims=sorted(claims, key=lambda c: c.start_ns),
        capped="; ".join(cuts) or None,
    )
    return drawn, worst


def _device(device: int) -> int | str:
    return device_name(device) or 0


def _worst(mine: pl.DataFrame, views: Views, place: dict[str, int]) -> tuple[int | None, int, int]:
    """(step number, start, end) of the stretch to show."""
    steps = views.steps_of(place["rank"], place["source"])
    if steps.height == 0:
        low, high = place["start_ns"], place["end_ns"]
        if high - low <= WITHOUT_STEPS_NS:
            return None, low, high
        slot = ((mine["start_ns"] - low) // WITHOUT_STEPS_NS).alias("slot")
        best = mine.group_by(slot).agg(pl.col("lost").sum())
        best = best.sort("lost", "slot", descending=[True, False])
        low += int(best["slot"][0]) * WITHOUT_STEPS_NS if best.height else 0
        return None, low, min(low + WITHOUT_STEPS_NS, high)
    starts, ends = steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy()
    at = np.searchsorted(starts, mine["start_ns"].to_numpy(), side="right") - 1
    total = np.bincount(np.maximum(at, 0), weights=mine["lost"].to_numpy(), minlength=starts.size)
    worst = int(np.argmax(total))
    low, high = max(int(starts[worst]), place["start_ns"]), min(int(ends[worst]), place["end_ns"])
    return int(steps["number"][worst]), low, max(high, low + 1)


def _spans(
    views: Views, number: int, place: dict[str, int], low: int, high: int
) -> tuple[list[TimelineSpan], str | None]:
    lanes = _device_lanes(views, place, low, high)
    device, device_all = _longest(lanes, MOST_DEVICE_SPANS)
    hosts = _host_lanes(views, number, low, high)
    host, host_all = _longest(hosts, MOST_HOST_SPANS)
    found = [
        TimelineSpan(
            lane=row["lane"],
            kind=row["kind"],
            name=row["name"],
            start_ns=max(row["start_ns"], low) - views.origin_ns,
            end_ns=min(row["end_ns"], high) - views.origin_ns,
            depth=row["depth"],
        )
        for part in (device, host)
        for row in part.iter_rows(named=True)
    ]
    cut = []
    if device_all > device.height:
        cut.append(f"the longest {device.height} of {device_all} device spans are shown")
    if host_all > host.height:
        cut.append(f"the longest {host.height} of {host_all} host spans are shown")
    return found, "; ".join(cut) or None


def _longest(lanes: pl.DataFrame, most: int) -> tuple[pl.DataFrame, int]:
    if lanes.height <= most:
        return lanes.sort("lane", "start_ns"), lanes.height
    took = lanes.with_columns((pl.col("end_ns") - pl.col("start_ns")).alias("took"))
    longest = took.sort("took", "lane", "start_ns", "depth", descending=[True] + [False] * 3)
    return longest.head(most).sort("lane", "start_ns"), lanes.height


def _device_lanes(views: Views, place: dict[str, int], low: int, high: int) -> pl.DataFrame:
    work = views.activity.filter(
        pl.col("rank").eq_missing(place["rank"])
        & (pl.col("device") == place["device"])
        & (pl.col("source") == place["source"])
        & (pl.col("end_ns") > low)
        & (pl.col("start_ns") < high)
    )
    prefix = "CPU work" if place["device"] == CPU_DEVICE else f"GPU {place['device']} stream "
    kind = pl.col("state").replace_strict({0: "compute", 1: "communication", 2: "copy"})
    lane = pl.concat_str(pl.lit(prefix), pl.col("lane").cast(pl.String).fill_null(""))
    return work.select(
        lane.alias("lane"),
        kind.alias("kind"),
        pl.col("name").cast(pl.String),
        "start_ns",
        "end_ns",
        pl.lit(0).alias("depth"),
    )


def _host_lanes(views: Views, window: int, low: int, high: int) -> pl.DataFrame:
    threads = views.feeders.others.get(window, [])[:2]
    nest = views.host.nest
    hosts = nest.spans.select("thread", "kind", "name").with_columns(
        pl.Series("depth", nest.depth),
        pl.Series("start_ns", nest.axis.take(nest.start, nest.thread)),
        pl.Series("end_ns", nest.axis.take(nest.end, nest.thread)),
    )
    hosts = hosts.filter(
        pl.col("thread").is_in(threads)
        & (pl.col("end_ns") > pl.max_horizontal(pl.lit(low), "start_ns"))
        & (pl.col("start_ns") < high)
    )
    names = dict(views.evidence.table("threads").select("thread", "name").iter_rows())
    lanes = {t: _lane(str(names.get(t, t))) for t in threads}
    hosts = _without_common_frames(hosts, low, high)
    return hosts.select(
        pl.col("thread")
        .replace_strict(lanes, return_dtype=pl.String, default="thread")
        .alias("lane"),
        pl.col("kind").cast(pl.String),
        pl.col("name").cast(pl.String),
        "start_ns",
        "end_ns",
        pl.col("depth").cast(pl.Int32),
    )


def _lane(thread: str) -> str:
    return thread if thread.startswith("thread") else f"thread {thread}"


def _without_common_frames(hosts: pl.DataFrame, low: int, high: int) -> pl.DataFrame:
    """Drop Python frames around the whole stretch, such as the interpreter's start-up."""
    whole = (pl.col("kind") == "python") & (pl.col("start_ns") <= low) & (pl.col("end_ns") >= high)
    kept = hosts.filter(~whole)
    top = pl.col("depth").min().over("thread")
    return kept.with_columns((pl.col("depth") - top).alias("depth"))


def _unexplained(
    mine: pl.DataFrame, views: Views, number: int, low: int, high: int
) -> list[TimelineClaim]:
    """Instants not computing that no cause won, longest first, as many as there is room for."""
    axis = views.states.axis
    group = np.array([number])
    stretch = axis.put(group, np.array([low])), axis.put(group, np.array([high]))
    at = np.full(mine.height, number)
    won = union(axis.put(at, mine["start_ns"].to_numpy()), axis.put(at, mine["end_ns"].to_numpy()))
    found: list[tuple[int, int, State]] = []
    for code in (COMMUNICATION, COPY, EMPTY):
        left = subtract(intersect(views.states.sets[code], stretch), won)
        spots = np.full(left[0].size, number)
        edges = axis.take(left[0], spots).tolist(), axis.take(left[1], spots).tolist()
        state: State = STATE_NAMES[code]
        found += [(a, b, state) for a, b in zip(*edges, strict=True)]
    found = sorted(found, key=lambda f: f[0] - f[1])[:MOST_UNEXPLAINED]
    return [
        TimelineClaim(
            cause=None,
            state=state,
            weight=1.0,
            start_ns=start - views.origin_ns,
            end_ns=end - views.origin_ns,
            what=None,
        )
        for start, end, state in sorted(found)
    ]


def recoloured(job: Partial, alone: pl.DataFrame) -> Timeline | None:
    """The timeline of a job, communication alone drawn as settled across ranks.

    ``alone``: rows of leavings.ALONE.
    """
    drawn = job.timeline
    if drawn is None or not alone.height:
        return drawn
    device = CPU_DEVICE if drawn.device == "cpu" else drawn.device
    places = job.windows.with_row_index("window").filter(
        pl.col("rank").eq_missing(drawn.rank) & (pl.col("device") == device)
    )
    mine = alone.filter(pl.col("window").is_in(places["window"].implode()))
    low, high = drawn.start_ns + job.origin_ns, drawn.end_ns + job.origin_ns
    told = mine.with_columns(pl.lit(1.0).alias("weight"))
    claims, _ = _claims(told, low, high, job.origin_ns)
    others = [c for c in drawn.claims if c.state != "communication" or c.cause is None]
    both = sorted([*others, *claims], key=lambda c: c.start_ns)
    return msgspec.structs.replace(drawn, claims=both)


def _claims(
    mine: pl.DataFrame, low: int, high: int, origin_ns: int
) -> tuple[list[TimelineClaim], str | None]:
    """Won claims inside the stretch, neighbours of one cause and place joined."""
    inside = mine.filter((pl.col("end_ns") > low) & (pl.col("start_ns") < high)).sort("start_ns")
    fresh = pl.any_horizontal(
        pl.col(c).ne_missing(pl.col(c).shift(1)) for c in ("cause", "state", "weight", "op")
    ) | (pl.col("start_ns") != pl.col("end_ns").shift(1)).fill_null(value=True)
    merged = inside.with_columns(fresh.cum_sum().alias("run")).group_by("run").agg(
        pl.col("cause").first(), pl.col("state").first(), pl.col("weight").first(),
        pl.col("op").first(), pl.col("start_ns").min(), pl.col("end_ns").max(),
    )  # fmt: skip
    count = merged.height
    took = pl.col("end_ns") - pl.col("start_ns")
    merged = merged.sort(-took, "start_ns").head(MOST_CLAIMS).sort("start_ns")
    found = [
        TimelineClaim(
            cause=row["cause"],
            state=row["state"],
            weight=row["weight"],
            start_ns=max(row["start_ns"], low) - origin_ns,
            end_ns=min(row["end_ns"], high) - origin_ns,
            what=row["op"],
        )
        for row in merged.iter_rows(named=True)
    ]
    cut = f"the longest {len(found)} of {count} losses are shown" if count > len(found) else None
    return found, cut
