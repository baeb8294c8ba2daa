"""An optimizer that launches many small kernels: ``fused=True``."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from whyidle.fix.arguments import argument, is_constant, open_ended, with_value
from whyidle.fix.edits import Edit, Left, at, left, replacing
from whyidle.fix.source import Source

FUSED = ("Adam", "AdamW", "SGD")


class OptimizerFused:
    """Adds fused=True where nothing was said that excludes it."""

    NAME = "optimizer_fused"
    CAUSES = ("small_work.optimizer_launch_bound",)
    SAFE = False
    ON_REQUEST = True
    WHY = (
        "One kernel then updates all parameters, in another order of operations, so last digits "
        "may differ. Needs floating-point parameters; on a CPU torch 2.4."
    )

    def find(self, source: Source) -> Iterator[Edit | Left]:
        """Every optimizer of torch that has a fused kernel and does not use it."""
        names = [f"torch.optim.{place}{o}" for o in FUSED for place in ("", f"{o.lower()}.")]
        for call in source.calls_of(*names):
            fused = argument(call, "fused")
            if open_ended(call):
                yield left(source, call, "its arguments are decided elsewhere (* or **)")
            elif is_constant(fused, "True"):
                continue
            elif fused is not None and not _unset(fused):
                yield left(source, call, "fused is decided elsewhere")
            else:
                yield self._edit(source, call)

    @staticmethod
    def _edit(source: Source, call: cst.Call) -> Edit | Left:
        for name in ("foreach", "differentiable"):
            arg = argument(call, name)
            if arg is not None and not _unset(arg):
                return left(source, call, f"{name} is set, which excludes fused")
        edit = at(source, call, "fused=True")
        edit.nodes[call] = replacing(lambda c: with_value(c, argument(c, "fused"), "fused", "True"))
        return edit


def _unset(arg: cst.Arg) -> bool:
    return is_constant(arg, "None") or is_constant(arg, "False")
