"""Ranks of one machine that wait in a collective while another one is elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from whyidle.observe.attach_doing import WORDS, Doing
from whyidle.observe.attach_job import Trainer
from whyidle.observe.attach_shares import Piece

MOSTLY = 0.5
"""A rank is waited for when it was elsewhere for so much of another's time in collectives."""

COLLECTIVE, LATE = "collective", "late"


def with_late_ranks(trainers: Sequence[Trainer]) -> list[Trainer]:
    """The same with the waits for a late rank as an activity of its own, at that one's line."""
    return [_told(trainer, [t for t in trainers if t is not trainer]) for trainer in trainers]


def _told(trainer: Trainer, others: Sequence[Trainer]) -> Trainer:
    waits = [piece for piece in trainer.pieces if piece.doing.activity == COLLECTIVE]
    whole = sum(piece.end_ns - piece.start_ns for piece in waits)
    if not whole:
        return trainer
    cuts = [(other, _cut(waits, other)) for other in others]
    late = [(sum(_length(p) for p in found if p.doing.activity == LATE), other.pid, found)
            for other, found in cuts]  # fmt: skip
    most, _, found = max(late, key=lambda row: row[:2], default=(0, 0, []))
    if most < MOSTLY * whole:
        return trainer
    rest = [piece for piece in trainer.pieces if piece.doing.activity != COLLECTIVE]
    return replace(trainer, pieces=sorted([*rest, *found], key=lambda piece: piece.start_ns))


def _length(piece: Piece) -> int:
    return piece.end_ns - piece.start_ns


def _cut(waits: Sequence[Piece], other: Trainer) -> list[Piece]:
    """The waits, cut where the other rank enters or leaves collectives; both are in order."""
    who = f"rank {other.rank}" if other.rank is not None else f"process {other.pid}"
    found: list[Piece] = []
    at = 0
    for wait in waits:
        begin = wait.start_ns
        while at < len(other.pieces) and other.pieces[at].end_ns <= begin:
            at += 1
        for piece in other.pieces[at:]:
            if piece.start_ns >= wait.end_ns:
                break
            low, high = max(begin, piece.start_ns), min(wait.end_ns, piece.end_ns)
            if piece.doing.activity == COLLECTIVE or high <= low:
                continue
            if low > begin:
                found.append(Piece(begin, low, wait.doing))
            found.append(Piece(low, high, _late(piece.doing, who)))
            begin = high
        if begin < wait.end_ns:
            found.append(Piece(begin, wait.end_ns, wait.doing))
    return found


def _late(doing: Doing, who: str) -> Doing:
    return Doing(LATE, doing.file, doing.line, f"{who} is {WORDS.get(doing.activity, 'elsewhere')}")
