"""Who keeps the others waiting, from what each rank had entered when its recorder was dumped.

Each rank waits in the *oldest* operation that it entered and did not finish: later ones wait for
it, on the device or on the host. Why that one is not done:

- it is done on another rank, and only ends anywhere once all have entered: then nothing is
  missing but this rank's own device (a hung kernel, a device error);
- other ranks have not entered it: this rank waits for them;
- all have entered, and began on some devices only: it waits for the devices that did not begin;
- all have entered, and some are still in something older: it waits for those;
- ranks left no dump: it may wait for them.

Following this from rank to rank ends at ranks that wait for nobody and are waited for: the ones at
fault. A ring of ranks that wait for each other has no such end; then all of it is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

import polars as pl

from whyidle.views.flights import Flights, Instance

Kind = Literal["absent", "device", "not_begun", "no_dump", "ring", "stuck"]


@dataclass
class Wait:
    """Why the oldest unfinished operation of one rank is not done."""

    instance: Instance
    row: int
    own: bool = False
    absent: list[int] = field(default_factory=list)
    not_begun: list[int] = field(default_factory=list)
    behind: list[int] = field(default_factory=list)  # have entered, and are in something older
    no_dump: list[int] = field(default_factory=list)

    @property
    def others(self) -> list[int]:
        """Ranks with a dump that it waits for."""
        return [*self.absent, *self.not_begun, *self.behind]


@dataclass(frozen=True)
class Fault:
    """Ranks that keep others waiting, and the operation in which those wait."""

    kind: Kind
    ranks: tuple[int, ...]
    instance: Instance
    row: int  # of a waiting rank, in Flights.operations
    waiting: tuple[int, ...]  # ranks that entered it and are not done
    unseen: tuple[int, ...] = ()  # ranks of it without a dump, which may be at fault too


def faults(found: Flights) -> list[Fault]:
    """The ends of all waiting, surest first."""
    waits = _waits(found)
    ends = _ends(found, waits)
    result = _grouped(found, waits, ends)
    result += _idle(found, ends)
    result += _own(waits)
    blamed = {rank for fault in result for rank in fault.ranks}
    reaching = _reaching(waits, blamed)
    result += _unseen(found, waits, reaching, bool(blamed))
    done = {rank for fault in result for rank in fault.ranks}
    reached = _reaching(waits, done)
    left = {rank for rank in waits if rank not in reached and not waits[rank].no_dump}
    return result + _rings(waits, left)


def _waits(found: Flights) -> dict[int, Wait]:
    cache: dict[Instance, Wait] = {}
    waits: dict[int, Wait] = {}
    oldest = {rank: pending[0][0] for rank, pending in found.pending.items()}
    p2p = found.operations["p2p"]
    for rank, pending in found.pending.items():
        instance, row = pending[0]
        overtaken = _overtaken(found, pending)
        if overtaken is not None:
            waits[rank] = Wait(*overtaken, own=True)
        elif p2p[row]:
            waits[rank] = _pair_wait(found, rank, instance, row, oldest)
        else:
            if instance not in cache:
                cache[instance] = _collective_wait(found, instance, row, oldest)
            shared = cache[instance]
            waits[rank] = Wait(
                instance, row, shared.own, *(
                    [other for other in others if other != rank]
                    for others in (shared.absent, shared.not_begun, shared.behind, shared.no_dump)
                )
            )  # fmt: skip
    return waits


def _overtaken(found: Flights, pending: list[tuple[Instance, int]]) -> tuple[Instance, int] | None:
    """The oldest of a rank's unfinished collectives that another rank has finished."""
    all_enter = found.operations["all_enter"]
    for instance, row in pending:
        done = 0 <= instance.sequence <= found.done.get(instance.key, 0)
        if done and instance.pair is None and all_enter[row]:
            return instance, row
    return None


def _collective_wait(
    found: Flights, instance: Instance, row: int, oldest: dict[int, Instance]
) -> Wait:
    """Why a collective is not done where it is pending; the same for every rank in it."""
    wait = Wait(instance, row)
    states = _states(found, instance)
    dumped = set(found.dumped)
    members = found.members(instance)
    entered = {r for r in members if found.entered.get((instance.key, r), 0) >= instance.sequence}
    wait.no_dump = [r for r in members if r not in dumped]
    wait.absent = [r for r in members if r in dumped and r not in entered]
    if instance.sequence <= found.done.get(instance.key, 0) and not wait.absent:
        wait.own, wait.no_dump = True, []
        return wait
    if wait.absent or wait.no_dump:
        return wait
    here = [r for r in members if states.get(r) in ("scheduled", "started")]
    begun = [r for r in here if states[r] == "started"]
    late = [r for r in here if states[r] == "scheduled"]
    wait.behind = [r for r in (late if begun else here) if oldest.get(r) != instance]
    if begun:
        wait.not_begun = [r for r in late if oldest.get(r) == instance]
    return wait


def _states(found: Flights, instance: Instance) -> dict[int, str]:
    rows = found.operations.filter(
        (pl.col("key") == instance.key) & (pl.col("sequence") == instance.sequence) & ~pl.col("p2p")
    )
    states: dict[int, str] = {}
    for rank, state in rows.select("rank", "state").iter_rows():
        if states.get(rank) in (None, "completed"):
            states[rank] = state or "completed"
    return states


def _pair_wait(
    found: Flights, rank: int, instance: Instance, row: int, oldest: dict[int, Instance]
) -> Wait:
    """Why a send or receive is not done."""
    wait = Wait(instance, row)
    if instance.pair is None:
        others = [r for r in found.members(instance) if r != rank]
        if len(others) != 1:
            return wait
        (other,) = others
    else:
        other = instance.pair[1] if instance.pair[0] == rank else instance.pair[0]
    if other not in found.dumped:
        wait.no_dump = [other]
        return wait
    theirs = [
        entry for entry in found.pending.get(other, [])
        if entry[0].key == instance.key and entry[0].pair == instance.pair
    ]  # fmt: skip
    if not theirs:
        two = len(found.groups[instance.key].ranks) == 2
        reached = found.entered_p2p.get((instance.key, other), 0) >= instance.sequence >= 0
        if two and reached:
            wait.own = True
        else:
            wait.absent = [other]
    elif oldest[other] != theirs[0][0]:
        wait.behind = [other]
    else:
        states = found.operations["state"]
        if states[row] == "started" and states[theirs[0][1]] == "scheduled":
            wait.not_begun = [other]
    return wait


def _ends(found: Flights, waits: dict[int, Wait]) -> dict[int, list[int]]:
    """Ranks that are waited for and wait for nobody -> ranks whose oldest operation says so."""
    ends: dict[int, list[int]] = {}
    for rank, wait in waits.items():
        for other in wait.absent:
            if other not in waits:
                ends.setdefault(other, []).append(rank)
        for other in wait.not_begun:
            ends.setdefault(other, []).append(rank)
    return ends


def _grouped(found: Flights, waits: dict[int, Wait], ends: dict[int, list[int]]) -> list[Fault]:
    """One fault per operation in which ranks at fault keep others waiting, earliest first."""
    created = found.operations["created_ns"]
    held_in = Counter(wait.instance for wait in waits.values())
    first: dict[Instance, list[int]] = {}
    for rank, waiting in sorted(ends.items()):
        at = min(
            waiting, key=lambda r: (-held_in[waits[r].instance], created[waits[r].row] or 0, r)
        )
        first.setdefault(waits[at].instance, []).append(rank)
    result: list[Fault] = []
    for instance, ranks in first.items():
        held = sorted(r for r, wait in waits.items() if wait.instance == instance)
        held = [r for r in held if r not in ranks]
        wait = waits[held[0]]
        kind: Kind = "absent" if set(ranks) & set(wait.absent) else "not_begun"
        result.append(
            Fault(kind, tuple(sorted(ranks)), instance, wait.row, tuple(held), tuple(wait.no_dump))
        )
    return sorted(result, key=lambda fault: (created[fault.row] or 0, fault.ranks))


def _idle(found: Flights, known: Collection[int]) -> list[Fault]:
    """Ranks that have nothing unfinished and lack a collective that others entered.

    Nobody's oldest operation need be that one: those who wait there may first wait for ranks that
    left no dump. A rank with nothing unfinished waits for no other rank at all.
    """
    idle = set(found.dumped) - set(found.pending) - set(known)
    lacked: dict[int, tuple[Instance, int]] = {}
    waiting: dict[Instance, set[int]] = {}
    for rank, pending in found.pending.items():
        for instance, row in pending:
            if instance.pair is not None or instance.sequence < 0:
                continue
            for other in idle.intersection(found.members(instance)):
                if found.entered.get((instance.key, other), 0) < instance.sequence:
                    lacked.setdefault(other, (instance, row))
                    waiting.setdefault(instance, set()).add(rank)
    return _joined(
        [
            Fault("absent", (rank,), instance, row, tuple(sorted(waiting[instance])))
            for rank, (instance, row) in sorted(lacked.items())
        ]
    )


def _own(waits: dict[int, Wait]) -> list[Fault]:
    """Ranks whose own device does not finish what is done elsewhere."""
    result: list[Fault] = []
    for rank, wait in sorted(waits.items()):
        if not wait.own:
            continue
        others = [(r, w) for r, w in waits.items() if rank in w.absent]
        if others:
            at, theirs = min(others)
            held = tuple(sorted(r for r, w in others if w.instance == theirs.instance))
            result.append(
                Fault("device", (rank,), theirs.instance, theirs.row, held, tuple(theirs.no_dump))
            )
        else:
            result.append(Fault("device", (rank,), wait.instance, wait.row, ()))
    return _joined(result)


def _joined(given: list[Fault]) -> list[Fault]:
    """Faults in one operation as one."""
    by_instance: dict[Instance, Fault] = {}
    for fault in given:
        known = by_instance.get(fault.instance)
        if known is None:
            by_instance[fault.instance] = fault
        else:
            ranks = tuple(sorted({*known.ranks, *fault.ranks}))
            waiting = tuple(sorted({*known.waiting, *fault.waiting} - set(ranks)))
            by_instance[fault.instance] = Fault(
                known.kind, ranks, known.instance, known.row, waiting, known.unseen
            )
    return list(by_instance.values())


def _reaching(waits: dict[int, Wait], targets: set[int]) -> set[int]:
    """The targets, and every rank that waits for one of them, through others too."""
    callers: dict[int, list[int]] = {}
    for rank, wait in waits.items():
        for other in (*wait.others, *wait.no_dump):
            callers.setdefault(other, []).append(rank)
    reached, todo = set(targets), list(targets)
    while todo:
        for rank in callers.get(todo.pop(), []):
            if rank not in reached:
                reached.add(rank)
                todo.append(rank)
    return reached


def _unseen(found: Flights, waits: dict[int, Wait], reaching: set[int], sure: bool) -> list[Fault]:
    """Ranks without a dump at which waiting ends and that nobody known to be at fault explains.

    A rank without a dump may itself be a victim. It is taken for one when it takes part in a
    pending collective of a rank that waits for somebody known to be at fault.
    """
    victims: set[int] = set()
    if sure:
        for rank in reaching & set(waits):
            for instance, _ in found.pending[rank]:
                if instance.pair is None and instance.sequence >= 0:
                    victims |= set(found.members(instance))
    result: list[Fault] = []
    for rank, wait in sorted(waits.items()):
        accused = {r for r in wait.no_dump if r not in victims}
        if not accused or wait.absent:
            continue
        waiting = {rank}
        shown = wait
        for other in [fault for fault in result if accused & set(fault.ranks)]:
            result.remove(other)
            accused |= set(other.ranks)
            if len(other.waiting) >= len(waiting):
                shown = waits[other.waiting[0]]
            waiting |= set(other.waiting)
        ranks = (tuple(sorted(accused)), tuple(sorted(waiting)))
        result.append(Fault("no_dump", ranks[0], shown.instance, shown.row, ranks[1]))
    return result


def _rings(waits: dict[int, Wait], left: set[int]) -> list[Fault]:
    """What remains: ranks that wait for each other, and operations that just do not end."""
    result: list[Fault] = []
    for rank in sorted(left):
        wait = waits[rank]
        if not wait.others:
            result.append(Fault("stuck", (), wait.instance, wait.row, (rank,)))
    ring = set(left) - _reaching(waits, {r for r in left if not waits[r].others})
    shrinking = True
    while shrinking:
        aimed = {other for rank in ring for other in waits[rank].others}
        smaller = ring & aimed
        shrinking = smaller != ring
        ring = smaller
    if ring:
        at = min(ring)
        missed = {other for rank in ring for other in waits[rank].absent} & ring
        named = tuple(sorted(missed or ring))
        waiting = tuple(sorted(ring - set(named))) or tuple(sorted(ring))
        result.append(Fault("ring", named, waits[at].instance, waits[at].row, waiting))
    return _joined(result)
