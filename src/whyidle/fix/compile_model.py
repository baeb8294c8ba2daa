"""A model of many small kernels: ``model.compile()`` once it is made."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
from libcst import matchers as m

from whyidle.fix.arguments import argument
from whyidle.fix.edits import Edit, Left, Lines, Rewrite, at, left, statement
from whyidle.fix.optimizer_foreach import optimizer_names
from whyidle.fix.source import Source, called_method
from whyidle.fix.unused_parameters import WRAPPER

BASES = ("torch.nn.", "torchvision.models.", "transformers.", "timm.")
MOVES = ("to", "cuda", "train", "float", "bfloat16", "requires_grad_")


class CompileModel:
    """Compiles the model in place, which keeps the names of its weights in checkpoints."""

    NAME = "compile"
    CAUSES = (
        "small_work.launch_bound_small_kernels",
        "small_work.kernel_launch_latency",
        "small_work.python_between_ops",
        "model_design.memory_bound_ops",
    )
    SAFE = False
    ON_REQUEST = True
    WHY = (
        "torch.compile fuses operators and launches fewer kernels; the first steps take seconds to "
        "minutes, each new shape compiles again, and last digits may differ. Needs torch 2.2."
    )

    def find(self, source: Source) -> Iterator[Edit | Left]:
        """Every model whose parameters an optimizer of torch takes."""
        compiles = [c for c in source.calls if called_method(c) == "compile"]
        if any(source.meaning(c.func) != "re.compile" for c in compiles):
            return
        if "torch.compile" in (source.meaning(c.func) for c in source.calls):
            return
        done: set[tuple[str, cst.CSTNode]] = set()
        for call in source.calls_of(*optimizer_names()):
            model = _model(call)
            if model is None:
                yield left(source, call, "its parameters are not those of one plain model")
                continue
            where = (source.text(model), source.function(call))
            if where not in done:
                done.add(where)
                yield _one(source, call, model)


def _model(call: cst.Call) -> cst.Name | cst.Attribute | None:
    given = argument(call, "params", 0)
    if given is None or not isinstance(given.value, cst.Call):
        return None
    method = given.value.func
    if not isinstance(method, cst.Attribute) or method.attr.value != "parameters":
        return None
    return method.value if isinstance(method.value, cst.Name | cst.Attribute) else None


def _one(source: Source, call: cst.Call, model: cst.Name | cst.Attribute) -> Edit | Left:
    text, home = source.text(model), source.function(call)
    made = [
        a
        for a in m.findall(home, m.Assign(targets=[m.AssignTarget()]))
        if isinstance(a, cst.Assign)
        and source.text(a.targets[0].target) == text
        and source.function(a) is home
    ]
    if not made:
        return left(source, call, f"{text} is made elsewhere")
    if not all(_is_model(source, a.value, text) for a in made):
        return left(source, made[0], f"{text} is not known to be a torch.nn.Module")
    moves = [
        c
        for name in MOVES
        for c in source.method_calls(name)
        if isinstance(c.func, cst.Attribute)
        and source.text(c.func.value) == text
        and source.function(c) is home
        and source.alone(c) is not None
        and source.loop(c) is None
        and source.before(made[-1], c)
        and source.before(c, call)
    ]
    last = source.statement(moves[-1] if moves else made[-1])
    while True:
        block = source.parent(last)
        around = source.parent(block) if block is not None else None
        if isinstance(around, cst.Else):
            around = source.parent(around)
        if not isinstance(around, cst.If) or around is source.guard():
            break
        last = around
    if source.loop(last) is not None:
        return left(source, last, f"{text} is made anew in each pass of a loop")
    new = statement(f"{text}.compile()\n", source.module)
    edit = at(source, last, f"{text} is compiled in place")
    edit.lines[last] = _below(new)
    return edit


def _below(new: cst.BaseStatement) -> Rewrite:
    return lambda now: Lines((now, new))


def _is_model(source: Source, value: cst.BaseExpression, text: str) -> bool:
    """Whether an expression is a module for sure: made by torch, a class here, or moved."""
    if not isinstance(value, cst.Call):
        return False
    if called_method(value) in MOVES and isinstance(value.func, cst.Attribute):
        inner = value.func.value
        return source.text(inner) == text or _is_model(source, inner, text)
    name = source.meaning(value.func) or ""
    if name in WRAPPER or name.startswith(BASES):
        return True
    kind = source.class_of(value.func)
    return kind is not None and any(
        (source.meaning(base.value) or "").startswith(BASES) for base in kind.bases
    )
