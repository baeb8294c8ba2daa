"""What a file shows of its training: which loops train, which models are wrapped for ranks."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst
from libcst import matchers as m

from whyidle.fix.arguments import argument
from whyidle.fix.optimizer_foreach import optimizer_names
from whyidle.fix.source import Loop, Source, called_method
from whyidle.fix.unused_parameters import WRAPPER

DEPTH = 3
"""How many calls back a parameter is followed to what is passed for it."""


def trains(source: Source, loop: cst.For | cst.While) -> bool:
    """Whether each pass of a loop runs a backward pass or updates weights."""
    calls = [*source.method_calls("backward"), *optimizer_steps(source)]
    return any(source.loop(call) is loop for call in calls)


def optimizer_steps(source: Source) -> list[cst.Call]:
    """Calls of an optimizer's step(), by itself or through a gradient scaler."""
    optimizers = _assigned_to(source, optimizer_names())
    found = []
    for call in source.method_calls("step"):
        assert isinstance(call.func, cst.Attribute)
        owner = source.text(call.func.value)
        named = "optim" in owner.split(".")[-1].lower() or owner.split(".")[-1] == "opt"
        scaled = bool(call.args) and "optim" in source.text(call.args[0].value).lower()
        if owner in optimizers or named or scaled:
            found.append(call)
    return found


def _assigned_to(source: Source, names: Sequence[str]) -> set[str]:
    found = set()
    for call in source.calls_of(*names):
        assign = source.parent(call)
        if isinstance(assign, cst.Assign):
            found |= {source.text(t.target) for t in assign.targets}
    return found


def bound_in(node: cst.CSTNode | Sequence[cst.CSTNode]) -> set[str]:
    """Names that statements bind: by assignment, loop, ``with ... as``, import or definition."""
    if not isinstance(node, cst.CSTNode):
        return set().union(*(bound_in(one) for one in node)) if node else set()
    targets: list[cst.CSTNode] = []
    for one in m.findall(
        node,
        m.AssignTarget() | m.AugAssign() | m.AnnAssign() | m.NamedExpr() | m.For() | m.CompFor(),
    ):
        targets.append(one.target)  # type: ignore[attr-defined]
    targets += m.findall(node, m.AsName())
    found = {n.value for t in targets for n in m.findall(t, m.Name()) if isinstance(n, cst.Name)}
    for made in m.findall(node, m.FunctionDef() | m.ClassDef()):
        assert isinstance(made, cst.FunctionDef | cst.ClassDef)
        found.add(made.name.value)
    return found


def leaves_early(loop: cst.For | cst.While, *kinds: m.BaseMatcherNode) -> bool:
    """Whether a loop holds one of these statements, at any depth."""
    return any(m.findall(loop.body, kind) for kind in kinds)


def wrapper_of(source: Source, node: cst.BaseExpression, depth: int = 0) -> cst.Call | str | None:
    """The DistributedDataParallel(...) that an expression stands for.

    A sentence where it may also be something else; None where nothing shows that it is one.
    """
    text, home = source.text(node), source.function(node)
    if isinstance(node, cst.Name) and _is_parameter(home, text):
        return _passed(source, home, text, depth)
    assigns = [
        a
        for a in _assignments(source, text)
        if isinstance(node, cst.Attribute) or source.function(a) in (home, source.module)
    ]
    own = [a for a in assigns if source.function(a) is home] or assigns
    if not own:
        return None
    last = own[-1]
    value = last.value
    if not isinstance(value, cst.Call) or source.meaning(value.func) not in WRAPPER:
        calls = m.findall(value, m.Call()) if value is not None else ()
        inside = any(isinstance(c, cst.Call) and source.meaning(c.func) in WRAPPER for c in calls)
        return f"{text} may be something else than a wrapped model" if inside else None
    guard = source.guard()
    for around in source.within_function(last):
        if isinstance(around, cst.If | cst.Try | cst.Else) and around is not guard:
            return f"{text} is wrapped only in some runs"
    return value


def _assignments(source: Source, text: str) -> list[cst.Assign | cst.AnnAssign]:
    found = []
    for one in m.findall(source.module, m.Assign() | m.AnnAssign()):
        assert isinstance(one, cst.Assign | cst.AnnAssign)
        targets = [t.target for t in one.targets] if isinstance(one, cst.Assign) else [one.target]
        if any(source.text(t) == text for t in targets):
            found.append(one)
    return found


def _is_parameter(home: cst.CSTNode, name: str) -> bool:
    return isinstance(home, cst.FunctionDef) and any(
        p.name.value == name for p in (*home.params.params, *home.params.kwonly_params)
    )


def _passed(source: Source, home: cst.CSTNode, name: str, depth: int) -> cst.Call | str | None:
    """The wrapper that every call of a function of this file passes for one of its parameters."""
    assert isinstance(home, cst.FunctionDef)
    places = [p.name.value for p in home.params.params]
    if depth >= DEPTH or home.name.value in bound_in(home.body) or places[:1] == ["self"]:
        return None
    if name in bound_in(home.body):
        return f"{name} is bound anew in {home.name.value}()"
    calls = [c for c in source.calls if m.matches(c.func, m.Name(home.name.value))]
    position = places.index(name) if name in places else None
    found: cst.Call | str | None = None
    for call in calls:
        arg = argument(call, name, position)
        given = wrapper_of(source, arg.value, depth + 1) if arg is not None else None
        if not isinstance(given, cst.Call):
            return given or (f"{name} is not wrapped in each call" if found is not None else None)
        found = given
    return found


def around_within(source: Source, node: cst.CSTNode, loop: cst.CSTNode) -> list[cst.CSTNode]:
    """Nodes between a node and the loop that runs it, the nearest first."""
    found = []
    for around in source.within_function(node):
        if around is loop:
            break
        found.append(around)
    return found


def loops_of(source: Source) -> list[cst.For | cst.While]:
    """All loops of the file."""
    kinds = m.findall(source.module, m.For() | m.While())
    return [one for one in kinds if isinstance(one, Loop)]


def steps_in(source: Source, node: cst.CSTNode) -> list[cst.Call]:
    """Calls of an optimizer's step() inside a node."""
    return [c for c in optimizer_steps(source) if any(p is node for p in source.parents(c))]


def backwards_of(source: Source, loop: cst.CSTNode) -> list[cst.Call]:
    """Backward passes that each pass of this loop runs itself, in no loop further inside."""
    return [c for c in source.method_calls("backward") if source.loop(c) is loop]


def reads_gradients(loop: cst.CSTNode) -> bool:
    """Whether something in a node reads or changes gradients."""
    clips = m.Attribute(attr=m.Name("grad")) | m.Name(
        value=m.MatchIfTrue(lambda name: name.startswith("clip_grad") or name == "unscale_")
    )
    return bool(m.findall(loop, clips))


def receiver(call: cst.Call) -> cst.BaseExpression | None:
    """``something`` of ``something.method(...)``."""
    return call.func.value if called_method(call) and isinstance(call.func, cst.Attribute) else None
