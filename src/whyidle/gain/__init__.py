"""What a change would bring: the steps replayed with the effects of remedies applied.

``replayable`` lays the steps of one device out as a graph; ``predict`` replays it as it is and
with each remedy, and tells the gain of each at a cautious, a middle and a high end. See
docs/gain.md for the model, its bars, and how far off it was on real pairs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import polars as pl

from whyidle.diagnosis import LedgerRow
from whyidle.gain.graph import Model, model_of
from whyidle.gain.marks import exposed_ns, marks_of
from whyidle.gain.predict import Predicted, Replayable, predict
from whyidle.intervals import Index, Intervals
from whyidle.ledger import Ledger
from whyidle.model import CPU_DEVICE
from whyidle.views import Views
from whyidle.views.activity import COMMUNICATION
from whyidle.views.cpu_use import cpu_read

__all__ = ["Predicted", "Replayable", "lost_on", "predict", "replayable"]


def replayable(views: Views, ledger: Ledger, window: int | None = None) -> Replayable | None:
    """The device that lost most, ready to be replayed; None where no training step was marked.

    ``window`` (row of views.windows) asks for another device.
    """
    number = worst_window(views, ledger) if window is None else window
    if number is None:
        return None
    model = model_of(views, number)
    if model is None:
        return None
    low_ns = model.low_ns
    marks = marks_of(views, ledger, number, low_ns, model.chains, model.device_work)
    exposed = exposed_ns(model.device_work, _alone(views, number, low_ns))
    mine = views.marks.filter(pl.col("rank").eq_missing(model.rank))
    here = mine.filter(pl.col("source") == model.source).sort("start_ns")
    took = ((here["end_ns"] - here["start_ns"]) / 1e9).to_numpy()
    step_s = float(np.median(took[1:-1] if took.size >= 4 else took))
    mean_s = float(took.mean())
    return Replayable(_slim(model), marks, exposed, mine.height, step_s, mean_s, _cpus(views))


def _cpus(views: Views) -> float | None:
    """CPUs that each process of the only job may use, or of the only machine; None otherwise."""
    if not cpu_read(views.evidence):
        return None
    read = views.cpu_jobs
    ranks = max(int(views.windows["rank"].n_unique()), 1)
    for name in ("cpus", "machine"):
        told = read[name].drop_nulls()
        if read.height == 1 and told.len() == 1 and told[0] > 0:
            return float(told[0]) / ranks
    return None


def _slim(model: Model) -> Model:
    """The model without what only its making needed, since it may travel between machines."""
    work, chains, cells, plan = (
        model.device_work, model.chains, model.chains.cells, model.plan
    )  # fmt: skip
    cells = replace(
        cells,
        node=_small(cells.node),
        chain=_small(cells.chain),
        span=cells.span[:0].copy(),
        start=cells.start if model.loads_itself else cells.start[:0].copy(),
    )
    work = replace(
        work,
        step=_small(work.step),
        row=work.row[:0].copy(),
        lane=work.lane[:0].copy(),
        before=work.before[:0].copy(),
        linked=work.linked[:0].copy(),
        called=work.called[:0].copy(),
        returned=work.returned[:0].copy(),
        launch=work.launch[:0].copy(),
        name=work.name[:0].copy(),
        kind=work.kind[:0].copy(),
        large=work.large[:0].copy(),
        text=pl.Series(),
    )
    plan = replace(
        plan,
        sorted=_small(plan.sorted),
        place=_small(plan.place),
        before=_small(plan.before),
        edge=_small(plan.edge),
        called=_small(plan.called),
    )
    return replace(
        model,
        device_work=work,
        chains=replace(chains, cells=cells, span=chains.span[:0].copy()),
        plan=plan,
        scope=_small(model.scope),
    )


def _small(index: Index) -> Index:
    return index.astype(np.int32)


def lost_on(found: Replayable | None, rows: Iterable[LedgerRow]) -> dict[str, float]:
    """Seconds that each cause lost on the replayed device."""
    lost: dict[str, float] = {}
    if found is None:
        return lost
    device = "cpu" if found.model.device == CPU_DEVICE else found.model.device
    for row in rows:
        if row.rank == found.model.rank and row.device == device:
            lost[row.cause] = lost.get(row.cause, 0.0) + row.lost_s
    return lost


def worst_window(views: Views, ledger: Ledger) -> int | None:
    """The judged window that lost most; the first where nothing was lost; None without any."""
    if views.windows.height == 0:
        return None
    sums = ledger.won.group_by("window").agg(pl.col("lost").sum())
    sums = sums.sort("lost", "window", descending=[True, False])
    return int(sums["window"][0]) if sums.height else 0


def _alone(views: Views, window: int, low_ns: int) -> Intervals:
    """Stretches of communication alone of a window, from ``low_ns``."""
    start, end = views.states.sets[COMMUNICATION]
    axis = views.states.axis
    mine = axis.group_of(start) == window
    group = np.full(int(mine.sum()), window)
    return axis.take(start[mine], group) - low_ns, axis.take(end[mine], group) - low_ns
