"""What each kind of effect that a remedy carries does to the model.

An effect is data, such as ``{"kind": "launches_scaled", "factor": 0.5}``; this is the one place
that knows what the kinds mean. Each is applied three times: ``high`` is the exact removal of what
the remedy is about, ``mid`` and ``low`` leave a part of it or add what competes. The parts are in
``STRENGTH``, with their reasons in the documentation. A kind that is not known has no gain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from whyidle.gain.competition import COMPETING, fastest_ns, workers_for
from whyidle.gain.device_chains import LONGEST_LATENCY_NS
from whyidle.gain.graph import Model
from whyidle.gain.host_chains import RETURN
from whyidle.gain.marks import DISPATCH, WEAK, Marks, codes
from whyidle.gain.waits import QUICK_NS
from whyidle.intervals import Index
from whyidle.views.activity import COMMUNICATION, COMPUTE, COPY

Reals = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

HIGH, MID, LOW = 0, 1, 2
STRENGTH: dict[str, tuple[float, float, float]] = {
    "spans": (1.0, 1.0, 0.98),
    "launches": (1.0, 0.75, 0.4),
    "rewritten": (1.0, 0.95, 0.8),
    "graph": (1.0, 0.97, 0.9),
    "kernels": (1.0, 0.85, 0.6),
    "copies": (1.0, 0.8, 0.5),
    "communication": (1.0, 0.6, 0.25),
    "balance": (1.0, 0.8, 0.5),
    "allocator": (1.0, 0.9, 0.5),
    "syncs": (1.0, 1.0, 0.5),
    "loader": (1.0, 0.9, 0.6),
}
"""Per family of effects the part that takes hold at the high, mid and low end of the gain."""

REWRITTEN = 0.2
"""Launches that shrink to this or less are a known rewrite (fused optimizers, a loop made one
operator), not an estimate of what could be merged."""
PINNED = (0.4, 1.0, 1.4)
"""How far the time of pinned copies may lie from ``factor``, by the bus and the host's memory;
judgement."""
LEAST_KERNEL_NS = 2_000.0
"""What a kernel takes that does next to nothing: in three recorded traces the shortest twentieth of
the kernels ends at 1.6 to 1.7 us, the shortest tenth at 1.8 to 2.2 us."""


@dataclass(frozen=True)
class Change:
    """One changed copy of the model.

    keep: share kept of each node's program; scale: of each work's length; sooner: of each work's
    gap and latency; dropped: edges that go.
    slower multiplies all program; floor_ns is the least a step can take; per divides the step.
    """

    keep: Reals
    scale: Reals
    sooner: Reals
    dropped: Flags
    slower: float = 1.0
    floor_ns: float = 0.0
    per: float = 1.0

    def with_(self, other: Change) -> Change:
        """Both changes in one."""
        return Change(
            self.keep * other.keep,
            self.scale * other.scale,
            self.sooner * other.sooner,
            self.dropped | other.dropped,
            max(self.slower, other.slower),
            max(self.floor_ns, other.floor_ns),
            self.per * other.per,
        )


def unchanged(model: Model) -> Change:
    """The model as it is."""
    size = model.device_work.start.size
    return Change(
        np.ones(model.hosts), np.ones(size), np.ones(size),
        np.zeros(model.graph.edges.to.size, dtype=bool),
    )  # fmt: skip


def changes(model: Model, marks: Marks, effect: dict[str, Any]) -> list[Change] | None:
    """The high, mid and low copy of an effect; None for a kind that has no gain here."""
    apply = _KINDS.get(str(effect.get("kind")))
    if apply is None:
        return None
    return [apply(model, marks, effect, end) for end in (HIGH, MID, LOW)]


Kind = Callable[[Model, Marks, dict[str, Any], int], Change]


def _number(effect: dict[str, Any], key: str, otherwise: float) -> float:
    """A number of an effect from 0 to 1000; ``otherwise`` where it holds none such."""
    found = effect.get(key, otherwise)
    known = isinstance(found, int | float) and not isinstance(found, bool) and 0 <= found <= 1000
    return float(found) if known else otherwise


def _factor(effect: dict[str, Any], otherwise: float) -> float:
    return _number(effect, "factor", otherwise)


def _shrunk(effect: dict[str, Any], otherwise: float) -> float:
    return min(_factor(effect, otherwise), 1.0)


def removed_share(model: Model, change: Change) -> float:
    """The part (0..1) of the steps' time that a change takes out of host threads.

    Program that goes, and calls whose wait for the device goes.
    """
    chains = model.chains
    gone = chains.work * (1.0 - np.minimum(change.keep, 1.0))
    waits = model.graph.edges.to[change.dropped]
    waits = np.unique(waits[waits < model.hosts])
    gone[waits] = np.maximum(chains.work[waits] - model.graph.work[waits] * change.keep[waits], 0)
    whole = float((model.steps[:, 1] - model.steps[:, 0]).sum())
    return min(float(gone.sum()) / whole, 1.0) if whole > 0 else 0.0


def _cut(model: Model, cells: Index, ns: npt.NDArray[np.floating[Any]]) -> Change:
    """Takes so many ns out of each cell."""
    program = np.bincount(model.chains.cells.node[cells], weights=ns, minlength=model.hosts)
    with np.errstate(invalid="ignore", divide="ignore"):
        removed = np.where(model.chains.work > 0, program / model.chains.work, 0.0)
    start = unchanged(model)
    return Change(1.0 - np.clip(removed, 0, 1), start.scale, start.sooner, start.dropped)


def _shortened(model: Model, work: Index, ns: Reals) -> Change:
    """Takes so many ns out of each piece of device work."""
    start = unchanged(model)
    took = np.maximum(model.device_work.length[work], 1)
    start.scale[work] = 1.0 - np.clip(ns / took, 0, 1)
    return start


def _without_waits(model: Model, nodes: Index, part: float, change: Change) -> Change:
    """Drops the waits of these calls (evenly spread ones, for a part), and their own length."""
    nodes = np.unique(nodes)
    nth = np.arange(nodes.size)
    taken = nodes[np.floor((nth + 1) * part) > np.floor(nth * part)]
    edges = model.graph.edges
    dropped = np.isin(edges.to, taken) & (model.edge_kind >= 0)
    keep = np.ones(model.hosts)
    work = np.maximum(model.graph.work[taken], 1.0)
    keep[taken] = np.minimum(1.0, QUICK_NS / work)
    start = unchanged(model)
    return change.with_(Change(keep, start.scale, start.sooner, dropped))


def _spans(model: Model, marks: Marks, effect: dict[str, Any], end: int) -> Change:
    """Host spans and claimed device work go, or shrink to ``factor``.

    What is left to every so many steps is in no usual step; the low end keeps its mean.
    """
    factor = _shrunk(effect, 0.0)
    if _number(effect, "every", 1.0) >= 3 and end != LOW:
        factor = 0.0
    part = STRENGTH["spans"][end] * (1.0 - factor)
    cells = model.chains.cells
    ns = np.zeros(cells.length.size)
    ns[marks.timed] = marks.timed_ns
    name = effect.get("name")
    scoped = marks.scoped
    if name:
        scoped = scoped[_named(model, scoped, str(name))]
        ns[~np.isin(np.arange(ns.size), scoped)] = 0.0
    else:
        strong = ~np.isin(cells.activity[scoped], codes(*DISPATCH, *WEAK))
        scoped = scoped[strong]
    ns[scoped] = cells.length[scoped]
    at = np.flatnonzero(ns > 0)
    cut = _cut(model, at, ns[at] * part)
    return cut.with_(_shortened(model, marks.lost, marks.lost_ns * part))


def _named(model: Model, cells: Index, name: str) -> Flags:
    """Which cells lie in a scope whose span has this in its name."""
    known = np.array([name in text for text in model.scope_names] or [False])
    return known[model.scope[cells]]


def _loader(model: Model, marks: Marks, effect: dict[str, Any], end: int) -> Change:
    """The wait for a batch goes; workers that prepare it compete with the training process."""
    share = min(_number(effect, "share_removed", 1.0), 1.0)
    cells = model.chains.cells
    at = np.flatnonzero(np.isin(cells.activity, codes("loader", "loader_restart")))
    if share < 1.0 or not model.loads_itself:
        part = share * STRENGTH["loader"][end]
        return _cut(model, at, cells.length[at] * part)
    load, rest = _load_and_rest(model, at)
    cpus = _number(effect, "cpus", 0.0) or None
    workers = _number(effect, "workers", 0.0) or workers_for(load, rest, cpus) or 1
    floor = fastest_ns(load, rest, max(workers, 1.0), cpus)[end]
    cut = _cut(model, at, cells.length[at].astype(np.float64))
    return Change(cut.keep, cut.scale, cut.sooner, cut.dropped, COMPETING[end], floor)


def _load_and_rest(model: Model, loading: Index) -> tuple[float, float]:
    """Of the usual step, ns that the stepping thread builds a batch, and ns of all the rest."""
    load = float(np.median(model.per_step_ns(loading)[model.interior()]))
    return load, max(model.measured_s * 1e9 - load, 0.0)


def suggested_workers(model: Model, cpus: float | None) -> tuple[int, float, float] | None:
    """How many workers keep up with the step, seconds to build a batch, seconds of the rest.

    None where the stepping process does not build its batches itself, so that nothing tells how
    long one takes.
    """
    if not model.loads_itself:
        return None
    cells = model.chains.cells
    at = np.flatnonzero(np.isin(cells.activity, codes("loader", "loader_restart")))
    load, rest = _load_and_rest(model, at)
    workers = workers_for(load, rest, cpus)
    return None if workers is None else (workers, load / 1e9, rest / 1e9)


def _syncs(model: Model, marks: Marks, effect: dict[str, Any], end: int) -> Change:
    """Waits for the device go; the host runs on, and what it must launch still costs it."""
    strong = [a for a in marks.activities if a not in codes(*DISPATCH, *WEAK)]
    returns = np.flatnonzero(model.chains.kind == RETURN)
    waiting = np.isin(model.call_activity[returns], strong) & model.call_waits[returns]
    nodes = np.union1d(returns[waiting], marks.calls[_long(model, marks.calls)])
    return _without_waits(model, nodes, STRENGTH["syncs"][end], unchanged(model))


def _long(model: Model, nodes: Index) -> Flags:
    return model.call_waits[nodes] | (model.chains.work[nodes] > LONGEST_LATENCY_NS)


def _graph(model: Model, marks: Marks, effect: dict[str, Any], end: int) -> Change:
    """All operators and launches of the step become one call."""
    cells = model.chains.cells
    at = np.flatnonzero(np.isin(cells.activity, codes("op", "launch")))
    return _cut(model, at, cells.length[at] * STRENGTH["graph"][end])


def _launches(model: Model, marks: Marks, effect: dict[str, Any], end: int) -> Change:
    """Operators and launches that were named cost less; work that began late begins sooner.

    Every launch that goes takes with it the least time that a kernel takes, however little it does.
    """
    factor = _shrunk(effect, 0.5)
    strength = STRENGTH["launches" if factor > REWRITTEN else "rewritten"][end]
    part = strength * (1.0 - factor)
    cells = model.chains.cells
    scoped = marks.scoped[np.isin(cells.activity[marks.scoped], codes(*DISPATCH))]
    change = _cut(model, scoped, cells.length[scoped] * part)
    change.sooner[marks.late] = 1.0 - part
    by = model.graph.calls_by[model.hosts :]
    fewer = np.isin(by, cells.node[scoped]) & (model.device_work.state == COMPUTE)
    took = np.maximum(model.device_work.length[fewer], 1)
    change.scale[fewer] = 1.0 - part * np.minimum(LEAST_KERNEL_NS / took, 1.0)
    return change


def _kernels(model: Model, marks: Marks, effect: dict[str, Any], end: int) -> Change:
    """Claimed kernels shrink to ``factor``, but never by more than was claimed of them.

    Where the effect is not held to what was claimed, the claim is the low end, ``factor`` the high.
    """
    took = model.device_work.length[marks.lost].astype(np.float64)
    whole = took * (1.0 - _shrunk(effect, 0.0))
    most = np.minimum(marks.lost_ns, whole)
    if "factor" in effect and effect.get("only") != "claimed":
        return _shortened(model, marks.lost, (whole, (whole + most) / 2, most * 0.9)[end])
    return _shortened(model, marks.lost, most * STRENGTH["kernels"][end])


def _batch(model: Model, marks: Marks, effect: dict[str, Any], end: int) -> Change:
    """More samples per step: the host does the same, under-filled kernels take little longer."""
    factor = max(_factor(effect, 2.0), 1.0)
    change = unchanged(model)
    sized = np.isin(model.device_work.state, [COMPUTE, COPY])
    change.scale[sized] = factor
    change.scale[marks.lost] = 1.0 + (factor - 1.0) * (0.0, 0.4, 0.8)[end]
    cells = model.chains.cells
    loading = np.isin(cells.activity, codes("loader", "loader_restart"))
    at = np.flatnonzero(loading)
    more = _cut(model, at, cells.length[at].astype(np.float64))
    keep = 1.0 + (1.0 - more.keep) * (factor - 1.0)
    return Change(keep, change.scale, change.sooner, change.dropped, per=factor)


def _communication(model: Model, marks: Marks, effect: dict[str, Any], end: int) -> Change:
    """The claimed part of communication hides, or shrinks to ``factor``."""
    part = STRENGTH["communication"][end] * (1.0 - _shrunk(effect, 0.0))
    return _talk_cut(model, marks, part)


def _balance(model: Model, marks: Marks, effect: dict[str, Any], end: int) -> Change:
    """Waiting for other ranks goes."""
    return _talk_cut(model, marks, STRENGTH["balance"][end])


def _talk_cut(model: Model, marks: Marks, part: float) -> Change:
    talks = model.device_work.state[marks.lost] == COMMUNICATION
    lost, ns = marks.lost[talks], marks.lost_ns[talks]
    return _shortened(model, lost, ns * part).with_(_cut(model, marks.timed, marks.timed_ns * part))


def _allocator(model: Model, marks: Marks, effect: dict[str, Any], end: int) -> Change:
    """Allocator calls go, with the waits that freeing brings."""
    part = STRENGTH["allocator"][end]
    cells = model.chains.cells
    wanted = codes("allocator", "empty_cache")
    at = np.flatnonzero(np.isin(cells.activity, wanted))
    returns = np.flatnonzero(model.chains.kind == RETURN)
    nodes = returns[np.isin(model.call_activity[returns], wanted)]
    return _without_waits(model, nodes, part, _cut(model, at, cells.length[at] * part))


def _copies_away(model: Model, marks: Marks, effect: dict[str, Any], end: int) -> Change:
    """Claimed copies run beside the work before, and nobody waits for them."""
    part = STRENGTH["copies"][end]
    lost = _copied(model, marks)
    took = model.device_work.length[lost].astype(np.float64)
    return _unawaited(model, lost, part, _shortened(model, lost, took * part))


def _unawaited(model: Model, copies: Index, part: float, change: Change) -> Change:
    """The host no longer waits for these copies."""
    edges = model.graph.edges
    waits = np.isin(edges.by, model.hosts + copies) & (model.edge_kind >= 0)
    return _without_waits(model, edges.to[waits], part, change)


def _copies(model: Model, marks: Marks, effect: dict[str, Any], end: int) -> Change:
    """Claimed copies take ``factor`` of their time, and so do the calls that wait for them.

    Where they become ``asynchronous`` (pinned memory), their calls return at once.
    """
    factor = _shrunk(effect, 0.0)
    part = STRENGTH["copies"][end] * (1.0 - factor)
    lost = _copied(model, marks)
    took = model.device_work.length[lost].astype(np.float64)
    if effect.get("asynchronous") is True:
        shorter = _shortened(model, lost, took * (1.0 - min(factor * PINNED[end], 1.0)))
        return _unawaited(model, lost, STRENGTH["copies"][end], shorter)
    shorter = _shortened(model, lost, took * part)
    return _cut(model, marks.timed, marks.timed_ns * part).with_(shorter)


def _copied(model: Model, marks: Marks) -> Index:
    """Claimed copies, and those launched by calls that were named."""
    by = model.graph.calls_by[model.hosts :]
    mine = np.isin(by, marks.calls - 1) & (model.device_work.state == COPY)
    claimed = marks.lost[model.device_work.state[marks.lost] == COPY]
    return np.union1d(claimed, np.flatnonzero(mine)).astype(np.intp)


_KINDS: dict[str, Kind] = {
    "spans_removed": _spans,
    "spans_scaled": _spans,
    "loader_wait_removed": _loader,
    "syncs_dropped": _syncs,
    "launches_as_graph": _graph,
    "launches_scaled": _launches,
    "kernels_scaled": _kernels,
    "batch_scaled": _batch,
    "communication_overlapped": _communication,
    "communication_compressed": _communication,
    "communication_scaled": _communication,
    "link_changed": _communication,
    "ranks_balanced": _balance,
    "allocator_calls_removed": _allocator,
    "copies_overlapped": _copies_away,
    "copies_scaled": _copies,
}
