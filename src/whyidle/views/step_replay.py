"""Replays training steps of a pipeline from records of its operations, with work made equal.

A step of one replica of the model is a graph that all replicas and steps share: its computations
in order on each stage; sends after the computation they carry, receives before it; gradients
reduced after the last computation; the optimizer last. An operation between ranks begins when its
last member is there and then takes what it took beyond that. Waiting is thus not replayed but
follows, and what the job would take with other durations can be asked. Delays between operations
(the host's) are left out on both sides of every comparison.

The graph and the fair durations follow "Understanding Stragglers in Large Model Training Using
What-if Analysis" (arXiv 2505.05713) and the records published with it: for computing the mean of
its kind, for communication the median of the transfer, each over all ranks and steps.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

Floats = npt.NDArray[np.float64]
Node = tuple[int, str, int]
"""Stage, kind, running number."""

COMPUTES = ("forward-compute", "backward-compute", "optimizer", "gc")
PASSES = ("forward-compute", "backward-compute")
PAIRS = {
    "forward-send": ("forward-recv", 1),
    "forward-recv": ("forward-send", -1),
    "backward-send": ("backward-recv", -1),
    "backward-recv": ("backward-send", 1),
}
"""Kind -> the kind of its counterpart, and how many stages on that is."""

OF_REPLICAS = ("params-all-gather", "grads-reduce-scatter", "optimizer-clip-main-grad")
AFTERWARDS = (
    "gc", "layernorm-grads-all-reduce", "embedding-grads-all-reduce", "grads-reduce-scatter",
    "optimizer-clip-main-grad", "optimizer",
)  # fmt: skip


@dataclass(frozen=True)
class Graph:
    """Nodes of a step in an order in which they can run, what each needs, and who moves together.

    took: node -> seconds it takes itself, shape (steps, replicas). groups: node -> the nodes that
    begin together with it, itself among them.
    """

    order: list[Node]
    needs: dict[Node, list[Node]]
    groups: dict[Node, tuple[Node, ...]]
    took: dict[Node, Floats]
    ranks: dict[tuple[int, int], int]


def graph(operations: pl.DataFrame) -> Graph | None:
    """The graph of recorded steps; None when the records are not those of a pipeline we know.

    ``operations``: model.OPERATIONS of all ranks. Steps in which some rank lacks an operation are
    left out.
    """
    if not operations.height or not set(PASSES) <= set(operations["name"].cast(pl.String).unique()):
        return None
    start, end, firsts = _arrays(operations)
    if not start:
        return None
    needs = _needs(start, end, firsts)
    groups = _groups(start)
    order = _ordered(needs, groups)
    if order is None:
        return None
    took = {}
    for node in order:
        begun = np.maximum.reduce([start[n] for n in groups[node]])
        if node[1] in OF_REPLICAS:
            begun = np.broadcast_to(begun.max(axis=1, keepdims=True), begun.shape)
        took[node] = np.maximum(end[node] - (start[node] if node[1] in COMPUTES else begun), 0.0)
    ranks = {
        (stage, replica): rank
        for stage, replica, rank in operations.select("stage", "replica", "rank").unique().rows()
    }
    return Graph(order, needs, groups, took, ranks)


def _arrays(
    operations: pl.DataFrame,
) -> tuple[dict[Node, Floats], dict[Node, Floats], dict[Node, tuple[int, int]]]:
    """Starts and ends (s, from the step's start) by node; and (chunk, micro-batch) of passes."""
    steps = operations["step"].unique().sort().to_list()
    replicas = operations["replica"].unique().sort().to_list()
    row = operations["step"].replace_strict(steps, range(len(steps)), return_dtype=pl.Int64)
    column = operations["replica"].replace_strict(
        replicas, range(len(replicas)), return_dtype=pl.Int64
    )
    told = operations.with_columns(row.alias("row"), column.alias("column"))
    start: dict[Node, Floats] = {}
    end: dict[Node, Floats] = {}
    firsts: dict[Node, tuple[int, int]] = {}
    whole = np.ones(len(steps), dtype=bool)
    for (stage, name, number), mine in told.group_by("stage", "name", "sequence"):
        node = (int(str(stage)), str(name), int(str(number)))
        for found, values in ((start, mine["start_ns"]), (end, mine["end_ns"])):
            filled = np.full((len(steps), len(replicas)), np.nan)
            filled[mine["row"].to_numpy(), mine["column"].to_numpy()] = values.to_numpy() / 1e9
            found[node] = filled
        whole &= ~np.isnan(start[node]).any(axis=1)
        firsts[node] = (int(mine["chunk"][0]), int(mine["micro_batch"][0]))
    if not whole.any():
        return {}, {}, {}
    return {n: a[whole] for n, a in start.items()}, {n: a[whole] for n, a in end.items()}, firsts


def _needs(
    start: dict[Node, Floats], end: dict[Node, Floats], firsts: dict[Node, tuple[int, int]]
) -> dict[Node, list[Node]]:
    """What must be over before a node of its own stage can begin."""
    needs: dict[Node, list[Node]] = {node: [] for node in start}
    begun = {node: float(values[0, 0]) for node, values in start.items()}
    for stage in sorted({node[0] for node in start}):
        mine = sorted((n for n in start if n[0] == stage), key=lambda n: (begun[n], n[2], n[1]))
        passes = [n for n in mine if n[1] in PASSES]
        _chain(needs, passes)
        for kind in ("params-all-gather", *PAIRS):
            _chain(needs, [n for n in mine if n[1] == kind])
        for kind in PASSES:
            _carried(needs, mine, kind, passes)
        _gathered(needs, mine, passes, firsts)
        after = [n for kind in AFTERWARDS for n in sorted(mine, key=lambda n: n[2]) if n[1] == kind]
        last = max(passes, key=lambda n: float(end[n][0, 0]))
        _chain(needs, [last, *after])
    return needs


def _chain(needs: dict[Node, list[Node]], nodes: list[Node]) -> None:
    for one, two in zip(nodes, nodes[1:], strict=False):
        needs[two].append(one)


def _carried(
    needs: dict[Node, list[Node]], mine: list[Node], kind: str, passes: list[Node]
) -> None:
    """Sends follow the pass they carry; receives come before theirs, after the one before it."""
    way = kind.split("-")[0]
    own = [n for n in passes if n[1] == kind]
    for name in (f"{way}-send", f"{way}-recv"):
        moves = [n for n in mine if n[1] == name]
        # the first stage receives no first pass where its record lacks one
        skipped = len(own) - len(moves) if name.endswith("recv") and moves else 0
        for move, at in zip(moves, range(max(skipped, 0), len(own)), strict=False):
            if name.endswith("send"):
                needs[move].append(own[at])
            else:
                needs[own[at]].append(move)
                needs[move] += own[at - 1 : at] if at else []
    if kind == "backward-compute" and own:
        first = passes.index(own[0])
        if first >= 2:  # with a pipeline, backward begins to be exchanged one pass ahead
            for n in mine:
                if n[1] in ("backward-send", "backward-recv") and n[2] == 0:
                    needs[n].append(passes[first - 2])


def _gathered(
    needs: dict[Node, list[Node]], mine: list[Node], passes: list[Node],
    firsts: dict[Node, tuple[int, int]],
) -> None:  # fmt: skip
    """The first forward pass of a chunk needs its parameters."""
    gathers = [n for n in mine if n[1] == "params-all-gather"]
    forwards = [n for n in passes if n[1] == "forward-compute"]
    chunks = list(dict.fromkeys(firsts[n][0] for n in forwards))
    for number, chunk in enumerate(chunks):
        first = next(n for n in forwards if firsts[n][0] == chunk)
        if gathers:
            needs[first].append(gathers[min(number, len(gathers) - 1)])


def _groups(start: dict[Node, Floats]) -> dict[Node, tuple[Node, ...]]:
    """Who begins together: the two ends of a send, the first and last stage's embeddings, all."""
    last = max(node[0] for node in start)
    groups: dict[Node, tuple[Node, ...]] = {}
    for node in start:
        stage, kind, number = node
        members = [node]
        if kind in PAIRS:
            other, on = PAIRS[kind]
            members.append(((stage + on) % (last + 1), other, number))
        elif kind == "embedding-grads-all-reduce":
            members += [(0, kind, number), (last, kind, number)]
        elif kind == "optimizer-clip-main-grad":
            members += [n for n in start if n[1] == kind and n[2] == number]
        groups[node] = tuple(sorted({n for n in members if n in start}))
    return groups


def _ordered(
    needs: dict[Node, list[Node]], groups: dict[Node, tuple[Node, ...]]
) -> list[Node] | None:
    """Nodes in an order in which everything needed comes first; None when they wait in a circle."""
    wants = {
        node: {m for n in groups[node] for m in needs[n]} - set(groups[node]) for node in needs
    }
    users: dict[Node, list[Node]] = defaultdict(list)
    for node, before in wants.items():
        for n in before:
            users[n].append(node)
    left = {node: len(before) for node, before in wants.items()}
    ready = sorted(node for node, count in left.items() if not count)
    order: list[Node] = []
    while ready:
        node = ready.pop()
        order.append(node)
        for user in users[node]:
            left[user] -= 1
            if not left[user]:
                ready.append(user)
    return order if len(order) == len(needs) else None


def replayed_s(found: Graph, took: dict[Node, Floats]) -> Floats:
    """Seconds of each step with these durations."""
    end: dict[Node, Floats] = {}
    zero = np.zeros_like(next(iter(took.values())))
    for node in found.order:
        before = [end[n] for member in found.groups[node] for n in found.needs[member]]
        begin = np.maximum.reduce([zero, *before])
        if node[1] in OF_REPLICAS:
            begin = np.broadcast_to(begin.max(axis=1, keepdims=True), begin.shape)
        end[node] = begin + took[node]
    return np.asarray(np.maximum.reduce(list(end.values())).max(axis=1))


def fair(found: Graph, only: tuple[str, ...] | None = None) -> dict[Node, Floats]:
    """Durations with each kind of operation (or ``only`` these) equal on all ranks and steps."""
    kinds: dict[str, list[Node]] = defaultdict(list)
    for node in found.order:
        kinds[node[1]].append(node)
    took = dict(found.took)
    for kind, nodes in kinds.items():
        if only is not None and kind not in only:
            continue
        values = np.stack([found.took[n] for n in nodes])
        usual = values.mean() if kind in COMPUTES else np.median(values)
        for node in nodes:
            took[node] = np.full_like(found.took[node], usual)
    return took


def uneven_s(found: Graph, slow: frozenset[int]) -> dict[str, float]:
    """Seconds that all steps together lose by uneven operations, by reason of views.walk.

    In all, the distance to a run in which every operation is fair. ``slower``: as much of it as
    goes when those of the ranks in ``slow`` are; ``more_work``: the rest.
    """
    even = fair(found)
    as_is = float(replayed_s(found, found.took).sum())
    whole = max(as_is - float(replayed_s(found, even).sum()), 0.0)
    if not slow:
        return {"more_work": whole}
    mended = {node: values.copy() for node, values in found.took.items()}
    replicas = {rank: place for place, rank in found.ranks.items()}
    for rank in slow & set(replicas):
        stage, column = replicas[rank]
        for node in (n for n in found.order if n[0] == stage and n[1] in COMPUTES):
            mended[node][:, column] = even[node][:, column]
    slower = min(max(as_is - float(replayed_s(found, mended).sum()), 0.0), whole)
    return {"slower": slower, "more_work": whole - slower}
