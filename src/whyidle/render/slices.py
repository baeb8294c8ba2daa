"""The parts that a diagnosis cuts the wall time into, for bars and legends; they sum to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from whyidle.diagnosis import REASON_TITLES, Device, Diagnosis
from whyidle.render import colours
from whyidle.render.numerals import count
from whyidle.render.plain import clean

Part = Literal["useful", "cause", "other", "unexplained", "unrecorded"]

MARKS = "123456789"
"""Marks of causes, in the order of the findings."""


@dataclass(frozen=True)
class Slice:
    """One part: seconds and share (0..1) of wall, what to call it, and how to draw it.

    ``mark`` is one character that stands for the part in bars and legends; for a cause it is the
    number of its finding. ``reason`` is None where there is none.
    """

    part: Part
    mark: str
    label: str
    seconds: float
    share: float
    colour: str
    cause: str | None = None
    reason: int | None = None

    @property
    def reason_title(self) -> str:
        """The reason in words; empty where there is none."""
        return REASON_TITLES.get(self.reason or 0, "")


def slices(diagnosis: Diagnosis, *, causes: int, device: Device | None = None) -> list[Slice]:
    """The parts of all devices together, or of one; at most ``causes`` are named.

    Useful time, unexplained and unrecorded time are always there, even when they are 0.
    *unexplained* here is what remains of it beside *unrecorded*.
    """
    judged = diagnosis.devices if device is None else [device]
    wall = sum(d.wall_s for d in judged)
    by_cause = lost_by_cause(diagnosis, judged)
    named = sorted(_marks(diagnosis, list(by_cause))[:causes], key=lambda pair: pair[0])
    reasons = colours.reasons(diagnosis)
    shades = colours.shades(reasons)
    titles = {f.cause: clean(f.title) for f in diagnosis.findings}
    found = [_slice("useful", "=", "useful work", sum(d.useful_s for d in judged), wall)]
    for mark, cause in named:
        label = titles.get(cause) or title_of(cause)
        colour, seconds = shades.get(cause, colours.OTHER), by_cause.get(cause, 0.0)
        share = seconds / wall if wall > 0 else 0.0
        found.append(Slice("cause", mark, label, seconds, share, colour, cause, reasons.get(cause)))
    shown = {cause for _, cause in named}
    rest = {cause: s for cause, s in by_cause.items() if cause not in shown and s > 0}
    if rest:
        label = count(len(rest), "other cause")
        found.append(_slice("other", "+", label, sum(rest.values()), wall))
    return found + _tail(judged, wall)


def _tail(judged: Sequence[Device], wall: float) -> list[Slice]:
    unrecorded = sum(d.unrecorded_s for d in judged)
    rest = max(0.0, sum(d.unexplained_s for d in judged) - unrecorded)
    label = "otherwise unexplained" if unrecorded > 0 else "unexplained"
    return [
        _slice("unexplained", "?", label, rest, wall),
        _slice("unrecorded", ".", "unrecorded: likely work the recorder dropped", unrecorded, wall),
    ]


_COLOURS = {
    "useful": colours.USEFUL,
    "other": colours.OTHER,
    "unexplained": colours.UNEXPLAINED,
    "unrecorded": colours.UNRECORDED,
}


def _slice(part: Part, mark: str, label: str, seconds: float, wall: float) -> Slice:
    share = seconds / wall if wall > 0 else 0.0
    return Slice(part, mark, label, seconds, share, _COLOURS[part])


def lost_by_cause(diagnosis: Diagnosis, judged: Sequence[Device]) -> dict[str, float]:
    """Seconds lost per cause on the devices given, from the window's ledger; largest first."""
    keys = {(d.rank, d.device) for d in judged}
    found: dict[str, float] = {}
    for row in diagnosis.ledger:
        if (row.rank, row.device) in keys:
            found[row.cause] = found.get(row.cause, 0.0) + row.lost_s
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def finding_marks(diagnosis: Diagnosis) -> list[str]:
    """The mark of each finding, in their order: 1 to 9, then 10, 11, ..."""
    return [str(number) for number in range(1, len(diagnosis.findings) + 1)]


def _marks(diagnosis: Diagnosis, causes: list[str]) -> list[tuple[str, str]]:
    """(mark, cause) of the causes that a bar can mark: those of the first nine findings."""
    found = []
    for mark, finding in zip(MARKS, diagnosis.findings, strict=False):
        if finding.ledger == "window" and finding.cause in causes:
            found.append((mark, finding.cause))
    return found


def title_of(cause: str) -> str:
    """A readable name for a cause that no finding gives a title."""
    words = clean(cause.rpartition(".")[2]).replace("_", " ")
    return words[:1].upper() + words[1:]


def cells(parts: Sequence[Slice], width: int) -> list[int]:
    """How many of ``width`` equal cells each part fills; they sum to ``width``.

    Every part above 0 gets at least one cell as long as there are enough; what remains is shared
    out by largest remainder.
    """
    total = sum(part.share for part in parts)
    if total <= 0 or width <= 0:
        return [0] * len(parts)
    exact = [part.share / total * width for part in parts]
    least = [1 if part.share > 0 else 0 for part in parts]
    if sum(least) > width:
        least = [0] * len(parts)
    filled = [max(low, int(value)) for low, value in zip(least, exact, strict=True)]
    while sum(filled) > width:
        spare = [i for i in range(len(filled)) if filled[i] > least[i]]
        filled[max(spare, key=lambda i: filled[i] - exact[i])] -= 1
    order = sorted(range(len(exact)), key=lambda i: filled[i] - exact[i])
    for i in order[: width - sum(filled)]:
        filled[i] += 1
    return filled
