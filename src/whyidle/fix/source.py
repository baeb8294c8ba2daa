"""A parsed Python file and the questions that a change asks of it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import Any

import libcst as cst
from libcst import matchers as m
from libcst import metadata as md

from whyidle.fix.said import NOTHING, Said

Function = (cst.FunctionDef, cst.Lambda)
Loop = (cst.For, cst.While)


class Source:
    """One file: its tree, what each name means through imports, parents and lines.

    ``start_method`` is how this platform starts a process (fork, spawn, forkserver).
    """

    def __init__(
        self, module: cst.Module, start_method: str | None = None, said: Said = NOTHING
    ) -> None:
        self._wrapper = md.MetadataWrapper(module, unsafe_skip_copy=True)  # parsed: no node twice
        self.module = self._wrapper.module
        self.said = said
        self.start_method = start_method or multiprocessing.get_all_start_methods()[0]
        self.calls = [c for c in m.findall(self.module, m.Call()) if isinstance(c, cst.Call)]
        self._methods: dict[str | None, list[cst.Call]] = {}
        for call in self.calls:
            self._methods.setdefault(called_method(call), []).append(call)

    @cached_property
    def _positions(self) -> Any:
        return self._wrapper.resolve(md.PositionProvider)

    @cached_property
    def _parents(self) -> Any:
        return self._wrapper.resolve(md.ParentNodeProvider)

    @cached_property
    def _scopes(self) -> Any:
        return self._wrapper.resolve(md.ScopeProvider)

    @cached_property
    def assigned_attributes(self) -> list[cst.Attribute]:
        """Attributes that the file assigns to, or to their items, but for those of ``self``."""
        found = []
        for one in m.findall(self.module, m.AssignTarget() | m.AugAssign() | m.AnnAssign()):
            target = one.target  # type: ignore[attr-defined]
            while isinstance(target, cst.Subscript):
                target = target.value
            if isinstance(target, cst.Attribute) and not m.matches(target.value, m.Name("self")):
                found.append(target)
        return found

    def text(self, node: cst.CSTNode) -> str:
        """The code of a node."""
        return self.module.code_for_node(node)

    def line(self, node: cst.CSTNode) -> int:
        """The line on which a node begins, from 1."""
        return int(self._positions[node].start.line)

    def last_line(self, node: cst.CSTNode) -> int:
        """The line on which a node ends, from 1."""
        return int(self._positions[node].end.line)

    def before(self, one: cst.CSTNode, other: cst.CSTNode) -> bool:
        """Whether ``one`` begins before ``other`` in the file."""
        a, b = self._positions[one].start, self._positions[other].start
        return (a.line, a.column) < (b.line, b.column)

    def meaning(self, node: cst.CSTNode) -> str | None:
        """The one imported name, in full, that a node can mean; None when unsure or local."""
        found = self._meanings(node)
        if len(found) != 1:
            return None
        (name,) = found
        return str(name.name) if name.source is md.QualifiedNameSource.IMPORT else None

    def ambiguous(self, node: cst.CSTNode, *names: str) -> bool:
        """Whether a node may mean one of the imported ``names`` and may mean something else."""
        found = self._meanings(node)
        return len(found) > 1 and any(f.name in names for f in found)

    def _meanings(self, node: cst.CSTNode) -> Collection[md.QualifiedName]:
        """Every full name that a node can mean, as far as its scope is known."""
        scope = self._scopes.get(node)
        return () if scope is None else scope.get_qualified_names_for(node)

    def calls_of(self, *names: str) -> list[cst.Call]:
        """Calls of imported names, such as torch.cuda.empty_cache, in the order of the file."""
        return [c for c in self._maybe(names) if self.meaning(c.func) in names]

    def unclear_calls(self, *names: str) -> list[cst.Call]:
        """Calls of a name that is one of these and is bound to something else as well."""
        return [c for c in self._maybe(names) if self.ambiguous(c.func, *names)]

    def _maybe(self, names: Sequence[str]) -> list[cst.Call]:
        """Calls that end like one of the names, or are of a name that an import gives: few."""
        last = {name.rsplit(".", 1)[-1] for name in names} | self._renamed
        return [c for c in self.calls if _last_name(c.func) in last]

    @cached_property
    def _renamed(self) -> set[str]:
        """Names that stand for an imported one that is called otherwise: ``import a.b as c``."""
        aliases = m.findall(self.module, m.ImportAlias(asname=m.AsName()))
        return {a.evaluated_alias for a in aliases if isinstance(a, cst.ImportAlias)} - {None}  # type: ignore[return-value]

    def method_calls(self, method: str) -> list[cst.Call]:
        """Calls ``something.method(...)``, in the order of the file."""
        return self._methods.get(method, [])

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """The node around this one; None for the module."""
        found = self._parents.get(node)
        return found if isinstance(found, cst.CSTNode) else None

    def parents(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """All nodes around this one, the nearest first."""
        around = self.parent(node)
        while around is not None:
            yield around
            around = self.parent(around)

    def within_function(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Nodes around this one, up to and without the function or class that holds it."""
        for around in self.parents(node):
            if isinstance(around, (*Function, cst.ClassDef)):
                return
            yield around

    def loop(self, node: cst.CSTNode) -> cst.For | cst.While | None:
        """The innermost loop whose body runs this node in each pass."""
        below = node
        for around in self.within_function(node):
            if isinstance(around, Loop) and around.body is below:
                return around
            below = around
        return None

    def function(self, node: cst.CSTNode) -> cst.CSTNode:
        """The function that holds a node; the module for code outside functions."""
        found = (p for p in self.parents(node) if isinstance(p, Function))
        return next(found, self.module)

    def statement(self, node: cst.CSTNode) -> cst.BaseStatement:
        """The statement, with its line, that holds an expression."""
        for around in (node, *self.parents(node)):
            if isinstance(around, cst.BaseStatement):
                return around
        raise LookupError(self.text(node))

    def alone(self, node: cst.CSTNode) -> cst.SimpleStatementLine | None:
        """The line, if this expression is all that the line does; None otherwise."""
        expr = self.parent(node)
        line = self.parent(expr) if isinstance(expr, cst.Expr) else None
        if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1:
            return line
        return None

    def bound(self, name: cst.Name) -> cst.BaseExpression | None:
        """What a name stands for: the value of its only assignment, if that is a plain one."""
        scope = self._scopes.get(name)
        if scope is None:
            return None
        found = list(scope[name.value])
        if len(found) != 1 or not isinstance(found[0], md.Assignment):
            return None
        target = self.parent(found[0].node)
        if isinstance(target, cst.AnnAssign):
            return target.value if target.target is found[0].node else None
        assign = self.parent(target) if isinstance(target, cst.AssignTarget) else None
        if isinstance(assign, cst.Assign) and len(assign.targets) == 1:
            return assign.value
        return None

    def class_of(self, name: cst.CSTNode) -> cst.ClassDef | None:
        """The class of this file that a name stands for, if it is that for sure."""
        scope = self._scopes.get(name)
        if scope is None or not isinstance(name, cst.Name):
            return None
        found = list(scope[name.value])
        node = found[0].node if len(found) == 1 and isinstance(found[0], md.Assignment) else None
        return node if isinstance(node, cst.ClassDef) else None

    def alias(self, module: str) -> str | None:
        """The name by which this file calls a module at its top level, such as torch."""
        for line in self.module.body:
            if not isinstance(line, cst.SimpleStatementLine):
                continue
            for small in line.body:
                if isinstance(small, cst.Import):
                    for one in small.names:
                        if one.asname is None and one.evaluated_name.split(".")[0] == module:
                            return module
                        if one.asname is not None and one.evaluated_name == module:
                            return one.evaluated_alias
        return None

    def guard(self) -> cst.If | None:
        """The ``if __name__ == "__main__":`` of the file."""
        main = m.Comparison(
            left=m.Name("__name__"),
            comparisons=[m.ComparisonTarget(m.Equal(), m.SimpleString())],
        )
        for line in self.module.body:
            if isinstance(line, cst.If) and m.matches(line.test, main):
                return line
        return None


def called_method(call: cst.Call) -> str | None:
    """``method`` of ``something.method(...)``."""
    return call.func.attr.value if isinstance(call.func, cst.Attribute) else None


def _last_name(func: cst.BaseExpression) -> str | None:
    if isinstance(func, cst.Attribute):
        return func.attr.value
    return func.value if isinstance(func, cst.Name) else None


def names_in(node: cst.CSTNode) -> set[str]:
    """Every name, attribute or keyword that occurs in a node."""
    return {n.value for n in m.findall(node, m.Name()) if isinstance(n, cst.Name)}
