"""One device's steps as a graph: host threads, streams, and what each waits for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from whyidle.gain.device_chains import Starts, Work, grouped_maximum, starts_of, work_of
from whyidle.gain.host_chains import (
    CALL,
    MARK,
    RETURN,
    UNMARK,
    HostChains,
    Stretch,
    host_chains,
    steps_of,
    waits_by_name,
)
from whyidle.gain.replay import Edges, Graph, Plan, planned
from whyidle.gain.waits import QUICK_NS, Waits, only_waiting, waits_of
from whyidle.intervals import Index, Ints
from whyidle.model import CPU_DEVICE
from whyidle.views import Views, names
from whyidle.views.activities import CODE

Reals = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

MOST_STEPS = 8
MOST_NODES = 60_000
LONG_DELAY_NS = 50_000.0
LONG_SILENCE_NS = 1_000_000


@dataclass(frozen=True)
class Model:
    """Everything that replaying one device needs; small, picklable, on its own clock.

    hosts: number of host nodes, which come first; work ``i`` is node ``hosts + i``. marks: nodes
    of step starts and ends (n, 2). waits: per edge of the graph the kind of wait (views of
    ``gain.waits``), -1 for a hand-over, -2 for a stream that waits for another. gaps: per node,
    the part of ``work`` that is a gap between device work.
    """

    rank: int | None
    device: int
    source: int
    low_ns: int
    steps: Ints
    measured_s: float
    chains: HostChains
    device_work: Work
    graph: Graph
    plan: Plan
    marks: Index
    hosts: int
    edge_kind: Index
    constant: Reals  # per node: ns before it that the graph has no reason for
    call_activity: Index  # per host node: activity of its call, -1 for other nodes
    call_waits: Flags  # per host node: end of a call that waits for the device, by name or edge
    scope: Index  # per cell: index into scope_names
    scope_names: tuple[str, ...]

    @property
    def loads_itself(self) -> bool:
        """Whether the stepping process builds its batches itself (num_workers=0)."""
        return any("_SingleProcessDataLoaderIter" in name for name in self.scope_names)

    def per_step_ns(self, cells: Index) -> Reals:
        """Program ns of these cells of the stepping thread in each step."""
        mine = cells[self.chains.cells.chain[cells] == 0]
        step = np.searchsorted(self.steps[:, 0], self.chains.cells.start[mine], side="right") - 1
        length_ns = self.chains.cells.length[mine]
        per_step = np.bincount(np.maximum(step, 0), weights=length_ns, minlength=self.count)
        return per_step.astype(np.float64)

    @property
    def count(self) -> int:
        """Steps replayed."""
        return len(self.steps)

    def interior(self) -> slice:
        """The steps that a median is taken of, as in summary.median_step_s."""
        return slice(1, -1) if self.count >= 4 else slice(None)


def model_of(views: Views, window: int) -> Model | None:
    """The model of one judged window; None where no step was marked."""
    place = views.windows.row(window, named=True)
    marks = steps_of(views.marks, place["rank"], place["source"])
    if marks.height == 0:
        return None
    cpu = place["device"] == CPU_DEVICE
    mine = pl.col("rank").eq_missing(place["rank"]) & (pl.col("source") == place["source"])
    rows = views.activity.filter(mine & (pl.col("device") == place["device"]))
    activity = rows.clear() if cpu else rows
    chosen = _chosen(marks, activity)
    edges = np.stack([chosen["start_ns"].to_numpy(), chosen["end_ns"].to_numpy()], axis=1)
    low, high = int(edges.min()), int(edges.max())
    stretch = Stretch(
        place["rank"], place["source"], low, high, edges - low, int(chosen["thread"][0])
    )
    work = work_of(activity, low, high, stretch.steps)
    launches = views.host.nest.index_of(work.launch[work.linked])
    chains = host_chains(views.host, stretch, np.unique(launches[launches >= 0]))
    starts = starts_of(work, chosen.height)
    waits = waits_of(views.host, chains, work, chosen.height)
    chains, waits, waiting = only_waiting(chains, waits, _by_name(views, chains))
    return _assembled(views, stretch, place["device"], chains, work, starts, waits, waiting)


def _chosen(marks: pl.DataFrame, activity: pl.DataFrame) -> pl.DataFrame:
    """At most MOST_STEPS steps in the middle, fewer where a step holds much work."""
    per_step = 2.2 * activity.height / marks.height + 1  # about so many nodes
    most = int(np.clip(MOST_NODES / per_step, 3, MOST_STEPS))
    if marks.height <= most:
        return marks
    return marks.slice((marks.height - most) // 2, most)


def _assembled(
    views: Views, stretch: Stretch, device: int, chains: HostChains, work: Work, starts: Starts,
    waits: Waits, waiting: Flags,
) -> Model:  # fmt: skip
    launch = _launch_nodes(views, chains, work)
    graph, kind = _graph(chains, work, starts, waits, launch)
    took = (stretch.steps[:, 1] - stretch.steps[:, 0]) / 1e9
    marks = [np.flatnonzero((chains.kind == k) & (chains.chain == 0)) for k in (MARK, UNMARK)]
    span = np.maximum(chains.span, 0)
    activity = np.where(chains.span >= 0, views.host.activity[span], -1).astype(np.intp)
    scope, scope_names = _scopes(views, chains)
    return Model(
        rank=stretch.rank,
        device=device,
        source=stretch.source,
        low_ns=stretch.low_ns,
        steps=stretch.steps,
        measured_s=float(np.median(took[1:-1] if took.size >= 4 else took)),
        chains=chains,
        device_work=work,
        graph=graph,
        plan=planned(graph),
        marks=np.stack(marks, axis=1),
        hosts=chains.time.size,
        edge_kind=kind,
        constant=_constants(chains, starts, waits, activity == CODE["allocator"]),
        call_activity=activity,
        call_waits=waiting & (chains.kind == RETURN),
        scope=scope,
        scope_names=scope_names,
    )


def _by_name(views: Views, chains: HostChains) -> Flags:
    """Whether each node is of a call that may wait for the device, by its name."""
    text = views.host.nest.spans["name"].gather(np.maximum(chains.span, 0))
    return names.matching(text, waits_by_name).to_numpy() & (chains.span >= 0)


def _scopes(views: Views, chains: HostChains) -> tuple[Index, tuple[str, ...]]:
    """Per cell the name of the scope it lies in, as an index into the names; 0 is no scope."""
    span = chains.cells.span
    scope = np.where(span >= 0, views.host.scope[np.maximum(span, 0)], -1)
    known, at = np.unique(scope, return_inverse=True)
    texts = views.host.nest.spans["name"].gather(np.maximum(known, 0)).cast(pl.String)
    words = np.where(known >= 0, texts.fill_null("").to_numpy(), "")
    distinct, which = np.unique(words.astype(str), return_inverse=True)
    return which[at.reshape(-1)], tuple(distinct.tolist())


def _launch_nodes(views: Views, chains: HostChains, work: Work) -> Index:
    """The node of each work's launch call; -1 where it was made before the stretch or never."""
    span = views.host.nest.index_of(work.launch)
    return np.where(work.linked, chains.node_of(span, CALL), -1)


def _graph(
    chains: HostChains, work: Work, starts: Starts, waits: Waits, launch: Index
) -> tuple[Graph, Index]:
    hosts = chains.time.size
    node = np.where(launch >= 0, launch, 0)
    lag = starts.latency + starts.delay
    early = work.linked & (launch < 0)  # launched before the stretch: an instant, not a node
    first = work.before < 0
    lag = np.where(early, lag + work.called, lag)
    # what a stream had to do before its first recorded work is not known: it starts as it did
    lag = np.where(first & (launch >= 0), np.maximum(lag, work.start - work.called), lag)
    lag = np.where(first & (launch < 0), work.start, lag)
    by = np.where((launch >= 0) | early | first, node, -1)
    handed = np.where(launch >= 0, chains.time[node], work.start)
    order = np.maximum(np.maximum(work.start, handed), 0)
    order = np.concatenate([chains.time, grouped_maximum(order, work.lane)]).astype(np.float64)
    least = np.where(np.isnan(waits.least), chains.work, waits.least)
    to = [chains.wakes[0], waits.node, hosts + np.flatnonzero(starts.waits_for >= 0)]
    source = [
        chains.wakes[1], hosts + waits.on, hosts + starts.waits_for[starts.waits_for >= 0],
    ]  # fmt: skip
    more = starts.waits_for >= 0
    lags = [chains.wakes[2].astype(float), waits.lag, (starts.wait_lag + starts.delay)[more]]
    kind = np.concatenate([np.full(to[0].size, -1), waits.kind, np.full(to[2].size, -2)]).astype(
        np.intp
    )
    edges = Edges(
        np.concatenate(to).astype(np.intp),
        np.concatenate(source).astype(np.intp),
        np.concatenate(lags),
        kind != -1,
    )
    forward = order[edges.by] < order[edges.to]
    edges = Edges(*(np.asarray(column)[forward] for column in vars(edges).values()))
    chain_count = int(chains.chain.max(initial=-1)) + 1
    nothing = np.full(hosts, -1, dtype=np.intp)
    graph = Graph(
        chain=np.concatenate([chains.chain, chain_count + work.lane]),
        order=order,
        device=np.concatenate([np.zeros(hosts, dtype=bool), np.ones(work.start.size, dtype=bool)]),
        work=np.concatenate([least, starts.gap + starts.delay]),
        length=np.concatenate([np.zeros(hosts), work.length.astype(np.float64)]),
        calls_by=np.concatenate([nothing, by]),
        calls_lag=np.concatenate([np.zeros(hosts), lag]),
        edges=edges,
    )
    return graph, kind[forward]


def _constants(chains: HostChains, starts: Starts, waits: Waits, allocating: Flags) -> Reals:
    """Per node the ns that the replay carries before it though the graph has no reason for them.

    Device delays learned as they are, long silences of the stepping thread that no other thread
    explains, and long calls (but those that allocate) for which no work to wait for was found.
    """
    cells = chains.cells
    silent = (cells.activity == CODE["nothing"]) & (cells.length >= LONG_SILENCE_NS)
    silent &= cells.chain == 0
    host = np.bincount(cells.node[silent], weights=cells.length[silent], minlength=chains.time.size)
    known = np.zeros(chains.time.size, dtype=bool)
    known[waits.node] = True
    blocked = (chains.kind == RETURN) & ~known & (chains.work >= LONG_DELAY_NS) & ~allocating
    host = np.where(blocked, chains.work - QUICK_NS, host)
    return np.concatenate([host, starts.delay])
