"""The longest path through a step, for many changed copies of it at once.

Every node begins at the latest of: the node before on its chain plus the program (or the work)
in between, and each node that it depends on plus a lag. Along one chain that is a running maximum,
so a chain is replayed in one vectorised move up to the next node that waits for another chain.
The recorded order cuts the nodes into such blocks; a change alters lengths, never the order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from whyidle.intervals import Index

Reals = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Edges:
    """Dependencies across chains: ``to`` begins at the earliest ``lag`` after ``by``.

    after_end: counted from the end of ``by`` (its length may change) rather than its begin.
    """

    to: Index
    by: Index
    lag: Reals
    after_end: Flags


@dataclass(frozen=True)
class Graph:
    """Nodes of all chains. ``order`` is the recorded instant by which blocks are cut.

    work: ns from the node before on the chain, without that node's own length; length: ns that
    the node itself lasts (device work; 0 for host nodes). calls: one optional dependency per
    node on a host node (``calls_by`` -1 for none), all of them inside or before its block.
    device: whether the node lies on a stream. Chains are numbered, hosts first.
    """

    chain: Index
    order: Reals
    device: Flags
    work: Reals
    length: Reals
    calls_by: Index
    calls_lag: Reals
    edges: Edges


@dataclass(frozen=True)
class Plan:
    """The graph sorted for replay; see ``planned``."""

    sorted: Index  # position -> node
    place: Index  # node -> position
    before: Index  # position of the node before on the chain; -1 for the first
    slices: list[tuple[int, int, int, int, int]]  # first, last, chain, first edge, last edge
    edge: Index  # edges in order of the position they lead to
    called: Index  # positions before each that follow a call
    chains: int


def planned(graph: Graph) -> Plan:
    """Sort nodes into blocks: hosts before streams, chain by chain."""
    edges = graph.edges
    cuts = np.unique(graph.order[edges.to])
    block = np.searchsorted(cuts, graph.order, side="right")
    index = np.arange(graph.chain.size)
    by_position = np.lexsort((index, graph.chain, block))
    place = np.empty_like(by_position)
    place[by_position] = index
    chain, block = graph.chain[by_position], block[by_position]
    before = np.full(index.size, -1, dtype=np.intp)
    stable = np.argsort(chain, kind="stable")
    same = chain[stable][1:] == chain[stable][:-1]
    before[stable[1:][same]] = stable[:-1][same]
    edge = np.argsort(place[edges.to], kind="stable")
    first = np.flatnonzero((np.diff(chain, prepend=-1) != 0) | (np.diff(block, prepend=-1) != 0))
    last = np.concatenate([first[1:], [index.size]]) if index.size else first
    leads = place[edges.to][edge]
    low, high = np.searchsorted(leads, first), np.searchsorted(leads, last)
    columns = (first, last, chain[first], low, high)
    slices = list(zip(*(c.tolist() for c in columns), strict=True))
    called = np.concatenate([[0], np.cumsum(graph.calls_by[by_position] >= 0)])
    chains = int(graph.chain.max(initial=-1)) + 1
    return Plan(by_position, place, before, slices, edge, called, chains)


def replayed(
    graph: Graph, plan: Plan, work: Reals, length: Reals, calls_lag: Reals, dropped: Flags
) -> Reals:
    """Begin of every node (row) in every copy (column), ns.

    work, length, calls_lag: nodes x copies; dropped: edges x copies, the edge is gone.

    With P the sum of lengths along a chain, begin - P never falls along it, so each block needs
    the running maximum of (what a node waits for - P), carried from block to block.
    """
    at, edges = plan.sorted, graph.edges
    path = _along(graph, plan, work, length)
    by = np.where(graph.calls_by[at] >= 0, plan.place[graph.calls_by[at]], at.size)
    lag = calls_lag[at] - path
    source, target = plan.place[edges.by][plan.edge], plan.place[edges.to][plan.edge]
    after = edges.lag[:, None] + np.where(edges.after_end[:, None], length[edges.by], 0.0)
    after = np.where(dropped, -np.inf, after)[plan.edge] - path[target]
    begin = np.full((at.size + 1, work.shape[1]), -np.inf)  # the last row: waits for nothing
    carried: list[Reals | None] = [None] * plan.chains
    to, sources = target.tolist(), source.tolist()
    for first, stop, chain, low, high in plan.slices:
        carry = carried[chain]
        if (
            by[first] == at.size
            and (low == high or to[high - 1] == first)
            and not (plan.called[stop] - plan.called[first])
        ):
            for edge in range(low, high):
                waited = begin[sources[edge]] + after[edge]
                carry = waited if carry is None else np.maximum(carry, waited)
            carry = -path[first] if carry is None else carry  # a host thread begins the stretch
            np.add(path[first:stop], carry, out=begin[first:stop])
            carried[chain] = carry
            continue
        least = begin[by[first:stop]]
        least += lag[first:stop]
        for edge in range(low, high):
            row = least[to[edge] - first]
            np.maximum(row, begin[sources[edge]] + after[edge], out=row)
        if carry is not None:
            np.maximum(least[0], carry, out=least[0])
        np.maximum.accumulate(least, axis=0, out=least)
        np.add(least, path[first:stop], out=begin[first:stop])
        carried[chain] = least[-1]
    return begin[plan.place]


def _along(graph: Graph, plan: Plan, work: Reals, length: Reals) -> Reals:
    """Per position the sum of program and lengths from the start of its chain."""
    order = np.argsort(graph.chain[plan.sorted], kind="stable")
    at, before = plan.sorted[order], plan.before[order]
    step = work[at] + np.where(before[:, None] >= 0, length[plan.sorted[before]], 0.0)
    path = np.cumsum(step, axis=0)
    first = np.flatnonzero(before < 0)
    sizes = np.diff(first, append=before.size)
    start = path[first] - step[first]
    path -= np.repeat(start, sizes, axis=0)
    found = np.empty_like(path)
    found[order] = path
    return found
