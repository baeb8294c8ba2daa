"""What each cause claimed, laid on the model: which program, calls and device work it is about."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from whyidle.gain.device_chains import Work
from whyidle.gain.host_chains import RETURN, HostChains
from whyidle.intervals import Index, Intervals, Ints, overlap_ns, union
from whyidle.ledger import PARTS_PER_NS, Ledger
from whyidle.model import CPU_DEVICE
from whyidle.views import Views
from whyidle.views.activities import CODE
from whyidle.views.activity import COMMUNICATION, COMPUTE, COPY

Reals = npt.NDArray[np.float64]

NO_ROW = 2**32 - 1
WEAK = ("nothing", "python", "unknown")
DISPATCH = ("op", "launch", "optimizer")


@dataclass(frozen=True)
class Marks:
    """One cause on one device. Indices of cells, of work and of nodes; ns beside them.

    scoped: cells of the spans that it named, with all that lies in their unbroken scope.
    timed: cells at work in the very instants that it claimed, and for how long.
    lost: device work that it claimed, and ns lost in each. late: work that it says began late.
    calls: RETURN nodes of the calls that it named. activities: codes of the spans that it named.
    """

    scoped: Index
    timed: Index
    timed_ns: Reals
    lost: Index
    lost_ns: Reals
    late: Index
    calls: Index
    activities: frozenset[int]


def marks_of(
    views: Views, ledger: Ledger, window: int, low_ns: int, chains: HostChains, work: Work
) -> dict[str, Marks]:
    """The marks of every cause that won anything on the device."""
    won = ledger.won.filter(pl.col("window") == window).with_columns(
        pl.col("start_ns") - low_ns, pl.col("end_ns") - low_ns
    )
    cpu = views.windows["device"][window] == CPU_DEVICE
    span = views.host.nest.index_of(won["row"].fill_null(NO_ROW).to_numpy())
    span[won["row"].is_null().to_numpy()] = -1
    parts = won.with_columns(pl.Series("span", span)).partition_by("cause", as_dict=True)
    order = np.argsort(work.row, kind="stable")
    return {
        str(cause): _marks(views, rows, low_ns, chains, work, order, cpu=cpu)
        for (cause,), rows in parts.items()
    }


def _marks(
    views: Views, rows: pl.DataFrame, low_ns: int, chains: HostChains, work: Work, order: Index, *,
    cpu: bool,
) -> Marks:  # fmt: skip
    host, nest = views.host, views.host.nest
    start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    span = rows["span"].to_numpy()
    seen = np.maximum(span, 0)
    began = nest.axis.take(nest.start[seen], nest.thread[seen]) - low_ns
    ended = nest.axis.take(nest.end[seen], nest.thread[seen]) - low_ns
    named = (span >= 0) & (began < end) & (ended > start)
    spans = np.unique(span[named])
    cells = chains.cells
    scopes = np.unique(host.scope[spans])
    inside = (cells.span >= 0) & np.isin(host.scope[np.maximum(cells.span, 0)], scopes)
    idle = (rows["state"].is_in(["empty"])).to_numpy() | cpu
    thread = rows["thread"].cast(pl.Int64).fill_null(-1).to_numpy()
    timed = _timed(chains, start[idle], end[idle], None if cpu else thread[idle])
    at = np.flatnonzero(timed > 0)
    lost = _lost(rows, work, order, start, end)
    lost_at = np.flatnonzero(lost > 0)
    late = np.flatnonzero(np.isin(work.launch, rows["row"].filter(~named).drop_nulls().to_numpy()))
    returns = np.flatnonzero(chains.kind == RETURN)
    calls = returns[np.isin(chains.span[returns], spans)]
    activities = frozenset(np.unique(host.activity[spans]).tolist())
    return Marks(
        _small(np.flatnonzero(inside)), _small(at), timed[at], _small(lost_at), lost[lost_at],
        _small(late), _small(calls), activities,
    )  # fmt: skip


def _small(index: Index) -> Index:
    return index.astype(np.int32)


def _timed(chains: HostChains, start: Ints, end: Ints, thread: Index | None) -> Reals:
    """Per cell the ns that it shares with claims on its thread (of any, where None)."""
    cells = chains.cells
    found = np.zeros(cells.start.size)
    for chain, number in enumerate(chains.threads):
        if thread is None and chain:
            break  # a run without a GPU: the stepping thread stands in for the device
        mine = slice(None) if thread is None else np.flatnonzero(thread == number)
        here = np.flatnonzero(cells.chain == chain)
        begin = cells.start[here]
        area = union(start[mine], end[mine])
        found[here] = overlap_ns(begin, begin + cells.length[here], area)
    return found


def _lost(rows: pl.DataFrame, work: Work, order: Index, start: Ints, end: Ints) -> Reals:
    """Per work the ns that claims on it lost: by row, else by the state and the instant."""
    found = np.zeros(work.start.size)
    if work.start.size == 0:
        return found
    ns = (rows["lost"] / PARTS_PER_NS).to_numpy()
    row = rows["row"].fill_null(NO_ROW).to_numpy()
    at = np.minimum(np.searchsorted(work.row[order], row), work.row.size - 1)
    own = work.row[order][at] == row
    np.add.at(found, order[at[own]], ns[own])
    for name, code in (("compute", COMPUTE), ("communication", COMMUNICATION), ("copy", COPY)):
        loose = np.flatnonzero((rows["state"] == name).to_numpy() & ~own)
        if loose.size == 0:
            continue
        area = union(start[loose], end[loose])
        weight = float(ns[loose].sum() / max(int((end - start)[loose].sum()), 1))
        mine = np.flatnonzero(work.state == code)
        shared = overlap_ns(work.start[mine], work.end[mine], area)
        found[mine] += shared * weight
    return np.minimum(found, work.length)


def exposed_ns(work: Work, alone: Intervals) -> Reals:
    """Per work the ns for which the device did nothing but communicate; 0 for other work."""
    found = np.zeros(work.start.size)
    mine = np.flatnonzero(work.state == COMMUNICATION)
    found[mine] = overlap_ns(work.start[mine], work.end[mine], alone)
    return found


def codes(*activities: str) -> list[int]:
    """The codes of activities by name."""
    return [CODE[name] for name in activities]
