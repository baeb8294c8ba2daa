"""A JSON file, with where each value stands."""

from __future__ import annotations

import json
import re
from typing import Any

from whyidle.errors import UsageError
from whyidle.fix.settings.places import MOST_VALUES, Path, Place, Settings, too_large

TOKEN = re.compile(r'[\s,:]+|[{}\[\]]|"(?:[^"\\]|\\.)*"|[^\s,:{}\[\]"]+')


def read(path: str, text: str) -> Settings:
    """The settings of a JSON text; a sentence where it is none."""
    try:
        json.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        where = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise UsageError(f"{path}{where}: this is no JSON, so nothing was changed.") from error
    return _scanned(path, text)


def _scanned(path: str, text: str) -> Settings:
    """Walks over the tokens of a text that is JSON for sure, without recursion."""
    values: dict[Path, Place] = {}
    mappings: set[Path] = set()
    twice: set[Path] = set()
    stack: list[list[Any]] = []  # [kind of bracket, path, key or number of the next value]
    line, seen = 1, 0
    for token in TOKEN.finditer(text, 1 if text.startswith("\ufeff") else 0):
        line += text.count("\n", seen, token.start())
        seen, word = token.start(), token.group()
        if word[0] in " \t\r\n,:":
            continue
        if word in "}]":
            stack.pop()
            continue
        here = stack[-1] if stack else None
        if here is not None and here[0] == "{" and here[2] is None:
            here[2] = json.loads(word)
            continue
        at: Path = () if here is None else (*here[1], str(here[2]))
        if here is not None:
            here[2] = None if here[0] == "{" else here[2] + 1
        if word in "{[":
            stack.append([word, at, None if word == "{" else 0])
            mappings |= {at} if word == "{" else set()
        else:
            twice |= {at} if at in values else set()
            values[at] = Place(json.loads(word), token.start(), token.end(), line)
        if len(values) + len(mappings) > MOST_VALUES:
            raise too_large(path)
    for at in twice:
        old = values[at]
        values[at] = Place(old.value, old.start, old.end, old.line, "this key occurs twice")
    return Settings(values, frozenset(mappings))
