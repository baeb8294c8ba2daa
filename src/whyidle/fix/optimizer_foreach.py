"""``foreach=False`` of an optimizer: removed, so that torch may take its faster loop."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from whyidle.fix.arguments import argument, is_constant, open_ended, without
from whyidle.fix.edits import Edit, Left, at, left, replacing
from whyidle.fix.source import Source

OPTIMIZERS = (
    "ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop",
    "SGD",
)  # fmt: skip


def optimizer_names() -> tuple[str, ...]:
    """Optimizers of torch by each name that they are imported by."""
    return tuple(
        name for o in OPTIMIZERS for name in (f"torch.optim.{o}", f"torch.optim.{o.lower()}.{o}")
    )


class OptimizerForeach:
    """Removes foreach=False, and fused=False beside it, which would keep the slow loop."""

    NAME = "optimizer_foreach"
    CAUSES = ("small_work.optimizer_launch_bound",)
    SAFE = True
    WHY = (
        "Without the argument torch updates parameters on a GPU in groups instead of one by one; "
        "it needs about the size of the parameters more memory during the update."
    )

    def find(self, source: Source) -> Iterator[Edit | Left]:
        """Every optimizer of torch that was told not to."""
        for call in source.calls_of(*optimizer_names()):
            foreach = argument(call, "foreach")
            if open_ended(call):
                yield left(source, call, "its arguments are decided elsewhere (* or **)")
            elif foreach is None or is_constant(foreach, "True") or is_constant(foreach, "None"):
                continue
            elif not is_constant(foreach, "False"):
                yield left(source, call, "foreach is decided elsewhere")
            else:
                yield self._edit(source, call)

    @staticmethod
    def _edit(source: Source, call: cst.Call) -> Edit | Left:
        fused = argument(call, "fused")
        if is_constant(argument(call, "differentiable"), "True"):
            return left(source, call, "a differentiable optimizer has no faster loop")
        if fused is not None and not is_constant(fused, "False") and not is_constant(fused, "None"):
            return left(source, call, "fused is set or decided elsewhere")
        edit = at(source, call, "foreach=False removed")
        edit.nodes[call] = replacing(lambda c: without(c, "foreach", "fused"))
        return edit
