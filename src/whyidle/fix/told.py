"""What was done to a file, and what is said of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Told:
    """One thing to say of a place: which change, the line of the file (from 1), and what."""

    change: str
    line: int
    what: str


@dataclass(frozen=True)
class Fixed:
    """A file before and after, as bytes, and what was done and left alone in it."""

    before: bytes
    after: bytes
    done: list[Told]
    left: list[Told]
