"""Device work of two runs, matched by call path: the same path and name, else the same path."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from whyidle import noise
from whyidle.comparison import How, KernelLine, Kernels, Unit, Verdict
from whyidle.diagnosis import Diagnosis, KernelCost
from whyidle.diagnosis import Kernels as Recorded

MOST_LINES = 100
WORTH = 0.002
"""Share of all device work below which a line on both sides is not listed."""

Key = tuple[tuple[str, ...], str, str]


def kernel_lines(before: Diagnosis, after: Diagnosis, unit: Unit) -> Kernels | None:
    """The device work of both sides; None where a side kept none or has other units."""
    old, new = before.kernels, after.kernels
    if old is None or new is None or (unit == "step") != (old.steps is not None):
        return None
    if (old.steps is None) != (new.steps is None):
        return None
    sides = (_scaled(old, before, unit), _scaled(new, after, unit))
    pairs, matched = _paired(*sides)
    worth = [p for p in pairs if max(_cost(p[0]), _cost(p[1])) >= WORTH * _total(sides)]
    left = _unlisted(old, before, unit), _unlisted(new, after, unit)
    lines = _judged(worth, left, (old.steps or 0, new.steps or 0))
    sure = [line for line in lines if line.verdict != "within noise"]
    ranked = sorted(lines, key=lambda line: (line.verdict != "more than noise", -abs(line.change)))
    return Kernels(rows=ranked[:MOST_LINES], matched=matched, same=len(lines) - len(sure))


def _scaled(told: Recorded, diagnosis: Diagnosis, unit: Unit) -> list[KernelCost]:
    """The rows in the unit of the comparison: seconds per step, or shares of a device's wall."""
    each = _each(diagnosis, unit)
    return [msgspec.structs.replace(row, seconds=row.seconds * each) for row in told.rows]


def _each(diagnosis: Diagnosis, unit: Unit) -> float:
    wall = diagnosis.wall_s / max(1, len({(d.rank, d.device) for d in diagnosis.devices}))
    return 1.0 if unit == "step" else 1 / wall if wall > 0 else 0.0


def _unlisted(told: Recorded, diagnosis: Diagnosis, unit: Unit) -> float:
    return told.largest_left_s * _each(diagnosis, unit)


def _total(sides: tuple[list[KernelCost], list[KernelCost]]) -> float:
    return max(sum(row.seconds for row in side) for side in sides)


def _cost(row: KernelCost | None) -> float:
    return row.seconds if row is not None else 0.0


Pair = tuple[KernelCost | None, KernelCost | None]


def _paired(old: list[KernelCost], new: list[KernelCost]) -> tuple[list[Pair], float]:
    """Rows that belong together, and the share of time whose path and name are on both sides."""
    mine, other = _by_key(old), _by_key(new)
    pairs: list[Pair] = [(row, other[key]) for key, row in mine.items() if key in other]
    alike = sum(_cost(a) + _cost(b) for a, b in pairs)
    total = sum(row.seconds for row in (*old, *new))
    lone_old = [row for key, row in mine.items() if key not in other]
    lone_new = [row for key, row in other.items() if key not in mine]
    places_old, places_new = _by_place(lone_old), _by_place(lone_new)
    for place in dict.fromkeys([*places_old, *places_new]):
        left, right = places_old.get(place, []), places_new.get(place, [])
        together = min(len(left), len(right)) if place[0] else 0
        pairs += zip(left[:together], right[:together], strict=True)
        pairs += [(row, None) for row in left[together:]]
        pairs += [(None, row) for row in right[together:]]
    return pairs, min(1.0, alike / total) if total > 0 else 1.0


def _by_key(rows: Iterable[KernelCost]) -> dict[Key, KernelCost]:
    return {(tuple(row.path), row.name, row.state): row for row in rows}


def _by_place(rows: Iterable[KernelCost]) -> dict[tuple[tuple[str, ...], str], list[KernelCost]]:
    found: dict[tuple[tuple[str, ...], str], list[KernelCost]] = {}
    for row in rows:
        found.setdefault((tuple(row.path), row.state), []).append(row)
    return found


def _judged(
    pairs: list[Pair], left: tuple[float, float], steps: tuple[int, int]
) -> list[KernelLine]:
    """The lines with their verdicts; a row that the other side may only not list is left open."""
    samples = [(_samples(a, b, steps[0]), _samples(b, a, steps[1])) for a, b in pairs]
    verdicts = noise.verdicts(samples)
    found = []
    for (a, b), verdict in zip(pairs, verdicts, strict=True):
        hidden = (a is None and left[0] >= 0.5 * _cost(b)) or (
            b is None and left[1] >= 0.5 * _cost(a)
        )
        alike = _cost(a) == _cost(b)
        found.append(_line(a, b, "within noise" if alike else "cannot tell" if hidden else verdict))
    return found


def _samples(row: KernelCost | None, other: KernelCost | None, steps: int) -> list[float]:
    if row is not None:
        return row.per_step_s
    return [0.0] * min(steps, max(len(other.per_step_s) if other else 0, 4)) if steps else []


def _line(a: KernelCost | None, b: KernelCost | None, verdict: Verdict) -> KernelLine:
    some = a if a is not None else b
    assert some is not None
    old, new = _cost(a), _cost(b)
    return KernelLine(
        path=some.path,
        state=some.state,
        before_name=a.name if a is not None else None,
        after_name=b.name if b is not None else None,
        before=old,
        after=new,
        change=new - old,
        before_calls=a.calls if a is not None else 0.0,
        after_calls=b.calls if b is not None else 0.0,
        how=_how(old, new),
        replaced=a is not None and b is not None and a.name != b.name,
        verdict=verdict,
    )


def _how(before: float, after: float) -> How:
    if before == after:
        return "same"
    if before == 0 or after == 0:
        return "appeared" if before == 0 else "vanished"
    return "grew" if after > before else "shrank"
