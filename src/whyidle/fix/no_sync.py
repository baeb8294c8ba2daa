"""Gradients reduced over all ranks after each micro-batch: reduced after the last one only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst
from libcst import matchers as m

from whyidle.fix import training
from whyidle.fix.arguments import argument, is_constant, open_ended
from whyidle.fix.edits import Edit, Left, Lines, left, statement
from whyidle.fix.imports import bringing
from whyidle.fix.source import Source, names_in
from whyidle.fix.unused_parameters import WRAPPER

NAMES = ("micro", "micro_step", "micro_batch")
PLAIN = (
    cst.Name, cst.Attribute, cst.Integer, cst.Call, cst.Arg, cst.BinaryOperation, cst.Comparison,
    cst.ComparisonTarget, cst.BooleanOperation, cst.UnaryOperation,
)  # fmt: skip


@dataclass(frozen=True)
class Accumulation:
    """A loop over micro-batches: what tells the others from the last, and a new loop variable."""

    test: str
    """Holds in micro-batches whose gradients need not be reduced, as code."""
    end: int
    """Statements of the loop before this one, counted from 0, belong to a micro-batch."""
    rename: str | None = None


class NoSync:
    """Wraps forward and backward of all micro-batches but the last in model.no_sync()."""

    NAME = "no_sync"
    CAUSES = ("communication.sync_every_microstep",)
    SAFE = False
    WHY = (
        "Each rank adds up the gradients of its micro-batches and they are reduced once. The sums "
        "are then made in another order, so their last digits may differ."
    )

    def find(self, source: Source) -> Iterator[Edit | Left]:
        """Every loop that accumulates gradients of a wrapped model."""
        if not source.calls_of(*WRAPPER):
            return
        for loop in training.loops_of(source):
            if training.backwards_of(source, loop) and "no_sync" not in names_in(loop):
                found = _one(source, loop)
                if found is not None:
                    yield found


def _one(source: Source, loop: cst.For | cst.While) -> Edit | Left | None:
    how = _accumulates(source, loop)
    if how is None:
        return None
    if isinstance(how, str):
        return left(source, loop, how)
    assert isinstance(loop.body, cst.IndentedBlock)
    lines = loop.body.body
    backward = [i for i, line in enumerate(lines) if _holds(source, line, loop, "backward")]
    models = _models(source, loop)
    if isinstance(models, str):
        return left(source, loop, models)
    forward = [i for i, line in enumerate(lines) if models and _calls(source, line, models)]
    if not models:
        return None
    if not forward or not backward or min(forward) > min(backward) or max(backward) >= how.end:
        return left(source, loop, "forward and backward are not statements of this loop in turn")
    reason = _reason(source, loop, models)
    if reason is not None:
        return left(source, loop, reason)
    null = bringing(source, "contextlib", "nullcontext")
    if null is None:
        return left(source, loop, "this file calls something else nullcontext")
    name, (nullcontext, importing) = next(iter(models)), null
    head = f"with {name}.no_sync() if {how.test} else {nullcontext}():\n    pass\n"
    first, last = min(forward), max(backward)
    edit = Edit(
        source.line(loop), source.last_line(loop), f"{name} reduces after the last micro-batch"
    )
    edit.lines[loop] = lambda now: Lines((_wrapped(source, now, head, (first, last), how.rename),))
    edit.module = importing
    return edit


def _wrapped(
    source: Source, loop: cst.BaseStatement, head: str, part: tuple[int, int], rename: str | None
) -> cst.BaseStatement:
    assert isinstance(loop, cst.For | cst.While) and isinstance(loop.body, cst.IndentedBlock)
    lines = [line for line in loop.body.body if isinstance(line, cst.BaseStatement)]
    first, last = part
    start = lines[first]
    above = getattr(start, "leading_lines", ())
    inner = [start.with_changes(leading_lines=()), *lines[first + 1 : last + 1]]
    block = statement(head, source.module)
    assert isinstance(block, cst.With) and isinstance(block.body, cst.IndentedBlock)
    block = block.with_changes(leading_lines=above, body=block.body.with_changes(body=inner))
    body = loop.body.with_changes(body=[*lines[:first], block, *lines[last + 1 :]])
    if rename is not None:
        assert isinstance(loop, cst.For)
        return loop.with_changes(body=body, target=cst.Name(rename))
    return loop.with_changes(body=body)


def _accumulates(source: Source, loop: cst.For | cst.While) -> Accumulation | str | None:
    """How a loop accumulates; a sentence where that is not clear, None where it does not."""
    block = source.parent(loop)
    steps = training.steps_in(source, loop)
    if not isinstance(loop.body, cst.IndentedBlock) or not isinstance(
        block, cst.IndentedBlock | cst.Module
    ):
        return None
    if steps:
        return _every_nth(source, loop, steps)
    after = list(block.body)[list(block.body).index(loop) + 1 :]
    if not any(training.steps_in(source, line) for line in after):
        return None
    if not isinstance(loop, cst.For):
        return "how many micro-batches this loop has is not known"
    return _counted(source, loop)


def _counted(source: Source, loop: cst.For) -> Accumulation | str:
    """``for micro in range(N)`` with the optimizer's step after it."""
    unknown = "how many micro-batches this loop has is not known"
    if not m.matches(loop.iter, m.Call(func=m.Name("range"), args=[m.Arg(keyword=None, star="")])):
        return unknown
    assert isinstance(loop.iter, cst.Call) and isinstance(loop.body, cst.IndentedBlock)
    count = loop.iter.args[0].value
    if not isinstance(loop.target, cst.Name):
        return unknown
    if not _is_plain(count) or names_in(count) & training.bound_in(loop.body):
        return unknown
    name, rename = loop.target.value, None
    if name.startswith("_"):
        used = names_in(source.module)
        rename = next((n for n in NAMES if n not in used), None)
        if name in names_in(loop.body) or rename is None:
            return "the loop variable has no name that could be used"
        name = rename
    elif name in training.bound_in(loop.body):
        return f"{name} is bound anew inside the loop"
    if isinstance(count, cst.Integer):
        last = str(count.evaluated_value - 1)
    elif isinstance(count, cst.BinaryOperation | cst.BooleanOperation | cst.Comparison):
        last = f"({source.text(count)}) - 1"
    else:
        last = f"{source.text(count)} - 1"
    return Accumulation(f"{name} < {last}", len(loop.body.body), rename)


def _every_nth(
    source: Source, loop: cst.For | cst.While, steps: list[cst.Call]
) -> Accumulation | str | None:
    """``if (i + 1) % N == 0: optimizer.step()`` inside the loop."""
    assert isinstance(loop.body, cst.IndentedBlock)
    tests = [
        (i, line)
        for i, line in enumerate(loop.body.body)
        if isinstance(line, cst.If)
        and training.steps_in(source, line)
        and m.findall(line.test, m.Modulo())
    ]
    if len(tests) != 1:
        return None
    at, line = tests[0]
    home = source.function(loop)
    every = [c for c in training.optimizer_steps(source) if source.function(c) is home]
    if any(line.body not in source.parents(c) for c in every):
        return "another step of an optimizer would use gradients that were not reduced"
    before = training.bound_in(loop.body.body[:at])
    if not _is_plain(line.test) or names_in(line.test) & before:
        return "which micro-batch is the last one is not known when it begins"
    zero = m.Comparison(
        left=m.BinaryOperation(operator=m.Modulo()),
        comparisons=[m.ComparisonTarget(m.Equal(), m.Integer("0"))],
    )
    text = source.text(line.test)
    if m.matches(line.test, zero):
        assert isinstance(line.test, cst.Comparison)
        left_side = source.text(line.test.left)
        return Accumulation(f"{left_side} != 0", at)
    return Accumulation(f"not ({text})", at)


def _is_plain(node: cst.BaseExpression) -> bool:
    """Whether an expression only compares and counts: its value is the same a moment earlier."""
    calls = m.findall(node, m.Call())
    return isinstance(node, PLAIN) and all(m.matches(c, m.Call(func=m.Name("len"))) for c in calls)


def _holds(source: Source, line: cst.CSTNode, loop: cst.CSTNode, method: str) -> bool:
    return any(
        source.loop(c) is loop and any(p is line for p in source.parents(c))
        for c in source.method_calls(method)
    )


def _models(source: Source, loop: cst.CSTNode) -> dict[str, cst.Call] | str:
    """Wrapped models that the loop calls, each by its text; a sentence where that is not sure."""
    found: dict[str, cst.Call] = {}
    for call in m.findall(loop, m.Call(func=m.Name() | m.Attribute())):
        assert isinstance(call, cst.Call)
        wrapper = training.wrapper_of(source, call.func)
        if isinstance(wrapper, str):
            return wrapper
        if wrapper is not None:
            found[source.text(call.func)] = wrapper
    return found


def _calls(source: Source, line: cst.CSTNode, models: dict[str, cst.Call]) -> bool:
    return any(
        isinstance(c, cst.Call) and source.text(c.func) in models for c in m.findall(line, m.Call())
    )


def _reason(source: Source, loop: cst.For | cst.While, models: dict[str, cst.Call]) -> str | None:
    """Why the reduction of this loop must stay as it is."""
    if len(models) > 1:
        return "it trains several wrapped models"
    (wrapper,) = models.values()
    searches = argument(wrapper, "find_unused_parameters")
    if open_ended(wrapper) or (searches is not None and not is_constant(searches, "False")):
        return "what the last micro-batch leaves unused would never be reduced"
    static = argument(wrapper, "static_graph")
    if static is not None and not is_constant(static, "False"):
        return "static_graph expects each step to do the same"
    if source.method_calls("register_comm_hook"):
        return "a hook of this file decides how gradients are reduced"
    if training.leaves_early(loop, m.Break(), m.Continue(), m.Return(), m.Yield()):
        return "a pass of this loop can end early, before gradients are reduced"
    assert isinstance(loop.body, cst.IndentedBlock)
    apart = [line for line in loop.body.body if not training.steps_in(source, line)]
    if any(training.reads_gradients(line) for line in apart):
        return "it uses the gradients of each micro-batch"
    return None
