"""``zero_grad(set_to_none=False)``: back to the default, which fills nothing with zeros."""

from __future__ import annotations

from collections.abc import Iterator

from libcst import matchers as m

from whyidle.fix.arguments import argument, is_constant, without
from whyidle.fix.edits import Edit, Left, at, left, replacing
from whyidle.fix.source import Source


class ZeroGrad:
    """Removes the argument where nothing in the file reads a gradient."""

    NAME = "zero_grad"
    CAUSES = (
        "small_work.optimizer_launch_bound",
        "small_work.launch_bound_small_kernels",
        "small_work.kernel_launch_latency",
    )
    SAFE = False
    WHY = (
        "Gradients that are None need no kernel to fill them, and the first sum becomes a store. "
        "Parameters that get no gradient in a step are then skipped; with zeros momentum and "
        "weight decay still move them."
    )

    def find(self, source: Source) -> Iterator[Edit | Left]:
        """Every zero_grad that was told to keep tensors."""
        reads = bool(m.findall(source.module, m.Attribute(attr=m.Name("grad"))))
        for call in source.method_calls("zero_grad"):
            kept = argument(call, "set_to_none")
            if kept is None or is_constant(kept, "True"):
                continue
            if not is_constant(kept, "False"):
                yield left(source, call, "set_to_none is decided elsewhere")
            elif reads:
                yield left(source, call, "this file reads .grad, which would be None")
            else:
                edit = at(source, call, "set_to_none=False removed")
                edit.nodes[call] = replacing(lambda c: without(c, "set_to_none"))
                yield edit
