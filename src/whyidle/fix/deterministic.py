"""Deterministic algorithms left on: switched off."""

from __future__ import annotations

from collections.abc import Iterator

from whyidle.fix.arguments import argument, is_constant
from whyidle.fix.edits import Edit, Left, at, gone, left
from whyidle.fix.source import Source
from whyidle.fix.switches import assigned, is_name, line_of

SET = ("torch.use_deterministic_algorithms", "torch.set_deterministic")
SWITCH = "torch.backends.cudnn.deterministic"


class Deterministic:
    """Removes the statement that switches them on."""

    NAME = "deterministic"
    CAUSES = ("blind_spots.debug_left_on",)
    SAFE = False
    ON_REQUEST = True
    WHY = (
        "Deterministic algorithms are slower, and results are the same in each run because of "
        "them. Without them two runs differ in last digits."
    )

    def find(self, source: Source) -> Iterator[Edit | Left]:
        """Every switch that is on."""
        for call in source.calls_of(*SET):
            mode = argument(call, "mode", 0)
            line = source.alone(call)
            if is_constant(mode, "False"):
                continue
            if not is_constant(mode, "True") or line is None:
                yield left(source, call, "what makes algorithms deterministic is decided elsewhere")
                continue
            edit = at(source, line, "deterministic algorithms no longer asked for")
            edit.lines[line] = gone
            yield edit
        for assign, value in assigned(source, SWITCH):
            line = line_of(source, assign)
            if is_name(value, "False"):
                continue
            if not is_name(value, "True") or line is None:
                yield left(source, assign, "what makes cuDNN deterministic is decided elsewhere")
                continue
            edit = at(source, line, "cuDNN is no longer deterministic")
            edit.lines[line] = gone
            yield edit
