"""What each recorded step cost, and what each call path of device work took, as small tables.

Gathered batch by batch (``step_states``, ``step_losses``, ``kernel_steps``) and told once all
batches are together (``step_costs``, ``kernel_costs``). Comparisons rest on them: only what is
known step by step can be told from the noise between steps.

A step owns the device work that was launched inside its marks, and the device time from when the
device was done with earlier steps until it is done with this one: where the host runs ahead, marks
say how fast it launches, not how long a step takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from whyidle.diagnosis import KernelCost, Kernels, StepCost
from whyidle.intervals import Axis, Index, Ints, overlap_ns, pairs
from whyidle.ledger import PARTS_PER_NS, PARTS_PER_S, Ledger
from whyidle.model import STATES, frame
from whyidle.views.activity import STATE_NAMES
from whyidle.views.paths import call_paths, parts_of

if TYPE_CHECKING:
    from whyidle.views import Views

STEP_STATES: dict[str, Any] = {
    "window": pl.UInt32, "number": pl.Int64, "from_ns": pl.Int64, "to_ns": pl.Int64,
    "compute": pl.Int64, "communication": pl.Int64, "copy": pl.Int64, "empty": pl.Int64,
    "kernels": pl.Boolean,
}  # fmt: skip
"""One row per window and step: from and to, counted from the window's start, and nanoseconds by
state; ``kernels``: whether ``kernel_steps`` holds its device work."""

STEP_LOSSES: dict[str, Any] = {
    "window": pl.UInt32, "number": pl.Int64, "cause": pl.Categorical, "state": STATES,
    "lost": pl.Int64,
}  # fmt: skip
"""What causes won in each step, but for communication alone, in parts of ledger.PARTS_PER_S."""

KERNEL_STEPS: dict[str, Any] = {
    "recording": pl.Int64, "number": pl.Int64, "path": pl.String, "name": pl.String,
    "state": pl.Int8, "ns": pl.Int64, "calls": pl.Int64,
}  # fmt: skip
"""Device work by call path and step, summed over windows; number is null without steps. A row
without a name tells, as ``calls``, how many devices of its batch were looked at."""

MOST_STEPS = 500
MOST_DEVICES = 4
"""Devices of one batch whose device work is kept by call path."""
MOST_GROUPS = 2000
MOST_ROWS = 200
MOST_SAMPLES = 32
LEAST_SHARE = 0.0005
"""Share of all device work below which a call path is not listed."""


@dataclass(frozen=True)
class _Steps:
    """Steps inside their windows, in order: window, number, from and to on ``axis``."""

    axis: Axis
    window: Index
    number: Ints
    start: Ints
    end: Ints


def _placed(views: Views) -> _Steps:
    """The steps of every window; those outside are left out, those that stick out are cut.

    Where the device still works on earlier steps when a mark begins or ends, the step begins or
    ends on the device when it is done with them.
    """
    axis, windows = views.states.axis, views.windows
    joined = windows.select("rank", "source", "start_ns", "end_ns").with_row_index("window").join(
        views.marks.select("rank", "source", "number", "start_ns", "end_ns"),
        on=["rank", "source"], how="inner", nulls_equal=True, suffix="_mark",
    ).sort("window", "start_ns_mark", "end_ns_mark")  # fmt: skip
    joined = joined.filter(pl.col("window").cum_count().over("window") <= MOST_STEPS)
    window = joined["window"].to_numpy().astype(np.intp)
    low, high = joined["start_ns"].to_numpy(), joined["end_ns"].to_numpy()
    marks = (joined["start_ns_mark"].to_numpy(), joined["end_ns_mark"].to_numpy())
    start, end = (
        _drained(axis.put(window, np.clip(mark, low, high)), window, views) for mark in marks
    )
    if start.size:
        start[1:] = np.maximum(start[1:], np.maximum.accumulate(end)[:-1])
    kept = end > start
    return _Steps(axis, window[kept], joined["number"].to_numpy()[kept], start[kept], end[kept])


def _drained(position: Ints, window: Index, views: Views) -> Ints:
    """Per position, when the device is done with what was launched before, if that is later."""
    states = views.states
    known = states.work["launch_ns"].is_not_null().to_numpy()
    if not known.any() or not position.size:
        return position
    group, launch = states.group[known], states.work["launch_ns"].to_numpy()[known]
    low = states.windows["start_ns"].to_numpy()[group]
    high = states.windows["end_ns"].to_numpy()[group]
    called = states.axis.put(group, np.clip(launch, low, high).astype(np.int64))
    order = np.argsort(called, kind="stable")
    done = np.maximum.accumulate(states.end[known][order])
    last = np.searchsorted(called[order], position, side="left") - 1
    # the positions of another window lie below all of this one
    return np.where(last >= 0, np.maximum(position, done[np.maximum(last, 0)]), position)


def step_states(views: Views) -> pl.DataFrame:
    """A frame of STEP_STATES."""
    steps, sets = _placed(views), views.states.sets
    spent = [
        pl.Series(name, overlap_ns(steps.start, steps.end, sets[code]))
        for code, name in enumerate(STATE_NAMES)
    ]
    begins = views.windows["start_ns"].to_numpy()[steps.window]
    told = pl.DataFrame({"window": steps.window, "number": steps.number}).with_columns(
        pl.Series("from_ns", steps.axis.take(steps.start, steps.window) - begins),
        pl.Series("to_ns", steps.axis.take(steps.end, steps.window) - begins),
        *spent,
        pl.Series("kernels", np.isin(steps.window, _chosen(views))),
    )
    return frame(STEP_STATES, told)


def step_losses(ledger: Ledger, views: Views) -> pl.DataFrame:
    """A frame of STEP_LOSSES."""
    won = ledger.won.filter(pl.col("state") != "communication")
    return frame(STEP_LOSSES, _cut(won, _placed(views)))


def _cut(won: pl.DataFrame, steps: _Steps) -> pl.DataFrame:
    """Won intervals summed by window, step, cause and state; a part in a step counts there."""
    if not steps.window.size or not won.height:
        return frame(STEP_LOSSES)
    group = won["window"].to_numpy().astype(np.intp)
    low = steps.axis.put(group, won["start_ns"].to_numpy())
    high = steps.axis.put(group, won["end_ns"].to_numpy())
    left, right = pairs((low, high), (steps.start, steps.end))
    took = np.minimum(high[left], steps.end[right]) - np.maximum(low[left], steps.start[right])
    share = took / np.maximum(high - low, 1)[left]
    parts = np.rint(won["lost"].to_numpy()[left] * share).astype(np.int64)
    told = won.select(pl.col("cause").cast(pl.Categorical), "state")[left].with_columns(
        pl.Series("window", steps.window[right]),
        pl.Series("number", steps.number[right]),
        pl.Series("lost", parts),
    )
    keys = ["window", "number", "cause", "state"]
    return told.group_by(keys, maintain_order=True).agg(pl.col("lost").sum())


def _chosen(views: Views) -> npt.NDArray[np.int64]:
    """The windows whose device work is kept by call path: those of the first few devices."""
    devices = views.windows.select("rank", "device").unique(maintain_order=True).head(MOST_DEVICES)
    numbered = views.windows.with_row_index("window")
    mine = numbered.join(devices, on=["rank", "device"], how="semi", nulls_equal=True)
    return mine["window"].to_numpy().astype(np.int64)


def recordings(windows: pl.DataFrame) -> pl.Series:
    """Per window, which recording of its device it is, from 0."""
    order = pl.col("start_ns").rank("ordinal").over("rank", "device") - 1
    return windows.select(order.cast(pl.Int64).alias("recording"))["recording"]


def kernel_steps(views: Views) -> pl.DataFrame:
    """A frame of KERNEL_STEPS; empty for a run without a device."""
    if not views.has_device or not views.windows.height:
        return frame(KERNEL_STEPS)
    states = views.states
    chosen = _chosen(views)
    at = np.flatnonzero(np.isin(states.group, chosen))
    work = states.work[at]
    launched = pl.coalesce("launch_ns", "start_ns").alias("at_ns")
    told = work.select("group", "name", "state", "launch", "start_ns", "end_ns", launched)
    told = told.with_columns(
        call_paths(told["launch"], views.host.nest).alias("path"),
        recordings(views.windows).gather(told["group"]).alias("recording"),
        (pl.col("end_ns") - pl.col("start_ns")).alias("ns"),
    )
    told = told.with_columns(_step_of(told, views))
    if views.marks.height:
        told = told.filter(pl.col("number").is_not_null())
    keys = ["recording", "number", "path", "name", "state"]
    sums = told.group_by(keys).agg(pl.col("ns").sum(), pl.len().alias("calls"))
    groups = sums.group_by("path", "name", "state").agg(pl.col("ns").sum().alias("all"))
    top = groups.sort("all", "path", "name", descending=[True, False, False]).head(MOST_GROUPS)
    kept = frame(KERNEL_STEPS, sums.join(top, on=["path", "name", "state"], how="semi"))
    looked = views.windows[chosen].select("rank", "device").n_unique()
    return pl.concat([kept, frame(KERNEL_STEPS, {"calls": [looked]})])


def _step_of(told: pl.DataFrame, views: Views) -> pl.Series:
    """The number of the step in which each device work was launched; null for none."""
    windows = views.windows.select("rank", "source").with_row_index("group")
    marks = windows.join(
        views.marks.select("rank", "source", "number", "start_ns", "end_ns"),
        on=["rank", "source"], how="inner", nulls_equal=True,
    ).sort("start_ns")  # fmt: skip
    if not marks.height:
        return pl.repeat(None, told.height, dtype=pl.Int64, eager=True).alias("number")
    asked = told.select(pl.col("group").cast(pl.UInt32), "at_ns").with_row_index("row")
    found = asked.sort("at_ns").join_asof(
        marks.select("group", "number", pl.col("start_ns").alias("at_ns"), "end_ns"),
        on="at_ns", by="group", strategy="backward", check_sortedness=False,
    ).sort("row")  # fmt: skip
    inside = (found["at_ns"] < found["end_ns"]).fill_null(value=False)
    numbers = found["number"]
    return pl.select(pl.when(inside).then(numbers)).to_series()


def step_costs(
    states: pl.DataFrame, losses: pl.DataFrame, alone: pl.DataFrame, windows: pl.DataFrame
) -> list[StepCost]:
    """One record per recording and step, in order.

    ``alone``: what causes won of communication alone, as rows of STEP_LOSSES.
    """
    if not states.height:
        return []
    numbers = recordings(windows)
    both = pl.concat([losses, alone])
    both = both.with_columns(numbers.gather(both["window"]))
    keys = ["recording", "number"]
    numbered = states.with_columns(numbers.gather(states["window"]))
    sums = numbered.group_by(keys).agg(
        pl.len().alias("devices"),
        (pl.col("to_ns") - pl.col("from_ns")).sum().alias("step"),
        *(pl.col(name).sum() for name in STATE_NAMES),
    ).sort(keys).head(MOST_STEPS)  # fmt: skip
    lost: dict[tuple[int, int], list[tuple[str, str, int]]] = {}
    rows = both.group_by(*keys, "cause", "state").agg(pl.col("lost").sum())
    for recording, number, cause, state, parts in rows.sort(
        *keys, -pl.col("lost"), "cause", "state"
    ).iter_rows():
        lost.setdefault((recording, number), []).append((cause, state, parts))
    return [
        _step_cost(row, lost.get((row["recording"], row["number"]), []))
        for row in sums.iter_rows(named=True)
    ]


def _step_cost(row: dict[str, int], lost: list[tuple[str, str, int]]) -> StepCost:
    each = row["devices"] * PARTS_PER_S
    by_cause: dict[str, int] = {}
    for cause, _, parts in lost:
        by_cause[cause] = by_cause.get(cause, 0) + parts
    computing = sum(parts for _, state, parts in lost if state == "compute")
    state = {name: row[name] * PARTS_PER_NS for name in STATE_NAMES}
    useful = max(0, state["compute"] - computing)
    unexplained = max(0, sum(state.values()) - useful - sum(by_cause.values()))
    return StepCost(
        recording=row["recording"],
        number=row["number"],
        devices=row["devices"],
        step_s=row["step"] * PARTS_PER_NS / each,
        compute_s=state["compute"] / each,
        communication_s=state["communication"] / each,
        copy_s=state["copy"] / each,
        empty_s=state["empty"] / each,
        useful_s=useful / each,
        unexplained_s=unexplained / each,
        lost_s={cause: parts / each for cause, parts in by_cause.items()},
    )


def losses_alone(alone: pl.DataFrame, states: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """What causes won of communication alone, step by step: a frame of STEP_LOSSES.

    ``alone``: rows of leavings.ALONE as settled across ranks; ``states``: a frame of STEP_STATES.
    """
    if not alone.height or not states.height:
        return frame(STEP_LOSSES)
    axis = Axis(windows["start_ns"].to_numpy(), windows["end_ns"].to_numpy())
    steps = states.sort("window", "from_ns")
    window = steps["window"].to_numpy().astype(np.intp)
    begins = windows["start_ns"].to_numpy()[window]
    start, end = (
        axis.put(window, begins + steps[edge].to_numpy()) for edge in ("from_ns", "to_ns")
    )
    return frame(
        STEP_LOSSES, _cut(alone, _Steps(axis, window, steps["number"].to_numpy(), start, end))
    )


def kernel_costs(
    kernels: pl.DataFrame, states: pl.DataFrame, windows: pl.DataFrame
) -> Kernels | None:
    """The device work that takes most time by call path, per device; None where none was kept."""
    looked = int(kernels.filter(pl.col("name").is_null())["calls"].sum())
    cells = ["recording", "number", "path", "name", "state"]
    kernels = kernels.filter(pl.col("name").is_not_null()).group_by(cells).agg(
        pl.col("ns").sum(), pl.col("calls").sum()
    )  # fmt: skip
    if not kernels.height:
        return None
    chosen = states.filter("kernels")
    numbered = chosen.with_columns(recordings(windows).gather(chosen["window"]))
    steps = numbered.group_by("recording", "number").agg(pl.len().alias("devices"))
    steps = _interior(steps.sort("recording", "number"))
    keys = ["path", "name", "state"]
    if states.height:
        kernels = kernels.join(steps, on=["recording", "number"], how="inner")
        share = pl.lit(steps.height) * pl.col("devices")
    else:
        share = pl.col("devices")
        kernels = kernels.with_columns(pl.lit(looked).alias("devices"))
    if not kernels.height:
        return None
    # whole numbers are summed before they are divided, so that no order of adding shows
    whole = kernels.group_by(*keys, "devices").agg(pl.col("ns").sum(), pl.col("calls").sum())
    sums = (
        whole.sort(*keys, "devices")
        .group_by(keys, maintain_order=True)
        .agg((pl.col("ns") / share).sum().alias("mean"), (pl.col("calls") / share).sum())
    )
    ranked = sums.sort("mean", *keys, descending=[True, False, False, False])
    worth = ranked.filter(pl.col("mean") >= LEAST_SHARE * pl.col("mean").sum()).head(MOST_ROWS)
    left = ranked[worth.height :]
    samples = _samples(kernels.join(worth, on=keys, how="semi"), steps) if states.height else {}
    return Kernels(
        devices=looked,
        steps=steps.height if states.height else None,
        rows=[
            KernelCost(
                path=parts_of(path),
                name=name,
                state=STATE_NAMES[state],
                calls=calls,
                seconds=mean / 1e9,
                per_step_s=samples.get((path, name, state), []),
            )
            for path, name, state, mean, calls in worth.iter_rows()
        ],
        left=left.height,
        largest_left_s=float(left["mean"][0]) / 1e9 if left.height else 0.0,
    )


def _interior(steps: pl.DataFrame) -> pl.DataFrame:
    """Steps without the first and the last of each recording that has at least four."""
    place, size = pl.int_range(pl.len()).over("recording"), pl.len().over("recording")
    return steps.filter((size < 4) | ((place > 0) & (place < size - 1)))


def _samples(kernels: pl.DataFrame, steps: pl.DataFrame) -> dict[tuple[str, str, int], list[float]]:
    """Seconds per device in each step, 0.0 where it did not run; at most MOST_SAMPLES of them."""
    at = np.unique(np.linspace(0, steps.height - 1, min(steps.height, MOST_SAMPLES)).astype(int))
    thinned = steps[at].select("recording", "number").with_row_index("at")
    found: dict[tuple[str, str, int], list[float]] = {}
    rows = kernels.join(thinned, on=["recording", "number"], how="inner")
    columns = ("path", "name", "state", "at", "ns", "devices")
    for path, name, state, place, ns, devices in rows.select(columns).iter_rows():
        found.setdefault((path, name, state), [0.0] * at.size)[place] += ns / devices / 1e9
    return found
