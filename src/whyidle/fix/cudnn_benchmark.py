"""``torch.backends.cudnn.benchmark``: off where shapes change, on where they are fixed."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
from libcst import matchers as m

from whyidle.fix.edits import Edit, Left, Lines, at, left, statement
from whyidle.fix.source import Source
from whyidle.fix.switches import assigned, is_name

SWITCH = "torch.backends.cudnn.benchmark"
CONVOLUTIONS = m.Attribute(
    attr=m.Name(value=m.MatchRegex(r"^(Lazy)?Conv(Transpose)?[123]d$|^conv[123]d$"))
) | m.Name(value=m.MatchRegex(r"^(Lazy)?Conv(Transpose)?[123]d$"))


class CudnnBenchmark:
    """Switches the search off where a diagnosis found it; asked for by name, switches it on."""

    NAME = "cudnn_benchmark"
    CAUSES = ("model_design.cudnn_benchmark_mismatch",)
    SAFE = False
    ON_REQUEST = True
    WHY = (
        "The search for the fastest convolution pays for fixed shapes and costs where they change. "
        "Another algorithm adds up in another order, so last digits may differ."
    )

    def find(self, source: Source) -> Iterator[Edit | Left]:
        """Assignments to the switch, or the entry of a script with convolutions."""
        off = bool(set(self.CAUSES) & source.said.causes)
        found = list(assigned(source, SWITCH))
        for assign, value in found:
            if not is_name(value, "True") and not is_name(value, "False"):
                yield left(source, assign, "what switches the search on is decided elsewhere")
            elif is_name(value, "True") and off:
                edit = at(source, assign, "the search is off, since shapes change")
                edit.nodes[value] = lambda _: cst.Name("False")
                yield edit
            elif is_name(value, "False") and not off:
                yield left(source, assign, "this file switches the search off by itself")
        if not found and not off and m.findall(source.module, CONVOLUTIONS):
            yield self._added(source)

    @staticmethod
    def _added(source: Source) -> Edit | Left:
        guard, torch = source.guard(), source.alias("torch")
        if guard is None or torch is None or not isinstance(guard.body, cst.IndentedBlock):
            return Left(1, "where to switch the search on is not clear")
        first = guard.body.body[0]
        assert isinstance(first, cst.BaseStatement)
        new = statement(f"{torch}.backends.cudnn.benchmark = True\n", source.module)
        edit = at(source, first, "the fastest convolution is searched for")
        edit.lines[first] = lambda now: Lines((new, now))
        return edit
