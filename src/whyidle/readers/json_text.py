"""Finds its way in JSON text without building it, and says what is wrong with broken JSON."""

from __future__ import annotations

import re
from typing import NamedTuple

SPACE = b" \t\r\n"
BRACKET = re.compile(rb'[^"\[\]{}]*+(?:"(?:[^"\\]++|\\.)*+"[^"\[\]{}]*+)*+([\[\]{}])', re.S)
"""The next bracket outside strings, as group 1."""

STRING = re.compile(rb'"((?:[^"\\]++|\\.)*+)"', re.S)
SCALAR = re.compile(rb"[^\s,\]}]++(?=[\s,\]}])")
_NOT_NUMBERS = re.compile(
    rb'"(?:[^"\\]++|\\.)*+"|-?\b(?:NaN|nan|Infinity|infinity|Inf|inf)\b', re.S
)


class Span(NamedTuple):
    """Where the elements of an array end: after the last whole one, and at its closing bracket."""

    last: int | None
    closed: int | None


def scan_elements(buffer: bytearray, start: int, end: int) -> Span:
    """Follow brackets from ``start``, just inside an array: where its whole elements end.

    ``last`` is the position after the last object or list that ends before a comma.
    """
    depth, at, last = 0, start, None
    while (found := BRACKET.match(buffer, at, end)) is not None:
        at = found.end()
        if found.group(1) in b"[{":
            depth += 1
            continue
        depth -= 1
        if depth < 0:
            return Span(last, at - 1)
        if depth == 0:
            rest = bytes(buffer[at : min(at + 64, end)]).lstrip(SPACE)
            if rest.startswith(b","):
                last = at + buffer[at : at + 64].index(b",")
    return Span(last, None)


def null_for_no_number(text: bytes) -> tuple[bytes, int]:
    """``text`` with bare NaN and infinities replaced by null outside strings, and how many."""
    count = 0

    def replaced(match: re.Match[bytes]) -> bytes:
        nonlocal count
        if match.group().startswith(b'"'):
            return match.group()
        count += 1
        return b"null"

    return _NOT_NUMBERS.sub(replaced, text), count


def diagnose_json(error: Exception, text: bytes) -> tuple[int | None, str, str]:
    """Offset in ``text`` (None when unknown), what is wrong, and what to do about it."""
    again = "Record the trace again with a current PyTorch, or repair the file."
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as bad:
        return (
            bad.start,
            f"a byte (0x{text[bad.start]:02x}) that is not UTF-8",
            "Convert it if you know its encoding: iconv -f LATIN1 -t UTF-8 FILE > trace.json.",
        )
    if isinstance(error, RecursionError):
        return None, "values nested too deep", again
    found = re.search(r"\(byte (\d+)\)", str(error))
    at = int(found.group(1)) - 1 if found else None
    if at is not None and 0 <= at < len(text) and text[at] < 0x20:
        return (
            at,
            f"a control character (0x{text[at]:02x}) inside a string",
            "Remove control characters: tr -d '\\000-\\037' < FILE > trace.json.",
        )
    what = re.sub(r"^JSON is malformed: |\s*\(byte \d+\)$", "", str(error)).lower()
    return at, what, again
