"""What a change found, and how its edits are made to a tree."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import libcst as cst

from whyidle.fix.source import Source


@dataclass(frozen=True)
class Lines:
    """Statements that take the place of one; ``comments`` go before whatever follows them."""

    body: Sequence[cst.BaseStatement] = ()
    comments: Sequence[cst.EmptyLine] = ()


Replace = Callable[[cst.CSTNode], cst.CSTNode]
Rewrite = Callable[[cst.BaseStatement], Lines]


@dataclass
class Edit:
    """One edit, at the lines ``first`` to ``last`` of the file.

    ``nodes`` gives new expressions for old ones, ``lines`` new statements for old ones; a function
    receives the node with the edits inside it already made. ``module`` works on the whole file.
    """

    first: int
    last: int
    what: str
    nodes: dict[cst.CSTNode, Replace] = field(default_factory=dict)
    lines: dict[cst.BaseStatement, Rewrite] = field(default_factory=dict)
    module: Callable[[cst.Module], cst.Module] | None = None


@dataclass(frozen=True)
class Left:
    """A place that a change saw and left alone: line from 1, and why."""

    line: int
    reason: str


class Change(Protocol):
    """One kind of change; each is one file of this package."""

    @property
    def NAME(self) -> str:
        """Its name, as --only takes it."""

    @property
    def CAUSES(self) -> tuple[str, ...]:
        """Ids of the causes that it answers."""

    @property
    def SAFE(self) -> bool:
        """Whether results stay as they are."""

    @property
    def WHY(self) -> str:
        """What it brings and what it may change, in a sentence or two."""

    def find(self, source: Source) -> Iterator[Edit | Left]:
        """What it would edit in a file, and what it saw and leaves alone."""


def at(source: Source, node: cst.CSTNode, what: str) -> Edit:
    """An empty edit at the lines of a node."""
    return Edit(source.line(node), source.last_line(node), what)


def left(source: Source, node: cst.CSTNode, reason: str) -> Left:
    """A place left alone."""
    return Left(source.line(node), reason)


def replacing(change: Callable[[cst.Call], cst.CSTNode]) -> Replace:
    """An edit of a call, for ``Edit.nodes``."""

    def replaced(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.Call)
        return change(node)

    return replaced


def gone(statement: cst.BaseStatement) -> Lines:
    """Nothing in place of a statement; comments above it stay, one beside it goes with it."""
    above = getattr(statement, "leading_lines", ())
    return Lines((), tuple(above))


def statement(code: str, module: cst.Module) -> cst.BaseStatement:
    """A new statement in the manner of the file."""
    return cst.parse_statement(code, module.config_for_parsing)


def made(module: cst.Module, edits: Sequence[Edit]) -> tuple[cst.Module, set[str]]:
    """The tree with all edits made, and the code of the calls that they made longer.

    Edits of one node are made in turn, others must not overlap.
    """
    maker = _Maker(edits)
    changed = module.visit(maker)
    codes = [(module.code_for_node(a), changed.code_for_node(b)) for a, b in maker.calls]
    calls = {after for before, after in codes if len(after) > len(before)}
    for edit in edits:
        if edit.module is not None:
            changed = edit.module(changed)
    return changed, calls


class _Maker(cst.CSTTransformer):
    def __init__(self, edits: Sequence[Edit]) -> None:
        super().__init__()
        self.calls: list[tuple[cst.CSTNode, cst.Call]] = []
        self._nodes: dict[cst.CSTNode, list[Replace]] = {}
        for node, replace in (pair for e in edits for pair in e.nodes.items()):
            self._nodes.setdefault(node, []).append(replace)
        self._lines: dict[cst.BaseStatement, list[Rewrite]] = {}
        for line, how in (pair for e in edits for pair in e.lines.items()):
            self._lines.setdefault(line, []).append(how)

    def on_leave(
        self, original_node: cst.CSTNodeT, updated_node: cst.CSTNodeT
    ) -> cst.CSTNodeT | cst.RemovalSentinel | cst.FlattenSentinel[cst.CSTNodeT]:
        """Make the edits of this node, once those inside it are made."""
        if original_node in self._nodes:
            changed: cst.CSTNode = updated_node
            for how in self._nodes[original_node]:
                changed = how(changed)
            if isinstance(changed, cst.Call):
                self.calls.append((original_node, changed))
            return cast(cst.CSTNodeT, changed)
        if isinstance(original_node, cst.IndentedBlock | cst.Module):
            if any(line in self._lines for line in original_node.body):
                return cast(cst.CSTNodeT, self._block(original_node, updated_node))
            return updated_node
        return super().on_leave(original_node, updated_node)

    def _block(self, before: cst.IndentedBlock | cst.Module, after: Any) -> Any:
        body: list[cst.BaseStatement] = []
        waiting: list[cst.EmptyLine] = []
        for old, new in zip(before.body, after.body, strict=True):
            assert isinstance(old, cst.BaseStatement) and isinstance(new, cst.BaseStatement)
            lines = _rewritten(new, self._lines.get(old, []))
            for one in lines.body:
                body.append(_below(one, waiting))
                waiting = []
            waiting = _joined(waiting, lines.comments)
        if not body and isinstance(after, cst.IndentedBlock):
            body.append(cst.SimpleStatementLine([cst.Pass()], leading_lines=waiting))
            waiting = []
        footer = [*_comments(waiting), *after.footer]
        return after.with_changes(body=body, footer=footer)


def _rewritten(line: cst.BaseStatement, rewrites: Sequence[Rewrite]) -> Lines:
    """What takes the place of a statement; a later rewrite works on the first line that is left."""
    lines = Lines((line,))
    for how in rewrites:
        if lines.body:
            more = how(lines.body[0])
            lines = Lines((*more.body, *lines.body[1:]), (*more.comments, *lines.comments))
    return lines


def _below(line: cst.BaseStatement, comments: list[cst.EmptyLine]) -> cst.BaseStatement:
    if not comments:
        return line
    own = getattr(line, "leading_lines", ())
    found: cst.BaseStatement = line.with_changes(leading_lines=_joined(comments, own))
    return found


def _joined(above: Sequence[cst.EmptyLine], below: Sequence[cst.EmptyLine]) -> list[cst.EmptyLine]:
    """Both runs of lines; what only parted a line that is gone is not doubled."""
    blank = not _comments(above)
    return list(below) if blank and below else [*above, *below]


def _comments(lines: Sequence[cst.EmptyLine]) -> list[cst.EmptyLine]:
    return list(lines) if any(line.comment for line in lines) else []
