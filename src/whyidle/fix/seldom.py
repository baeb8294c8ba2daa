"""Statements of a training loop made rarer: counters of loops, and guards around statements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import libcst as cst
from libcst import matchers as m

from whyidle.fix.edits import Lines, Rewrite, statement
from whyidle.fix.source import Source, called_method, names_in
from whyidle.fix.training import around_within, bound_in

EVERY = 100
NAMES = ("step", "batch_number", "pass_number")
BARS = ("tqdm", "trange")


@dataclass(frozen=True)
class Counter:
    """A name that counts the passes of a loop, and what makes the loop bind it, if it does not.

    ``last`` is code that holds in the last pass, where the source shows which one that is.
    """

    name: str
    last: str | None = None
    binding: Callable[[cst.For], cst.For] | None = None


def counter(source: Source, loop: cst.For | cst.While) -> Counter | None:
    """What counts the passes of a loop; None where no plain counter could be had."""
    if isinstance(loop, cst.While):
        return _summed(loop)
    over: cst.BaseExpression = loop.iter
    while isinstance(over, cst.Call) and over.args and _called(over) == "tqdm":
        over = over.args[0].value
    if isinstance(over, cst.Call) and _called(over) in ("range", "trange"):
        return _ranged(source, loop, over)
    if isinstance(over, cst.Call) and _called(over) == "enumerate" and over.args:
        return _enumerated(source, loop, over)
    return _summed(loop) or _added(source, loop, over)


def _called(call: cst.Call) -> str | None:
    return called_method(call) or (call.func.value if isinstance(call.func, cst.Name) else None)


def _ranged(source: Source, loop: cst.For, over: cst.Call) -> Counter | None:
    given = [a for a in over.args if a.keyword is None and not a.star]
    if not isinstance(loop.target, cst.Name) or len(given) not in (1, 2):
        return None
    end = given[-1].value
    still = isinstance(end, cst.Name | cst.Attribute | cst.Integer)
    still = still and not names_in(end) & bound_in(loop.body)
    named = _named(source, loop, loop.target)
    if named is None:
        return None
    text = str(end.evaluated_value - 1) if isinstance(end, cst.Integer) else None
    last = f"{named} == {text or source.text(end) + ' - 1'}" if still else None
    return Counter(named, last, _renaming(loop.target.value, named))


def _enumerated(source: Source, loop: cst.For, over: cst.Call) -> Counter | None:
    target = loop.target
    if not isinstance(target, cst.Tuple) or len(target.elements) != 2:
        return None
    first = target.elements[0].value
    named = _named(source, loop, first) if isinstance(first, cst.Name) else None
    if named is None or not isinstance(first, cst.Name):
        return None
    last = _last_of(source, over.args[0].value, named) if len(over.args) == 1 else None
    return Counter(named, last, _renaming(first.value, named))


def _last_of(source: Source, items: cst.BaseExpression, name: str) -> str | None:
    """Only a loader of torch that this file makes is known to have a length."""
    from whyidle.fix.loaders import LOADER

    made = source.bound(items) if isinstance(items, cst.Name) else None
    if isinstance(made, cst.Call) and source.meaning(made.func) in LOADER:
        return f"{name} == len({source.text(items)}) - 1"
    return None


def _named(source: Source, loop: cst.For, target: cst.Name) -> str | None:
    """The name of a loop variable, a new one for ``_``; None where the loop binds it anew."""
    if not target.value.startswith("_"):
        return None if target.value in bound_in(loop.body) else target.value
    return _new(source) if target.value not in names_in(loop.body) else None


def _new(source: Source) -> str | None:
    used = names_in(source.module)
    return next((name for name in NAMES if name not in used), None)


def _renaming(old: str, new: str) -> Callable[[cst.For], cst.For] | None:
    if old == new:
        return None

    def renamed(loop: cst.For) -> cst.For:
        target = loop.target
        if isinstance(target, cst.Tuple):
            first, *others = target.elements
            elements = [first.with_changes(value=cst.Name(new)), *others]
            return loop.with_changes(target=target.with_changes(elements=elements))
        return loop.with_changes(target=cst.Name(new))

    return renamed


def _summed(loop: cst.For | cst.While) -> Counter | None:
    """``count += 1`` as a statement of each pass."""
    add = m.AugAssign(m.Name(), m.AddAssign(), m.Integer("1"))
    lines = loop.body.body if isinstance(loop.body, cst.IndentedBlock) else ()
    for line in lines:
        if m.matches(line, m.SimpleStatementLine(body=[add])):
            assert isinstance(line, cst.SimpleStatementLine)
            one = line.body[0]
            assert isinstance(one, cst.AugAssign) and isinstance(one.target, cst.Name)
            return Counter(one.target.value)
    return None


def _added(source: Source, loop: cst.For, over: cst.BaseExpression) -> Counter | None:
    """``for step, batch in enumerate(...)`` in place of ``for batch in ...``."""
    name = _new(source)
    if name is None or loop.asynchronous is not None:
        return None

    def enumerated(now: cst.For) -> cst.For:
        inner = now.target
        if isinstance(inner, cst.Tuple) and not inner.lpar:
            inner = inner.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        target = cst.Tuple(
            [cst.Element(cst.Name(name)), cst.Element(inner)],
            lpar=(),
            rpar=(),
        )
        counted = cst.Call(cst.Name("enumerate"), [cst.Arg(now.iter)])
        return now.with_changes(target=target, iter=counted)

    return Counter(name, _last_of(source, over, name), enumerated)


def decides(source: Source, node: cst.CSTNode, loop: cst.For | cst.While) -> str | None:
    """Why a statement does not simply run in each pass of the loop; None where it does.

    A condition that is the same in each pass, such as ``rank == 0``, decides nothing.
    """
    for around in around_within(source, node, loop):
        if isinstance(around, cst.ExceptHandler | cst.Try | cst.Match):
            return "it belongs to the handling of an error"
        if isinstance(around, cst.Else):
            return "a condition decides on it already"
        if isinstance(around, cst.If):
            calls = [c for c in m.findall(around.test, m.Call()) if isinstance(c, cst.Call)]
            changing = names_in(around.test) & bound_in(loop.body)
            if changing or any(_called(c) not in ("get_rank", "is_main_process") for c in calls):
                return "a condition decides on it already"
            if m.findall(around.test, m.Modulo()):
                return "a condition decides on it already"
            if isinstance(loop, cst.For) and names_in(around.test) & names_in(loop.target):
                return "a condition decides on it already"
    return None


def guarded(source: Source, test: str, lines: Sequence[cst.BaseStatement]) -> cst.BaseStatement:
    """Statements that run only where ``test`` holds; a comment above the first stays above."""
    block = statement(f"if {test}:\n    pass\n", source.module)
    assert isinstance(block, cst.If) and isinstance(block.body, cst.IndentedBlock)
    first, *others = lines
    above = getattr(first, "leading_lines", ())
    inner = [first.with_changes(leading_lines=()), *others]
    return block.with_changes(leading_lines=above, body=block.body.with_changes(body=inner))


def guarding(
    source: Source, test: str, lines: Sequence[cst.BaseStatement]
) -> dict[cst.BaseStatement, Rewrite]:
    """Rewrites that put neighbouring statements under one guard."""
    first, *others = lines
    block = guarded(source, test, lines)
    rewrites: dict[cst.BaseStatement, Rewrite] = {first: lambda _: Lines((block,))}
    rewrites |= dict.fromkeys(others, lambda _: Lines())
    return rewrites


def neighbours(source: Source, line: cst.BaseStatement) -> list[cst.BaseStatement]:
    """The statements of the block that a statement is in."""
    block = source.parent(line)
    if not isinstance(block, cst.IndentedBlock | cst.Module):
        return []
    return [one for one in block.body if isinstance(one, cst.BaseStatement)]
