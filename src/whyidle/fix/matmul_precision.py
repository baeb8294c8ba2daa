"""Matrix products in full FP32: allowed to use TF32 on tensor cores."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
from libcst import matchers as m

from whyidle.fix.arguments import argument, with_value
from whyidle.fix.edits import Edit, Left, Lines, at, left, replacing, statement
from whyidle.fix.source import Source

SET = "torch.set_float32_matmul_precision"
TF32 = m.Attribute(attr=m.Name("allow_tf32") | m.Name("fp32_precision"))


class MatmulPrecision:
    """Sets the precision 'high' where training starts, unless the file decides on it."""

    NAME = "matmul_precision"
    CAUSES = ("memory.fp32_no_tensor_cores",)
    SAFE = False
    ON_REQUEST = True
    WHY = (
        "Tensor cores then multiply FP32 matrices as TF32, which keeps 10 bits of the mantissa "
        "instead of 23, so results differ in their last digits."
    )

    def find(self, source: Source) -> Iterator[Edit | Left]:
        """The call that sets the precision, or the entry of a training script."""
        calls = source.calls_of(SET)
        for call in calls:
            given = argument(call, "precision", 0)
            value = given.value if given is not None else None
            if not isinstance(value, cst.SimpleString):
                yield left(source, call, "the precision is decided elsewhere")
            elif value.evaluated_value == "highest":
                edit = at(source, call, "precision 'high'")
                edit.nodes[call] = replacing(
                    lambda c: with_value(c, argument(c, "precision", 0), "precision", '"high"')
                )
                yield edit
        if calls or not source.method_calls("backward"):
            return
        for switch in m.findall(source.module, TF32):
            yield left(source, switch, "this file decides on TF32 itself")
            return
        yield self._added(source)

    @staticmethod
    def _added(source: Source) -> Edit | Left:
        guard, torch = source.guard(), source.alias("torch")
        if guard is None or torch is None or not isinstance(guard.body, cst.IndentedBlock):
            missing = "torch is not imported as a whole" if torch is None else "no `if __name__`"
            return Left(1, f"{missing}, so where to set the precision is not clear")
        first = guard.body.body[0]
        assert isinstance(first, cst.BaseStatement)
        new = statement(f'{torch}.set_float32_matmul_precision("high")\n', source.module)
        edit = at(source, first, "precision 'high' set where training starts")
        edit.lines[first] = lambda now: Lines((new, now))
        return edit
