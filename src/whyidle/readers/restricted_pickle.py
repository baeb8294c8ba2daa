"""Pickles of plain containers, read without running anything they ask for.

A pickle is a program. The machine behind this (``pickle_machine``) knows only the instructions
that build None, booleans, numbers, text, bytes, lists, tuples and dictionaries, of protocols 0 to
5. Whatever else a file asks for is refused by name before anything happens.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from whyidle.errors import UnreadableEvidence
from whyidle.readers.collector import collector_paused
from whyidle.readers.pickle_machine import PLAIN, Absorb, Limits, Machine, Refused
from whyidle.readers.source_bytes import SourceBytes

__all__ = [
    "PLAIN", "Limits", "Refused", "loads", "looks_pickled", "plain_of", "read_whole", "told",
]  # fmt: skip

PROTOCOLS = tuple(bytes([0x80, number]) for number in (2, 3, 4, 5))
_OLD = (b"(d", b"(l", b"}", b"]")


def looks_pickled(head: bytes) -> bool:
    """Whether the first bytes may be a pickle of a list or a dictionary."""
    return head.startswith(PROTOCOLS) or head.startswith(_OLD)


def plain_of(
    path: Path, data: bytes, what: str, limits: Limits = PLAIN, absorb: Absorb | None = None
) -> Any:
    """The plain data in the bytes of a file; ``what`` names it in the sentence that refuses it."""
    try:
        return loads(data, limits, absorb)
    except Refused as error:
        raise UnreadableEvidence(
            str(path),
            f"the pickle {error}, which no {what} does",
            "Nothing in it was run. Write the file again with the recorder's own function.",
        ) from None


def read_whole(
    path: Path, most: int, progress: Callable[[int, int], None] | None = None
) -> tuple[bytes, str]:
    """All bytes of a file, decompressed, and its digest; a sentence beyond ``most`` bytes."""
    kept = bytearray()
    buffer = memoryview(bytearray(1 << 20))
    with SourceBytes(path) as source:
        while count := source.read_into(buffer):
            kept += buffer[:count]
            if len(kept) > most:
                raise UnreadableEvidence(
                    str(path),
                    f"it holds more than {most >> 20} MiB",
                    "Record less: fewer entries, or without stacks.",
                )
            if progress is not None:
                progress(source.at, source.size)
        return bytes(kept), source.digest()


def loads(data: bytes, limits: Limits = PLAIN, absorb: Absorb | None = None) -> Any:
    """The plain data in a pickle. ``absorb`` sees each dictionary that was filled in one go.

    Raises Refused. Dictionaries that ``absorb`` empties stay empty in the result.
    """
    try:
        with collector_paused():
            return Machine(data, limits, absorb).run()
    except (IndexError, struct.error):
        raise Refused("ends early or jumps out of its own data") from None
    except (ValueError, OverflowError, UnicodeError):
        raise Refused("holds a number or text that cannot be read") from None
    except TypeError:
        raise Refused("puts a value where none of its kind fits") from None
    except MemoryError:
        raise Refused("asks for more memory than there is") from None


def told(value: Any, most: int, depth: int = 8) -> str:
    """A value of a pickle as text of at most ``most`` characters.

    A list in a pickle may hold itself, or one list so often that its text would never end.
    """
    if isinstance(value, dict):
        value = list(islice(value.items(), most))
    if isinstance(value, list | tuple):
        left, parts = most if depth else 0, []
        for item in value:
            if left <= 0:
                parts.append("...")
                break
            parts.append(told(item, left, depth - 1))
            left -= len(parts[-1]) + 2
        inside = ", ".join(parts)
        return (f"[{inside}]" if isinstance(value, list) else f"({inside})")[:most]
    return str(value[:most] if isinstance(value, str | bytes) else value)[:most]
