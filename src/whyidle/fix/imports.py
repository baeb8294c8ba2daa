"""An import of the standard library, added where a reader expects it."""

from __future__ import annotations

import sys
from collections.abc import Callable

import libcst as cst
from libcst import matchers as m

from whyidle.fix.edits import statement
from whyidle.fix.source import Source


def bringing(
    source: Source, module: str, name: str
) -> tuple[str, Callable[[cst.Module], cst.Module] | None] | None:
    """What to call ``module.name`` in this file, and what adds its import if there is none.

    None where the file uses the plain name for something else.
    """
    known = source.alias(module)
    if known is not None:
        return f"{known}.{name}", None
    uses = [n for n in m.findall(source.module, m.Name(name)) if isinstance(n, cst.Name)]
    imported = [n for n in uses if isinstance(source.parent(n), cst.ImportAlias)]
    if not uses:
        return name, lambda tree: _with_import(tree, f"from {module} import {name}\n")
    top = any(
        isinstance(around, cst.ImportFrom)
        and around.module is not None
        and source.text(around.module) == module
        and source.function(around) is source.module
        for n in imported
        for around in source.parents(n)
    )
    return (name, None) if top and len(imported) == 1 else None


def _with_import(tree: cst.Module, code: str) -> cst.Module:
    """Below the last import of the standard library at the top, else above the first of others."""
    new = statement(code, tree)
    body = list(tree.body)
    if any(tree.code_for_node(line).strip() == code.strip() for line in body):
        return tree
    imports = [i for i, line in enumerate(body) if _imported(line) is not None]
    own = [i for i in imports if _imported(body[i]) in sys.stdlib_module_names]
    future = [i for i in imports if _imported(body[i]) == "__future__"]
    if set(own) - set(future):
        return tree.with_changes(body=[*body[: own[-1] + 1], new, *body[own[-1] + 1 :]])
    if set(imports) - set(future):
        first = min(set(imports) - set(future))
        below = body[first]
        assert isinstance(below, cst.SimpleStatementLine) and isinstance(
            new, cst.SimpleStatementLine
        )
        above = below.leading_lines
        start = 0
        while start < len(above) and above[start].comment is None:
            start += 1
        parted = [cst.EmptyLine(indent=False), *above[start:]]
        head = new.with_changes(leading_lines=above[:start])
        body[first] = below.with_changes(leading_lines=parted)
        return tree.with_changes(body=[*body[:first], head, *body[first:]])
    at = future[-1] + 1 if future else int(tree.get_docstring() is not None)
    return tree.with_changes(body=[*body[:at], new, *body[at:]])


def _imported(line: cst.CSTNode) -> str | None:
    """The module at the root of what a line imports; None for another line, or a local module."""
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        return None
    small = line.body[0]
    if isinstance(small, cst.Import):
        return small.names[0].evaluated_name.split(".")[0]
    if isinstance(small, cst.ImportFrom):
        node = small.module
        while isinstance(node, cst.Attribute) and isinstance(node.value, cst.Attribute | cst.Name):
            node = node.value
        return node.value if isinstance(node, cst.Name) and not small.relative else ""
    return None
