"""Assignments to switches of torch, such as ``torch.backends.cudnn.benchmark = True``."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
from libcst import matchers as m

from whyidle.fix.source import Source


def assigned(source: Source, *names: str) -> Iterator[tuple[cst.Assign, cst.BaseExpression]]:
    """Plain assignments to one of these attributes, by their imported names, and the values."""
    for assign in m.findall(source.module, m.Assign(targets=[m.AssignTarget()])):
        assert isinstance(assign, cst.Assign)
        if source.meaning(assign.targets[0].target) in names:
            yield assign, assign.value


def line_of(source: Source, assign: cst.Assign) -> cst.SimpleStatementLine | None:
    """The line, if the assignment is all that it does."""
    line = source.parent(assign)
    alone = isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1
    return line if alone and isinstance(line, cst.SimpleStatementLine) else None


def is_name(value: cst.BaseExpression, name: str) -> bool:
    """Whether an expression is this constant: True or False."""
    return m.matches(value, m.Name(name))
