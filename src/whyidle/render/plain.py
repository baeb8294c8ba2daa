"""Text from the evidence made safe and short: one printable line, the middle given up first.

Control characters, direction marks and half surrogates would garble a terminal or a page.
"""

from __future__ import annotations

import re
import unicodedata


def clean(text: str) -> str:
    """One line of printable text: white space becomes a blank, what is unprintable shows as �."""
    if text.isprintable():
        return text.strip()
    return "".join(map(_printable, text)).strip()


def clean_block(text: str) -> str:
    """Like ``clean``, with line breaks and indents kept, for code and patches."""
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join("".join(map(_printable, line)).rstrip() for line in lines).strip("\n")


def _printable(letter: str) -> str:
    if letter in "\t\n\r\v\f\x85\u2028\u2029":
        return " "
    if unicodedata.category(letter) in ("Cc", "Cs") or letter in "\u061c\u200e\u200f":
        return "\ufffd"
    if "\u202a" <= letter <= "\u202e" or "\u2066" <= letter <= "\u2069":
        return "\ufffd"
    return letter


def reads_as_code(text: str) -> bool:
    """Whether text looks like code or a command to copy, not like a sentence."""
    if re.match(r"(whyidle|python3?|torchrun|pip|nsys) ", text):
        return True
    if text.endswith(".") or re.search(r"\b[A-Za-z]{2,},? [a-z]{2,},? [a-z]{2,}\b", text):
        return False
    return bool(re.search(r"[=(\[]|\s--?\w", text))


def shortened(text: str, width: int) -> str:
    """The first sentences of ``text`` that fit in ``width`` characters, or as many words."""
    if len(text) <= width:
        return text
    ends = [found.end() for found in re.finditer(r"[.!?](?= [A-Z])", text[: width - 1])]
    if ends and ends[-1] > 0.6 * width:
        return text[: ends[-1]]
    words = text[: width - 2].rpartition(" ")[0]
    return f"{words or text[: width - 2]} …"


SHORTEST = 12
"""Characters below which a name tells too little to be worth shortening to."""


def elide(text: str, width: int) -> str:
    """``text`` in at most ``width`` characters, the middle given up first."""
    if len(text) <= width:
        return text
    if width < 4:
        return text[:width]
    tail = (width - 1) // 3
    return text[: width - 1 - tail] + "…" + text[len(text) - tail :]


def fitted(name: str, width: int) -> str:
    """A place in at most ``width`` characters; leading folders go first, the line stays."""
    if len(name) <= width:
        return name
    file, joint, rest = name.partition(" in ")
    if not joint or "/" not in file:
        room = width - len(file + joint)
        return file + joint + elide(rest, room) if joint and room > 0 else elide(name, width)
    short = f"…/{file.rsplit('/', 1)[1]}"
    room = width - len(short) - len(joint)
    return short + joint + elide(rest, room) if room >= SHORTEST else elide(short, width)
