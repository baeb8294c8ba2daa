"""A training command: the values of known options and environment variables changed in it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from whyidle.errors import UsageError
from whyidle.fix.said import Said
from whyidle.fix.settings.choose import Chosen, Get, choose, known, shown
from whyidle.fix.settings.table import FRAMEWORKS, Framework, Row, Value

WORD = re.compile(r"""(?:[^\s'"\\]|\\.|'[^']*'|"(?:\\.|[^"\\])*")+""", re.DOTALL)
VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
OPERATORS = re.compile(r"[|&;<>()`]|\$\(|\s#")
OF_HF = re.compile(
    r"(dataloader|per_device|ddp)_\w+|(gradient_accumulation|logging|save|eval)_steps|"
    r"num_train_epochs|torch_compile|full_determinism|torch_empty_cache_steps"
)
OF_LIGHTNING = re.compile(r"(trainer|data)\.\w+(\.\w+)*")


@dataclass(frozen=True)
class Given:
    """An option or variable of a command: characters of its value, or of a bare option's end."""

    value: Value
    start: int
    end: int
    bare: bool
    whole: int
    """Where the option itself begins."""


@dataclass(frozen=True)
class Changed:
    """The command as it should be, and sentences on what changed and what was left."""

    command: str
    done: list[str]
    left: list[str]


def changed(command: str, rows: Sequence[Row], said: Said, unsafe: bool) -> Changed:
    """The command with known values changed; all other characters stay as they are."""
    try:
        shlex.split(command)
    except ValueError as error:
        raise UsageError(f"This is no command that a shell reads: {error}.") from error
    options, variables = _options(command)
    edits: list[tuple[int, int, str]] = []
    done: list[str] = []
    left: list[str] = []
    plain = OPERATORS.search(re.sub(r"'[^']*'|\"[^\"]*\"", "", command)) is None
    for framework in _frameworks(options):
        get = _getter(options)
        for one in choose(rows, framework, get, said, unsafe, absent=framework == "hf"):
            given = options.get(one.row.key)
            if one.left is not None or (given is None and not plain):
                why = one.left or "where the command ends is not clear"
                left.append(f"--{one.row.key}: {why}")
                continue
            edits.append(_edit(command, one, given, framework))
            before = shown(one.old) if given is not None else "not set"
            done.append(f"--{one.row.key}: {before} -> {shown(one.new)} ({one.row.NAME})")
        others = [key for key in options if key not in known(framework)]
        if others:
            names = ", ".join(f"--{key}" for key in others[:5])
            more = ", ..." if len(others) > 5 else ""
            left.append(f"options of {FRAMEWORKS[framework]} not known here: {names}{more}")
    for one in choose(rows, "environment", _getter(variables), said, unsafe):
        given = variables[one.row.key]
        if one.left is not None:
            left.append(f"{one.row.key}: {one.left}")
            continue
        edits.append((given.start, given.end, shown(one.new)))
        done.append(f"{one.row.key}: {shown(one.old)} -> {shown(one.new)} ({one.row.NAME})")
    if not _frameworks(options):
        left.append("no option here is one of Hugging Face's Trainer or of Lightning")
    for start, end, text in sorted(edits, reverse=True):
        command = command[:start] + text + command[end:]
    return Changed(command, done, left)


def _frameworks(options: dict[str, Given]) -> list[Framework]:
    if any(OF_LIGHTNING.fullmatch(key) for key in options):
        return ["lightning"]
    return ["hf"] if any(OF_HF.fullmatch(key) for key in options) else []


def _edit(
    command: str, one: Chosen, given: Given | None, framework: Framework
) -> tuple[int, int, str]:
    """Characters from ``start`` to ``end`` of a command, and what takes their place."""
    text = shlex.quote(shown(one.new)) if one.new is not None else "null"
    if framework == "hf" and isinstance(one.new, bool):
        text = str(one.new)
    if given is None:
        end = len(command.rstrip())
        return end, end, f" --{one.row.key} {text}"
    if framework == "hf" and one.new is None:
        start = len(command[: given.whole].rstrip())
        return start, given.end, ""
    return given.start, given.end, f" {text}" if given.bare else text


def _getter(given: dict[str, Given]) -> Get:
    def get(key: str) -> tuple[bool, Value]:
        one = given.get(key)
        return (True, one.value) if one is not None else (False, None)

    return get


def _options(command: str) -> tuple[dict[str, Given], dict[str, Given]]:
    """Options by their names with _ for -, the last of each, and variables set for the command."""
    words = [(w.group(), w.start(), w.end()) for w in WORD.finditer(command)]
    options: dict[str, Given] = {}
    variables: dict[str, Given] = {}
    for number, (word, start, end) in enumerate(words):
        variable = VARIABLE.fullmatch(word)
        if variable is not None:
            value = _value(variable.group(2))
            variables[variable.group(1)] = Given(value, end - len(variable[2]), end, False, start)
        if not word.startswith("--") or word == "--":
            continue
        name, equals, text = word[2:].partition("=")
        key = name.replace("-", "_")
        if equals:
            options[key] = Given(_value(text), end - len(text), end, False, start)
            continue
        following = words[number + 1] if number + 1 < len(words) else None
        if following is None or re.match(r"-[-A-Za-z]|[|&;<>]", following[0]):
            options[key] = Given(True, end, end, True, start)
        else:
            text, first, last = following
            options[key] = Given(_value(text), first, last, False, start)
    return options, variables


def _value(text: str) -> Value:
    """A word of a command as the value that it is for argparse and jsonargparse."""
    words = list(_unquoted(text))
    word = words[0] if words else ""
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    if word.lower() in ("null", "none"):
        return None
    return int(word) if re.fullmatch(r"-?[0-9]{1,18}", word) else word


def _unquoted(text: str) -> Iterator[str]:
    try:
        yield from shlex.split(text)
    except ValueError:
        yield text
