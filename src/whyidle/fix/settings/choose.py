"""Which known rows apply to settings that were read, whatever they were read from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from whyidle.fix import said as bounds
from whyidle.fix.said import Said
from whyidle.fix.settings.table import ROWS, WORKERS, Framework, Row, Value, same

Get = Callable[[str], tuple[bool, Value]]
"""Whether a key (a path with points) is set, and its value."""


@dataclass(frozen=True)
class Chosen:
    """A row that applies, and what to write; or ``left``, why it does not although it is bad."""

    row: Row
    old: Value
    new: Value
    left: str | None = None


def choose(
    rows: Sequence[Row],
    framework: Framework,
    get: Get,
    said: Said,
    unsafe: bool = False,
    absent: bool = False,
) -> Iterator[Chosen]:
    """What to change, in the order of the table; with ``absent`` also keys that are not set.

    Rows that are not safe say so and are left, but with ``unsafe``.
    """
    made: dict[str, Value] = {}
    for row in rows:
        if row.framework != framework or row.key in made:
            continue
        is_set, old = get(row.key)
        unset = not is_set and absent and row.default and bool(said.causes & set(row.CAUSES))
        if not unset and not (is_set and row.bad(old)):
            continue
        new = _workers(said) if row.new == WORKERS else row.new
        reason = _against(row, get, made)
        if reason is None and not (row.SAFE or unsafe):
            reason = f"needs --unsafe: {row.WHY}"
        if reason is None:
            made[row.key] = new
        yield Chosen(row, old, new, reason)


def _workers(said: Said) -> int:
    most = bounds.bounded_workers()
    return min(said.workers or most, most)


def _against(row: Row, get: Get, made: Mapping[str, Value]) -> str | None:
    for key, value in row.unless:
        is_set, other = get(key)
        if is_set and same(other, value):
            return f"{key} is {shown(value)}"
    if row.beside is not None:
        _, count = get(row.beside)
        count = made.get(row.beside, count)
        if type(count) is not int or count < 1:
            return f"it needs {row.beside} above 0"
    return None


def shown(value: Value) -> str:
    """A value as a reader of any of the formats knows it."""
    if value is None:
        return "unset"
    return str(value).lower() if isinstance(value, bool) else str(value)


def known(framework: Framework) -> frozenset[str]:
    """Keys of the table, those of conditions included."""
    rows = [row for row in ROWS if row.framework == framework]
    return frozenset(row.key for row in rows) | {key for row in rows for key, _ in row.unless}
