"""``total += loss.item()`` in each step: summed on the device and read once after the loop."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
from libcst import matchers as m

from whyidle.fix.edits import Edit, Left, Lines, left, replacing, statement
from whyidle.fix.source import Source, called_method, names_in

ITEM = m.Call(func=m.Attribute(attr=m.Name("item")), args=[])


class LossItem:
    """Rewrites a sum that nothing in the loop reads; after the loop it is a float again."""

    NAME = "loss_item"
    CAUSES = ("small_work.host_sync_scalar_read",)
    SAFE = False
    WHY = (
        "Each .item() waits for all queued work. The sum is then kept in the precision of the loss "
        "instead of Python's, so its last digits may differ."
    )

    def find(self, source: Source) -> Iterator[Edit | Left]:
        """Every ``name += ... .item()`` in a loop; other reads in training loops are left."""
        for call in source.method_calls("item"):
            loop = source.loop(call)
            if loop is None or call.args:
                continue
            found = source.parent(call)
            while isinstance(found, cst.BinaryOperation):
                found = source.parent(found)
            if not isinstance(found, cst.AugAssign) or not isinstance(
                found.operator, cst.AddAssign
            ):
                yield left(source, call, "the value is used for more than a sum")
                continue
            reason = _reason(source, call, found, loop)
            yield _edit(source, call, found, loop) if reason is None else left(source, call, reason)


def _reason(
    source: Source, call: cst.Call, add: cst.AugAssign, loop: cst.For | cst.While
) -> str | None:
    if not isinstance(add.target, cst.Name):
        return "the sum is not a plain name"
    assert isinstance(call.func, cst.Attribute)
    loss = call.func.value
    if not isinstance(loss, cst.Name) or not _goes_backward(source, loss.value):
        return "it is not known to be the loss, a tensor"
    if len(m.findall(add.value, ITEM)) > 1:
        return "it sums several values at once"
    if loop.orelse is not None:
        return "its loop has an else"
    total = add.target.value
    if m.findall(source.function(add), m.Global() | m.Nonlocal()):
        return "the function changes names of another one"
    if sum(n.value == total for n in _names(loop)) > 1:
        return f"{total} is read inside the loop"
    if any(m.findall(loop, kind) for kind in (m.Return(), m.Yield(), m.Raise())):
        return "the loop can be left from within the function"
    if not _starts_at_zero(source, add, total, loop):
        return f"{total} does not start as 0.0 in this function"
    return None


def _names(node: cst.CSTNode) -> list[cst.Name]:
    return [n for n in m.findall(node, m.Name()) if isinstance(n, cst.Name)]


def _goes_backward(source: Source, name: str) -> bool:
    for call in source.calls:
        method = called_method(call)
        if method == "backward" and name in names_in(call):
            return True
    return False


def _starts_at_zero(
    source: Source, add: cst.AugAssign, total: str, loop: cst.For | cst.While
) -> bool:
    zero = m.Assign(targets=[m.AssignTarget(m.Name(total))], value=m.Float("0.0") | m.Float("0."))
    home = source.function(add)
    return any(
        source.function(one) is home and source.before(one, loop) for one in m.findall(home, zero)
    )


def _edit(source: Source, call: cst.Call, add: cst.AugAssign, loop: cst.For | cst.While) -> Edit:
    assert isinstance(add.target, cst.Name)
    total = add.target.value
    after = statement(f"{total} = float({total})\n", source.module)

    def detached(now: cst.Call) -> cst.Call:
        assert isinstance(now.func, cst.Attribute)
        return now.with_changes(func=now.func.with_changes(attr=cst.Name("detach")))

    edit = Edit(source.line(add), source.line(add), f"{total} is summed on the device")
    edit.nodes[call] = replacing(detached)
    edit.lines[loop] = lambda now: Lines((now, after))
    return edit
