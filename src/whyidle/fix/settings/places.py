"""Values in a settings file and where their characters stand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from whyidle.errors import UsageError

if TYPE_CHECKING:
    from whyidle.fix.settings.table import Value

Path = tuple[str, ...]


@dataclass(frozen=True)
class Place:
    """A value: characters ``start`` to ``end`` (half open) of the text, on ``line`` from 1.

    ``fixed`` tells in a sentence why these characters must not change; None where they may.
    """

    value: Value
    start: int
    end: int
    line: int
    fixed: str | None = None


@dataclass(frozen=True)
class Settings:
    """All single values of a file by their paths, and the paths of all mappings in it."""

    values: Mapping[Path, Place]
    mappings: frozenset[Path]


MOST_VALUES = 20_000


def too_large(path: str) -> UsageError:
    """The sentence for a file that holds more than anyone's settings."""
    return UsageError(
        f"{path} holds more than {MOST_VALUES:,} values, so these are no settings of a person.\n"
        "Name the settings file of the training job."
    )
