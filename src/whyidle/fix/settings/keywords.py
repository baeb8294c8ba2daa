"""Keywords of ``TrainingArguments(...)`` and ``Trainer(...)`` in source code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from whyidle.fix.arguments import argument, open_ended, with_value
from whyidle.fix.edits import Edit, Left, at, left, replacing
from whyidle.fix.settings.choose import Chosen, Get, choose, shown
from whyidle.fix.settings.table import Framework, Row, Value
from whyidle.fix.source import Source

CALLS: dict[Framework, tuple[str, ...]] = {
    "hf": (
        "transformers.TrainingArguments",
        "transformers.Seq2SeqTrainingArguments",
        "transformers.training_args.TrainingArguments",
        "trl.SFTConfig",
        "trl.DPOConfig",
        "trl.GRPOConfig",
    ),
    "lightning": (
        "lightning.Trainer",
        "lightning.pytorch.Trainer",
        "pytorch_lightning.Trainer",
        "pytorch_lightning.trainer.Trainer",
    ),
}
PREFIX: dict[Framework, str] = {"hf": "", "lightning": "trainer."}


class Keywords:
    """A change of source code made of rows of the table."""

    NAME = "settings"
    CAUSES: tuple[str, ...] = ()
    SAFE = True
    WHY = "Arguments of a framework's trainer, as in its settings files."

    def __init__(self, rows: Sequence[Row], unsafe: bool) -> None:
        self.rows, self.unsafe = rows, unsafe

    def find(self, source: Source) -> Iterator[Edit | Left]:
        """Every known keyword with a value that costs time."""
        for framework, names in CALLS.items():
            prefix = PREFIX[framework]
            rows = [row for row in self.rows if row.key.startswith(prefix)]
            for call in source.calls_of(*names):
                chosen = choose(
                    rows,
                    framework,
                    _getter(call, prefix),
                    source.said,
                    self.unsafe,
                    absent=not open_ended(call),
                )
                for one in chosen:
                    yield self._edit(source, call, one, one.row.key.removeprefix(prefix))

    @staticmethod
    def _edit(source: Source, call: cst.Call, one: Chosen, key: str) -> Edit | Left:
        arg = argument(call, key)
        if one.left is not None:
            return left(source, arg or call, f"{key}: {one.left}")
        before = shown(one.old) if arg is not None else "not set"
        code = f'"{one.new}"' if isinstance(one.new, str) else repr(one.new)
        edit = at(source, arg or call, f"{key}: {before} -> {shown(one.new)} ({one.row.NAME})")
        edit.nodes[call] = replacing(lambda c: with_value(c, argument(c, key), key, code))
        return edit


def _getter(call: cst.Call, prefix: str) -> Get:
    def get(key: str) -> tuple[bool, Value]:
        arg = argument(call, key.removeprefix(prefix))
        return (False, None) if arg is None else (True, _value(arg.value))

    return get


def _value(node: cst.BaseExpression) -> Value:
    """The constant, or the code of what is decided elsewhere, which is bad in no row."""
    if isinstance(node, cst.Name) and node.value in ("True", "False", "None"):
        return {"True": True, "False": False, "None": None}[node.value]
    if isinstance(node, cst.Integer):
        return node.evaluated_value
    if isinstance(node, cst.SimpleString) and isinstance(node.evaluated_value, str):
        return node.evaluated_value
    return "decided elsewhere"
