"""A YAML file, with where each value stands; nothing in it is built or run."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from whyidle.errors import UsageError
from whyidle.fix.settings.places import MOST_VALUES, Path, Place, Settings, too_large
from whyidle.fix.settings.table import Value

INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)$")
FLOAT = re.compile(r"[-+]?[0-9.]+([eE][-+]?[0-9]+)?$")
TAG = "tag:yaml.org,2002:"
DEPTH = 40


def read(path: str, text: str) -> Settings:
    """The settings of a YAML text; a sentence where it is none, or PyYAML is not installed."""
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise UsageError(
            "Changing YAML needs PyYAML, which is not installed.\n"
            "Install it with: pip install 'whyidle[fix]'"
        ) from error
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f":{mark.line + 1}" if mark is not None else ""
        raise UsageError(
            f"{path}{where}: this is no single YAML document, so nothing was changed."
        ) from error
    except RecursionError as error:
        raise UsageError(f"{path}: this YAML is nested too deeply to be settings.") from error
    return _Walk(path).settings(root)


class _Walk:
    """One walk over the nodes; an alias is one node that is met again."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.values: dict[Path, Place] = {}
        self.mappings: set[Path] = set()
        self.met: Counter[int] = Counter()
        self.nodes: dict[Path, int] = {}

    def settings(self, root: Any) -> Settings:
        if root is not None:
            self.walk(root, ())
        shared = {p: place for p, place in self.values.items() if self.met[self.nodes[p]] > 1}
        for at, place in shared.items():
            why = "its value is shared by an anchor"
            self.values[at] = Place(place.value, place.start, place.end, place.line, why)
        return Settings(self.values, frozenset(self.mappings))

    def walk(self, node: Any, at: Path, shared: bool = False) -> None:
        self.met[id(node)] += 2 if shared else 1
        if len(self.met) + len(self.values) > MOST_VALUES or len(at) > DEPTH:
            raise too_large(self.path)
        kind = type(node).__name__
        again = shared or self.met[id(node)] > 1
        if kind == "MappingNode":
            self.mappings.add(at)
            keys = Counter(str(key.value) for key, _ in node.value)
            for key, value in node.value:
                below = (*at, str(key.value))
                self.walk(value, below, again)
                if keys[str(key.value)] > 1 and below in self.values:
                    old = self.values[below]
                    twice = "this key occurs twice"
                    self.values[below] = Place(old.value, old.start, old.end, old.line, twice)
        elif kind == "SequenceNode":
            for number, value in enumerate(node.value):
                self.walk(value, (*at, str(number)), again)
        else:
            start, end = node.start_mark, node.end_mark
            why: str | None = (
                None if node.style in (None, "'", '"') else "its value is a block of text"
            )
            if node.start_mark.index == node.end_mark.index:
                why = "its value is left empty"
            place = Place(_value(node), start.index, end.index, start.line + 1, why)
            self.values[at], self.nodes[at] = place, id(node)


def _value(node: Any) -> Value:
    """The value of a scalar as PyYAML would read it; odd notations stay text."""
    text, tag = str(node.value), str(node.tag).removeprefix(TAG)
    if tag == "bool":
        return text.lower() in ("true", "yes", "on")
    if tag == "null":
        return None
    if tag == "int" and INTEGER.match(text):
        return int(text) if len(text) < 20 else text
    if tag == "float" and FLOAT.match(text):
        try:
            return float(text)
        except ValueError:
            return text
    return text
