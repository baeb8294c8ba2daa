"""Batches copied to the device from pageable memory: pinned, and copied without waiting."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
from libcst import matchers as m

from whyidle.fix import loaders
from whyidle.fix.arguments import argument, is_constant, open_ended, with_keyword, with_value
from whyidle.fix.edits import Edit, Left, at, left, replacing
from whyidle.fix.source import Source, called_method, names_in

MOVES = ("to", "cuda")
PLACES = ("device", "gpu", "cuda", "rank")


class PinnedCopies:
    """Adds pin_memory=True to a loader and non_blocking=True where its batches move."""

    NAME = "pinned_copies"
    CAUSES = ("data_loading.h2d_copy_blocking",)
    SAFE = True
    WHY = (
        "A copy from pinned memory runs beside other work. Kernels wait for it as before; the host "
        "does not. Pinned batches take host memory that cannot be swapped out."
    )

    def find(self, source: Source) -> Iterator[Edit | Left]:
        """Every loop over a loader of this file whose batches are moved to a device."""
        moved: dict[cst.Call, list[cst.Call]] = {}
        for loop in m.findall(source.module, m.For()):
            assert isinstance(loop, cst.For)
            over, target = loaders.loop_target(loop)
            loader = source.bound(over) if isinstance(over, cst.Name) else over
            if isinstance(loader, cst.Call) and source.meaning(loader.func) in loaders.LOADER:
                moved.setdefault(loader, []).extend(_moves(source, loop, names_in(target)))
        for call in source.calls_of(*loaders.LOADER):
            found = self._one(source, call, moved.get(call, []))
            if found is not None:
                yield found

    @staticmethod
    def _one(source: Source, call: cst.Call, moves: list[cst.Call]) -> Edit | Left | None:
        pin = argument(call, "pin_memory", loaders.PIN)
        pinned = is_constant(pin, "True")
        slow = [c for c in moves if argument(c, "non_blocking", _position(c)) is None]
        if pinned and not slow:
            return None
        if open_ended(call):
            return left(source, call, "its arguments are decided elsewhere (* or **)")
        if pin is not None and not pinned and not is_constant(pin, "False"):
            return left(source, call, "pin_memory is decided elsewhere")
        if not moves:
            return left(source, call, "no loop here is seen to move its batches to a device")
        if _makes_other(call):
            why = "its batches may be no tensors, of which not all take pin_memory or non_blocking"
            return left(source, call, why)
        edit = at(source, call, "pin_memory=True and non_blocking=True")
        if not pinned:
            edit.nodes[call] = replacing(
                lambda c: with_value(
                    c, argument(c, "pin_memory", loaders.PIN), "pin_memory", "True"
                )
            )
        for move in slow:
            edit.nodes[move] = replacing(lambda c: with_keyword(c, "non_blocking", "True"))
        return edit


def _makes_other(call: cst.Call) -> bool:
    """Whether batches are made otherwise than by torch, which gives tensors."""
    made = argument(call, "collate_fn", 6)
    whole = argument(call, "batch_size", 1)
    return (made is not None and not is_constant(made, "None")) or is_constant(whole, "None")


def _position(call: cst.Call) -> int:
    return 1 if called_method(call) == "cuda" else 2


def _moves(source: Source, loop: cst.For, names: set[str]) -> list[cst.Call]:
    """Calls in a loop that move what it binds, and nothing else, to a device."""
    found = []
    for call in m.findall(loop.body, m.Call(func=m.Attribute(value=m.Name()))):
        assert isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute)
        assert isinstance(call.func.value, cst.Name)
        if call.func.value.value not in names or called_method(call) not in MOVES:
            continue
        plain = len(call.args) <= 1 and not open_ended(call)
        known = {a.keyword.value for a in call.args if a.keyword} <= {"device", "non_blocking"}
        to_cuda = called_method(call) == "cuda"
        if (to_cuda or (call.args and _is_device(source, call.args[0].value))) and (
            (plain and known) or argument(call, "non_blocking") is not None
        ):
            found.append(call)
    return found


def _is_device(source: Source, value: cst.BaseExpression) -> bool:
    if isinstance(value, cst.SimpleString):
        return str(value.evaluated_value).startswith("cuda")
    if not isinstance(value, cst.Name | cst.Attribute):
        return False
    last = value.value if isinstance(value, cst.Name) else value.attr.value
    meaning = source.meaning(value) or ""
    return not meaning.startswith("torch.") and any(p in last.lower() for p in PLACES)
