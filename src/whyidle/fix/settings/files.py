"""YAML and JSON settings files: only the characters of changed values change."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from whyidle.errors import UsageError
from whyidle.fix.said import Said
from whyidle.fix.settings import json_places, yaml_places
from whyidle.fix.settings.choose import Get, choose, known, shown
from whyidle.fix.settings.places import Path, Place, Settings
from whyidle.fix.settings.table import FRAMEWORKS, Framework, Row, Value
from whyidle.fix.told import Fixed, Told

ENDS = (".yaml", ".yml", ".json")

ARGUMENTS = {
    "per_device_train_batch_size", "gradient_accumulation_steps", "output_dir", "learning_rate",
    "num_train_epochs", "max_steps", "save_steps", "logging_steps", "dataloader_num_workers",
    "lr_scheduler_type", "warmup_ratio", "weight_decay",
}  # fmt: skip
"""Names of TrainingArguments; a mapping with three of them holds such arguments."""

BESIDE_TRAINER = {"model", "data", "seed_everything", "optimizer"}
SHARDING = {"zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"}


def is_settings(path: str) -> bool:
    """Whether a file is a settings file, by the end of its name."""
    return path.lower().endswith(ENDS)


def fixed(path: str, before: bytes, rows: Sequence[Row], said: Said, unsafe: bool = False) -> Fixed:
    """The file with the known settings changed, and what was done and left alone."""
    text = _decoded(path, before)
    as_json = path.lower().endswith(".json")
    read = json_places.read if as_json else yaml_places.read
    settings = read(path, text)
    found = list(_frameworks(settings))
    if not found:
        why = f"of no framework that is known ({', '.join(_names())})"
        return Fixed(before, before, [], [Told("settings", 1, f"these settings are {why}")])
    edits: dict[Place, str] = {}
    done: list[Told] = []
    left: list[Told] = []
    expected: dict[Path, Value] = {}
    for framework, root in found:
        places = _below(settings, root)
        for one in choose(rows, framework, _getter(places), said, unsafe):
            place = places[one.row.key]
            reason = one.left or place.fixed
            if reason is not None:
                left.append(Told(one.row.NAME, place.line, f"{one.row.key}: {reason}"))
                continue
            what = f"{one.row.key}: {shown(one.old)} -> {shown(one.new)}"
            done.append(Told(one.row.NAME, place.line, what))
            edits[place] = _written(one.new, text[place.start : place.end], as_json)
            expected[(*root, *one.row.key.split("."))] = one.new
        left += _unknown(framework, places)
    after = text
    for place in sorted(edits, key=lambda p: p.start, reverse=True):
        after = after[: place.start] + edits[place] + after[place.end :]
    _checked(path, settings, read(path, after), expected)
    return Fixed(before, after.encode(), _in_order(done), _in_order(left))


def _names() -> list[str]:
    return [name for key, name in FRAMEWORKS.items() if key != "environment"]


def _in_order(told: list[Told]) -> list[Told]:
    return sorted(told, key=lambda t: t.line)


def _decoded(path: str, text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: this is no text in UTF-8, so nothing was changed.") from error


def _frameworks(settings: Settings) -> list[tuple[Framework, Path]]:
    """Which frameworks the mappings of a file are for, and where their keys begin."""
    found: list[tuple[Framework, Path]] = []
    top = {path[0] for path in (*settings.values, *settings.mappings) if path}
    if top & SHARDING:
        found.append(("deepspeed", ()))
    if ("trainer",) in settings.mappings and top & {
        "model",
        "data",
        "seed_everything",
        "optimizer",
    }:
        found.append(("lightning", ()))
    for at in sorted(settings.mappings):
        keys = {p[-1] for p in settings.values if len(p) == len(at) + 1 and p[: len(at)] == at}
        if len(at) <= 2 and len(keys & ARGUMENTS) >= 3:
            found.append(("hf", at))
    return found


def _below(settings: Settings, root: Path) -> dict[str, Place]:
    return {
        ".".join(path[len(root) :]): place
        for path, place in settings.values.items()
        if path[: len(root)] == root
    }


def _getter(places: Mapping[str, Place]) -> Get:
    def get(key: str) -> tuple[bool, Value]:
        place = places.get(key)
        return (True, place.value) if place is not None else (False, None)

    return get


def _unknown(framework: Framework, places: Mapping[str, Place]) -> list[Told]:
    """One sentence on keys that the table does not hold."""
    others = sorted(set(places) - known(framework), key=lambda key: places[key].start)
    if not others:
        return []
    names = ", ".join(others[:5]) + (", ..." if len(others) > 5 else "")
    count = f"{len(others)} key{'' if len(others) == 1 else 's'}"
    what = f"{count} of {FRAMEWORKS[framework]} not known here: {names}"
    return [Told("settings", places[others[0]].line, what)]


def _written(value: Value, old: str, as_json: bool) -> str:
    """A value in the manner of the one that it replaces."""
    if as_json:
        return json.dumps(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        word = str(value).lower()
        style = old.strip()
        return word.capitalize() if style[:1].isupper() and style[1:].islower() else word
    if isinstance(value, str):
        quote = old[:1] if old[:1] in "'\"" else ""
        return f"{quote}{value}{quote}" if quote or value else '""'
    return str(value)


def _checked(path: str, before: Settings, after: Settings, expected: Mapping[Path, Value]) -> None:
    """Every other value is what it was; anything else would be a fault of ours."""
    wanted = {at: place.value for at, place in before.values.items()} | dict(expected)
    if wanted != {at: place.value for at, place in after.values.items()}:
        raise UsageError(f"{path}: an edit would have changed other settings; nothing was changed.")
