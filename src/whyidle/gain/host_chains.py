"""Host threads of one rank in program order: where they meet the device or each other.

A *node* is an instant of a thread at which something else may depend on it, or it on something
else: the start and end of a call that hands work to the device or waits for it, the start and end
of a step mark, and both sides of a hand-over (the main thread calls backward and is silent until
the autograd thread is done). What lies between two nodes is *program*: its length is an input of
the replay, cut into *cells*, each with the activity of its innermost span, so that a remedy can
shorten exactly what it is about.

Instants are nanoseconds from the start of the replayed stretch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from whyidle.intervals import Index, Ints
from whyidle.views import names
from whyidle.views.activities import CODE
from whyidle.views.host import Codes, Host

Flags = npt.NDArray[np.bool_]

ORIGIN, CALL, RETURN, MARK, UNMARK, WAKE, WAKER = range(7)
"""Kinds of node: start of a chain, start and end of a call, start and end of a step mark, end of
a silence, and the last thing the other thread did before it."""
MOST_THREADS = 8
LEAST_SILENCE_NS = 50_000
MOSTLY = 0.5
"""A silence is a hand-over when another thread is at work for this share of it."""
_FAR = 2**44  # chains lie apart by this on one axis; 4.9 hours


@dataclass(frozen=True)
class Cells:
    """Pieces of program: the node that each leads up to, length, activity, and nest span."""

    node: Index
    start: Ints
    length: Ints
    chain: Index
    activity: Codes
    span: Index


@dataclass(frozen=True)
class HostChains:
    """Nodes in order of (chain, time); ``first`` is the chain of the stepping thread.

    work: program ns since the node before on the same chain (0 for the first and for WAKE).
    span: nest index of the call, -1 for other nodes. wakes: (node, waking node, lag ns).
    """

    threads: list[int]
    chain: Index
    time: Ints
    kind: npt.NDArray[np.int8]
    span: Index
    work: npt.NDArray[np.float64]
    wakes: tuple[Index, Index, Ints]
    cells: Cells

    def node_of(self, span: Index, kind: int) -> Index:
        """The node of this kind of each call (nest index); -1 where there is none."""
        nodes = np.flatnonzero((self.kind == kind) & (self.span >= 0))
        if nodes.size == 0:
            return np.full(span.shape, -1, dtype=np.intp)
        nodes = nodes[np.argsort(self.span[nodes], kind="stable")]
        at = np.minimum(np.searchsorted(self.span[nodes], span), nodes.size - 1)
        return np.where(self.span[nodes][at] == span, nodes[at], -1).astype(np.intp)


@dataclass(frozen=True)
class Stretch:
    """What is replayed: one rank in one source from ``low_ns`` to ``high_ns``, and its steps."""

    rank: int | None
    source: int
    low_ns: int
    high_ns: int
    steps: Ints  # (n, 2): start and end from low_ns
    stepping: int  # thread


def host_chains(host: Host, stretch: Stretch, launches: Index) -> HostChains:
    """Nodes and cells of a stretch; ``launches`` are nest indices of calls with device work."""
    inside = _inside(host, stretch)
    threads = _threads(host, inside, stretch.stepping, launches)
    chain_of = np.full(int(host.nest.thread.max(initial=0)) + 2, -1, dtype=np.intp)
    chain_of[threads] = np.arange(len(threads))
    inside = inside[chain_of[host.nest.thread[inside]] >= 0]
    chain = chain_of[host.nest.thread[inside]]
    start, end = _instants(host, inside, stretch)
    cells = _cells(host, inside, chain, start, end)
    calls = _calls(host, inside, launches)
    wakes = _wakes(cells, chain, start, end)
    return _nodes(host, stretch, threads, cells, inside[calls], chain[calls], (start, end), calls,
                  wakes)  # fmt: skip


def _inside(host: Host, stretch: Stretch) -> Index:
    nest = host.nest
    rank = nest.spans["rank"].fill_null(-1).to_numpy()
    mine = (rank == (-1 if stretch.rank is None else stretch.rank)) & (
        nest.spans["source"].to_numpy() == stretch.source
    )
    index = np.flatnonzero(mine)
    start = nest.axis.take(nest.start[index], nest.thread[index])
    end = nest.axis.take(nest.end[index], nest.thread[index])
    return index[(start < stretch.high_ns) & (end > stretch.low_ns)]


def _instants(host: Host, index: Index, stretch: Stretch) -> tuple[Ints, Ints]:
    nest = host.nest
    room = stretch.high_ns - stretch.low_ns
    start = nest.axis.take(nest.start[index], nest.thread[index]) - stretch.low_ns
    end = nest.axis.take(nest.end[index], nest.thread[index]) - stretch.low_ns
    return np.clip(start, 0, room), np.clip(end, 0, room)


def _threads(host: Host, inside: Index, stepping: int, launches: Index) -> list[int]:
    """The stepping thread, then those that launch, then the busiest others."""
    found, count = np.unique(host.nest.thread[inside], return_counts=True)
    feeding = np.isin(found, host.nest.thread[launches])
    order = np.lexsort((found, -count, ~feeding))
    others = [int(t) for t in found[order] if int(t) != stepping]
    return [stepping, *others][:MOST_THREADS]


def _cells(host: Host, inside: Index, chain: Index, start: Ints, end: Ints) -> Cells:
    """Every instant between a thread's first and last point, with its innermost span."""
    full = np.flatnonzero(end > start)
    depth = host.nest.depth[inside[full]].astype(np.int64)
    time = np.concatenate([start[full], end[full]])
    lane = np.concatenate([chain[full], chain[full]])
    tie = np.concatenate([depth, -depth - 1])  # at one instant: ends, deeper first; then starts
    after = np.concatenate([inside[full], host.nest.parent[inside[full]]])
    order = np.lexsort((tie, time, lane))
    time, lane, after = time[order], lane[order], after[order]
    same = lane[1:] == lane[:-1]
    keep = np.flatnonzero(same & (time[1:] > time[:-1]))
    span = after[keep]
    nothing = CODE["nothing"]
    activity = np.where(span >= 0, host.activity[span], nothing) if host.activity.size else span
    begin = time[keep]
    length = time[keep + 1] - begin
    none = np.full(keep.size, -1, dtype=np.intp)
    return Cells(none, begin, length, lane[keep], activity.astype(np.int8), span)


def _calls(host: Host, inside: Index, launches: Index) -> Index:
    """Positions in ``inside`` of outermost runtime calls that launch, wait, or free."""
    spans = host.nest.spans[inside]
    runtime = (spans["kind"] == "runtime").to_numpy()
    parent = host.nest.parent[inside]
    kinds = (host.nest.spans["kind"] == "runtime").to_numpy()
    nested = (parent >= 0) & kinds[np.maximum(parent, 0)]
    waiting = names.matching(spans["name"], waits_by_name).to_numpy()
    wanted = runtime & ~nested & (waiting | np.isin(inside, launches))
    return np.flatnonzero(wanted)


def waits_by_name(name: str) -> bool:
    """Whether a runtime call of this name may wait for the device."""
    return bool(
        names.SYNCHRONISATIONS.search(name)
        or names.BLOCKING_COPIES.search(name)
        or (names.ALLOCATIONS.search(name) and "Free" in name)
    )


def _wakes(cells: Cells, chain: Index, start: Ints, end: Ints) -> list[tuple[int, int, int, int]]:
    """Hand-overs: (silent chain, instant it resumes, waking chain, instant of its last point)."""
    silent = np.flatnonzero(
        (cells.activity == CODE["nothing"]) & (cells.length >= LEAST_SILENCE_NS)
    )
    chains = np.flatnonzero(np.bincount(chain)).tolist() if chain.size else []
    if silent.size == 0 or len(chains) < 2:
        return []
    begin, finish = cells.start[silent], cells.start[silent] + cells.length[silent]
    best = np.zeros(silent.size)
    waker = np.full(silent.size, -1, dtype=np.intp)
    last = np.zeros(silent.size, dtype=np.int64)
    for other in chains:
        points = np.sort(np.concatenate([start[chain == other], end[chain == other]]))
        if points.size == 0:
            continue
        until = np.searchsorted(points, finish, side="left") - 1
        since = np.searchsorted(points, begin, side="right")
        some = (until >= since) & (cells.chain[silent] != other)
        low = points[np.minimum(since, points.size - 1)]
        high = points[np.maximum(until, 0)]
        share = np.where(some, (high - low) / (finish - begin), 0.0)
        better = share > best
        best, last = np.where(better, share, best), np.where(better, high, last)
        waker = np.where(better, other, waker)
    taken = np.flatnonzero(best >= MOSTLY)
    columns = (cells.chain[silent], finish, waker, last)
    return [tuple(int(c[i]) for c in columns) for i in taken]  # type: ignore[misc]


def _nodes(
    host: Host, stretch: Stretch, threads: list[int], cells: Cells, call: Index,
    call_chain: Index, instants: tuple[Ints, Ints], calls: Index,
    wakes: list[tuple[int, int, int, int]],
) -> HostChains:  # fmt: skip
    start, end = instants[0][calls], instants[1][calls]
    long = end > start
    none = np.full(2 * len(stretch.steps), -1)
    marks = np.concatenate([stretch.steps[:, 0], stretch.steps[:, 1]])
    woken = np.array(wakes, dtype=np.int64).reshape(-1, 4)
    count = len(threads)
    parts = [
        (np.arange(count), np.zeros(count), np.full(count, ORIGIN), np.full(count, -1)),
        (call_chain, start, np.full(call.size, CALL), call),
        (call_chain[long], end[long], np.full(int(long.sum()), RETURN), call[long]),
        (none * 0, marks, np.repeat([MARK, UNMARK], len(stretch.steps)), none),
        (woken[:, 0], woken[:, 1], np.full(len(woken), WAKE), np.full(len(woken), -1)),
        (woken[:, 2], woken[:, 3], np.full(len(woken), WAKER), np.full(len(woken), -1)),
    ]
    chain, time, kind, span = (
        np.concatenate([np.asarray(p[i], dtype=np.int64) for p in parts]) for i in range(4)
    )
    which = np.concatenate(
        [np.full(len(p[0]), -1) for p in parts[:4]] + [np.arange(len(woken))] * 2
    )
    tie = np.array([0, 4, 1, 3, 2, 2, 1])[kind]
    order = np.lexsort((tie, time, chain))
    chain, time, kind, span, which = (a[order] for a in (chain, time, kind, span, which))
    to, by = _matched(which, kind, WAKE), _matched(which, kind, WAKER)
    lag = time[to] - time[by]
    work = np.diff(time, prepend=0).astype(np.float64)
    work[np.diff(chain, prepend=-1) > 0] = 0.0
    work[kind == WAKE] = 0.0
    owner = np.searchsorted(
        chain * _FAR + time, cells.chain * _FAR + cells.start + cells.length, side="left"
    )
    owner = np.minimum(owner, time.size - 1)
    mine = (chain[owner] == cells.chain) & (kind[owner] != WAKE)
    found = Cells(
        owner[mine], cells.start[mine], cells.length[mine], cells.chain[mine],
        cells.activity[mine], cells.span[mine],
    )  # fmt: skip
    return HostChains(
        threads, chain.astype(np.intp), time, kind.astype(np.int8), span.astype(np.intp), work,
        (to, by, lag), found,
    )  # fmt: skip


def without(chains: HostChains, needless: Flags) -> tuple[HostChains, Index]:
    """The same without some nodes, whose program goes to the next node of the chain.

    With it, the new number of every node (of the next that is kept, for one that went).
    """
    last = np.diff(chains.chain, append=-1) != 0
    keep = ~needless | last
    place = np.cumsum(keep) - keep
    work = np.bincount(place, weights=chains.work, minlength=int(keep.sum())).astype(np.float64)
    cells = chains.cells
    held = replace(cells, node=place[cells.node])
    found = HostChains(
        chains.threads, chains.chain[keep], chains.time[keep], chains.kind[keep],
        chains.span[keep], work, (place[chains.wakes[0]], place[chains.wakes[1]], chains.wakes[2]),
        held,
    )  # fmt: skip
    return found, place


def _matched(which: Ints, kind: Ints, wanted: int) -> Index:
    """Nodes of one kind in order of the hand-over they belong to."""
    nodes = np.flatnonzero(kind == wanted)
    return nodes[np.argsort(which[nodes], kind="stable")]


def steps_of(marks: pl.DataFrame, rank: int | None, source: int) -> pl.DataFrame:
    """Step marks of a rank in one source, in order: number, thread, start_ns, end_ns."""
    mine = pl.col("rank").eq_missing(rank) & (pl.col("source") == source)
    chosen = marks.filter(mine).select("number", "thread", "start_ns", "end_ns")
    return chosen.sort("start_ns", "number")
