"""Calls that return only when the device is done: what each waits for, and what it adds.

A synchronisation waits for all that was handed to a stream before it; which stream is not
recorded, so it is learned: the stream that was always done when such a call returned, and done
just before it returned where the call took long. A blocking copy waits for itself. A launch into
a full queue waits for the work that makes room.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from whyidle.gain.device_chains import (
    CLEAR_NS,
    LONGEST_LATENCY_NS,
    MOST_LANES,
    SLACK_NS,
    SURE,
    Flags,
    Reals,
    Work,
    code,
    share,
    total,
    typical,
)
from whyidle.gain.host_chains import CALL, MARK, RETURN, HostChains, waits_by_name, without
from whyidle.intervals import Index
from whyidle.views import names
from whyidle.views.host import Host

LONG_NS = 20_000
TOUCH_NS = 40_000
ROOM_NS = 300_000
LEAST_PENDING = 500
"""From so much work handed over and not done a long launch call may be waiting for room."""
WHOLE_DEVICE = re.compile(r"(Device|Ctx)Synchronize|Free|MemUnmap")
QUICK_NS = 5_000.0
_OUTBOUND = re.compile(f"^(?!.*Pinned).*({names.OUTBOUND})")
_INBOUND = re.compile(f"^(?!.*Pinned).*({names.INBOUND})")


@dataclass(frozen=True)
class Waits:
    """node: a RETURN node; on: the work it waits for; lag: from that work's end, ns.

    least: per RETURN node of the chains, ns that the call takes when nothing is to be waited for;
    NaN where the recorded length is kept. kind: 0 synchronisation, 1 blocking copy, 2 full queue.
    """

    node: Index
    on: Index
    lag: Reals
    kind: Index
    least: Reals


def only_waiting(
    chains: HostChains, waits: Waits, by_name: Flags
) -> tuple[HostChains, Waits, Flags]:
    """Without the ends of quick calls that wait for nothing, which nothing depends on."""
    waiting = by_name.copy()
    waiting[waits.node] = True
    waiting[~np.isnan(waits.least)] = True
    needless = (chains.kind == RETURN) & ~waiting & (chains.work < LONGEST_LATENCY_NS)
    found, place = without(chains, needless)
    last = np.zeros(found.time.size, dtype=np.intp)
    last[place] = np.arange(place.size)  # of the nodes that became one, the one that stayed
    least = waits.least[last]
    return found, replace(waits, node=place[waits.node], least=least), waiting[last]


@dataclass(frozen=True)
class _Calls:
    """Calls with both nodes: begin and end instants, chain nodes, name and operator codes."""

    node: Index
    begin: Reals
    end: Reals
    key: Index  # name and operator
    name: Index
    step: Index
    text: pl.Series
    own: Index  # work that it launched, -1 for none (the last, where several)


def waits_of(host: Host, chains: HostChains, work: Work, steps: int) -> Waits:
    """What every waiting call waits for; learned on the other parity of steps."""
    calls = _calls(host, chains, work)
    least = np.full(chains.time.size, np.nan)
    if calls.node.size == 0 or work.start.size == 0:
        none = np.zeros(0, dtype=np.intp)
        return Waits(none, none, np.zeros(0), none, least)
    by_name = names.matching(calls.text, waits_by_name).to_numpy()
    whole = names.matching(calls.text, WHOLE_DEVICE.search).to_numpy() & by_name
    parity = np.maximum(calls.step, 0) % 2
    found: list[tuple[Index, Index, Reals, int]] = []
    for use in (0, 1):
        learn = (parity != use) if steps > 1 else np.ones(parity.size, dtype=bool)
        mine = parity == use
        found += _synchronisations(calls, work, by_name & ~whole, learn, mine, least)
        found += _everything(calls, work, whole, learn, mine, least)
        found += _copies(calls, work, learn, mine, least)
        found += _full_queue(calls, work, ~by_name, learn, mine, least)
    return Waits(
        np.concatenate([f[0] for f in found] or [np.zeros(0, dtype=np.intp)]),
        np.concatenate([f[1] for f in found] or [np.zeros(0, dtype=np.intp)]),
        np.concatenate([f[2] for f in found] or [np.zeros(0)]),
        np.concatenate([np.full(f[0].size, f[3]) for f in found] or [np.zeros(0, dtype=np.intp)]),
        least,
    )


def _calls(host: Host, chains: HostChains, work: Work) -> _Calls:
    node = np.flatnonzero(chains.kind == RETURN)
    span = chains.span[node]
    begin = chains.node_of(span, CALL)
    nest = host.nest
    text = nest.spans["name"].to_physical().fill_null(0)
    operator = host.operator[span]
    name = text.gather(span).to_numpy().astype(np.int64)
    inside = text.gather(np.maximum(operator, 0)).to_numpy().astype(np.int64)
    inside = np.where(operator >= 0, inside, -1)
    key = code(name, inside)
    launched = nest.index_of(work.launch)
    launched[~work.linked] = -1
    last = np.full(nest.start.size + 1, -1, dtype=np.intp)
    last[launched] = np.arange(work.start.size)
    own = np.where(span >= 0, last[span], -1)
    step = np.searchsorted(_step_starts(chains), chains.time[begin], side="right") - 1
    return _Calls(
        node, chains.time[begin].astype(float), chains.time[node].astype(float), key,
        code(name), step,
        nest.spans["name"].gather(span), own,
    )  # fmt: skip


def _share(calls: _Calls, flag: Flags, use: Flags) -> Reals:
    """``share`` per name and operator, per name alone where that teaches nothing."""
    fine = share(calls.key, flag, use)
    return np.where(np.isnan(fine), share(calls.name, flag, use), fine)


def _typical(calls: _Calls, value: Reals, use: Flags) -> Reals:
    """``typical`` likewise."""
    fine = typical(calls.key, value, use)
    return np.where(np.isnan(fine), typical(calls.name, value, use), fine)


def _step_starts(chains: HostChains) -> Index:
    return np.sort(chains.time[chains.kind == MARK])


def _synchronisations(
    calls: _Calls, work: Work, chosen: Flags, learn: Flags, use: Flags, least: Reals
) -> list[tuple[Index, Index, Reals, int]]:
    """Each class of calls waits for the stream that explains its long calls best."""
    if not chosen.any():
        return []
    took = calls.end - calls.begin
    lanes, size = np.unique(work.lane, return_counts=True)
    best = np.full(calls.node.size, -1, dtype=np.intp)
    score = np.full(calls.node.size, -1.0)
    begin = calls.begin.astype(np.int64)
    for lane in lanes[np.argsort(-size, kind="stable")][:MOST_LANES].tolist():
        on = work.last_before(lane, begin)
        late = calls.end - work.end[np.maximum(on, 0)]
        some = on >= 0
        holds = _share(calls, late >= -SLACK_NS, learn & chosen & some)
        tight = _share(calls, late <= TOUCH_NS, learn & chosen & some & (took > LONG_NS))
        beside = _share(calls, _own_lane(calls, work, lane), learn & chosen)
        merit = np.nan_to_num(tight) + 0.5 * np.nan_to_num(beside)
        better = chosen & some & (holds >= SURE) & (merit > score)
        best, score = np.where(better, on, best), np.where(better, merit, score)
    return _edges(calls, work, best, chosen, learn, use, least, 0)


def _own_lane(calls: _Calls, work: Work, lane: int) -> Flags:
    """Whether the call just before on the same thread launched work on this lane."""
    order = np.argsort(calls.node, kind="stable")
    own = calls.own[order]
    before = np.concatenate([[-1], own[:-1]])
    near = np.diff(calls.node[order], prepend=-9) <= 2
    found = np.zeros(own.size, dtype=bool)
    found[order] = near & (before >= 0) & (work.lane[np.maximum(before, 0)] == lane)
    return found


def _everything(
    calls: _Calls, work: Work, chosen: Flags, learn: Flags, use: Flags, least: Reals
) -> list[tuple[Index, Index, Reals, int]]:
    """A wait for the whole device: one edge per stream, kept where it holds for the class."""
    found = []
    for lane in np.unique(work.lane)[:MOST_LANES].tolist() if chosen.any() else ():
        on = work.last_before(lane, calls.begin.astype(np.int64))
        late = calls.end - work.end[np.maximum(on, 0)]
        holds = _share(calls, late >= -SLACK_NS, learn & chosen & (on >= 0)) >= SURE
        on = np.where(holds, on, -1)
        found += _edges(calls, work, on, chosen, learn, use, least, 0)
    return found


def _copies(
    calls: _Calls, work: Work, learn: Flags, use: Flags, least: Reals
) -> list[tuple[Index, Index, Reals, int]]:
    """A copy of pageable memory: back to the host always, to the device where it is large."""
    own = np.maximum(calls.own, 0)
    large = work.large[own]
    outbound = names.matching(work.text, _OUTBOUND.search).to_numpy()[own]
    inbound = names.matching(work.text, _INBOUND.search).to_numpy()[own]
    may = (calls.own >= 0) & (outbound | (inbound & large))
    key = code(calls.key, outbound, large)
    late = calls.end - work.end[own]
    fine = share(key, late >= -CLEAR_NS, learn & may)
    loose = share(code(outbound, large), late >= -CLEAR_NS, learn & may)
    blocks = np.where(np.isnan(fine), loose, fine) >= SURE
    on = np.where(may & blocks, calls.own, -1)
    return _edges(calls, work, on, may, learn, use, least, 1)


def _edges(
    calls: _Calls, work: Work, on: Index, chosen: Flags, learn: Flags, use: Flags, least: Reals,
    kind: int,
) -> list[tuple[Index, Index, Reals, int]]:  # fmt: skip
    """Edges of the calls in ``use``; lag and least length as learned from the class."""
    some = chosen & (on >= 0)
    late = calls.end - work.end[np.maximum(on, 0)]
    took = calls.end - calls.begin
    waited = some & learn & (took > late) & (late <= 4 * TOUCH_NS)
    idle = some & learn & (took <= late + 1)
    lag = _typical(calls, late, waited)
    lag = np.where(np.isnan(lag), QUICK_NS, np.maximum(lag, -SLACK_NS))
    quick = _typical(calls, took, idle)
    quick = np.where(np.isnan(quick), np.minimum(took, QUICK_NS), quick)
    mine = np.flatnonzero(some & use)
    node = calls.node[mine]
    least[node] = np.fmin(quick[mine], np.nan_to_num(least[node], nan=np.inf))
    return [(node, on[mine], lag[mine], kind)]


def _full_queue(
    calls: _Calls, work: Work, chosen: Flags, learn: Flags, use: Flags, least: Reals
) -> list[tuple[Index, Index, Reals, int]]:
    """A long launch call while much is pending waits until no more than usual is."""
    took = calls.end - calls.begin
    order = np.argsort(work.handed, kind="stable")
    handed = np.searchsorted(work.handed[order], calls.begin, side="right")
    ended = np.sort(work.end)
    pending = handed - np.searchsorted(ended, calls.end, side="right")
    blocked = chosen & (calls.own >= 0) & (took > LONG_NS) & (pending >= LEAST_PENDING)
    one = np.zeros(took.size, dtype=np.intp)
    room = typical(one, pending.astype(float), blocked & learn)
    often = total(one, blocked & learn)
    steady = np.abs(pending - room) <= 0.1 * room
    if not np.any(often >= 10) or share(one, steady, blocked & learn)[0] < 0.8:
        return []
    at = handed - np.nan_to_num(room).astype(np.intp) - 1
    late = calls.end - work.end[order[np.maximum(at, 0)]]
    if share(one, np.abs(late) <= ROOM_NS, blocked & learn & steady)[0] < 0.8:
        return []
    mine = np.flatnonzero(blocked & use & steady & (at >= 0))
    quick = _typical(calls, took, chosen & ~blocked & learn)
    least[calls.node[mine]] = np.where(np.isnan(quick), QUICK_NS, quick)[mine]
    return [(calls.node[mine], order[at[mine]], np.zeros(mine.size), 2)]
