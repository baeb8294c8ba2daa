"""Words for what flight recorders show: ranks, operations, and the line that called them."""

from __future__ import annotations

from collections.abc import Sequence

from whyidle.diagnosis import EvidenceRow, Place
from whyidle.model import Evidence
from whyidle.views.flights import Flights, Instance
from whyidle.views.stacks import user_line

MOST_PLACES = 16


def ranks_text(ranks: Sequence[int]) -> str:
    """The ranks as "rank 3" or "ranks 0-3 and 8"."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    words = [
        text
        for low, high in runs
        for text in (
            [f"{low}-{high}"] if high > low + 1 else [str(r) for r in range(low, high + 1)]
        )
    ]
    listed = words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]
    return f"rank{'s' if len(ranks) > 1 else ''} {listed}"


def operation_text(found: Flights, instance: Instance, row: int) -> str:
    """The operation as a sentence names it."""
    at = found.operations.row(row, named=True)
    group = found.groups[instance.key].told()
    if instance.pair:
        sender, receiver = instance.pair
        return f"the transfer from rank {sender} to rank {receiver} in {group}"
    return f"{at['name']} number {instance.sequence} of {group}"


def places(found: Flights, ranks: Sequence[int], row: int) -> list[Place]:
    """One place per rank, with the operation and the line that called it on a rank that did."""
    at = found.operations.row(row, named=True)
    file, line = user_line(at["stack"])
    return [Place(file=file, line=line, op=at["name"], rank=rank) for rank in ranks[:MOST_PLACES]]


def evidence_row(evidence: Evidence, found: Flights, row: int) -> EvidenceRow:
    """The entry of the dump that shows an operation."""
    at = found.operations.row(row, named=True)
    said = f"rank {at['rank']}: {at['name']} number {at['sequence']}, {at['shapes']}, {at['state']}"
    return EvidenceRow(source=_path(evidence, at["source"]), row=at["event"], what=said)


def last_of(evidence: Evidence, found: Flights, rank: int, instance: Instance) -> EvidenceRow:
    """How far a rank's own dump says it came in the group of an operation."""
    if instance.pair:
        entered = found.entered_p2p.get((instance.key, rank))
        kind = "transfer"
    else:
        entered = found.entered.get((instance.key, rank))
        kind = "collective"
    sources = {r: i for i, s in enumerate(evidence.sources) if (r := s.rank) is not None}
    unfinished = len(found.pending.get(rank, ()))
    said = (
        f"rank {rank}: last {kind} entered in {found.groups[instance.key].told()} is "
        f"{'not known' if entered is None else f'number {entered}'}; operations entered and not "
        f"done, over all groups: {unfinished}"
    )
    return EvidenceRow(source=_path(evidence, sources.get(rank, -1)), row=None, what=said)


def _path(evidence: Evidence, source: int) -> str:
    if not 0 <= source < len(evidence.sources):
        return ""
    return evidence.sources[source].path.encode("utf-8", "replace").decode()
