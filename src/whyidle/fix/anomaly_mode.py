"""``torch.autograd.set_detect_anomaly(True)`` or ``detect_anomaly()`` left on: removed."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from whyidle.fix.arguments import argument, is_constant, open_ended
from whyidle.fix.edits import Edit, Left, Lines, at, gone, left
from whyidle.fix.source import Source

NAME = "anomaly_mode"
CAUSES = ("blind_spots.debug_left_on",)
SAFE = True
WHY = (
    "Anomaly detection checks every gradient and keeps a stack for every operator; it finds faults "
    "and changes no result."
)

PLACES = ("torch.autograd", "torch.autograd.anomaly_mode")
SET = tuple(f"{place}.set_detect_anomaly" for place in PLACES)
DETECT = tuple(f"{place}.detect_anomaly" for place in PLACES)


class AnomalyMode:
    """Removes the statement, or the ``with`` around a block."""

    NAME, CAUSES, SAFE, WHY = NAME, CAUSES, SAFE, WHY

    def find(self, source: Source) -> Iterator[Edit | Left]:
        """Every switch that is on."""
        for call in source.calls_of(*SET, *DETECT):
            found = _one(source, call)
            if found is not None:
                yield found


def _one(source: Source, call: cst.Call) -> Edit | Left | None:
    if source.meaning(call.func) in SET:
        mode = argument(call, "mode", 0)
        if is_constant(mode, "False"):
            return None
        if open_ended(call) or not is_constant(mode, "True"):
            return left(source, call, "what switches anomaly detection on is decided elsewhere")
    if any(_decides(source, around) for around in source.within_function(call)):
        return left(source, call, "a condition or the handling of errors decides on it")
    line = source.alone(call)
    if line is not None:
        edit = at(source, line, "anomaly detection removed")
        edit.lines[line] = gone
        return edit
    item = source.parent(call)
    block = source.parent(item) if isinstance(item, cst.WithItem) else None
    if not isinstance(block, cst.With) or not isinstance(item, cst.WithItem):
        return left(source, call, "the result of this call is used")
    if item.asname or len(block.items) > 1 or not isinstance(block.body, cst.IndentedBlock):
        return left(source, call, "this with statement does more than detect anomalies")
    edit = Edit(source.line(block), source.line(block), "anomaly detection removed")
    edit.lines[block] = _unwrapped
    return edit


def _decides(source: Source, around: cst.CSTNode) -> bool:
    return isinstance(around, cst.If | cst.Else | cst.Try | cst.Match) and (
        around is not source.guard()
    )


def _unwrapped(block: cst.BaseStatement) -> Lines:
    """The statements of a ``with`` without it; its comments stay."""
    assert isinstance(block, cst.With) and isinstance(block.body, cst.IndentedBlock)
    first, *rest = block.body.body
    above = [*block.leading_lines]
    if block.body.header.comment is not None:
        above.append(cst.EmptyLine(comment=block.body.header.comment))
    own = getattr(first, "leading_lines", ())
    started = first.with_changes(leading_lines=[*above, *own])
    body = [line for line in (started, *rest) if isinstance(line, cst.BaseStatement)]
    return Lines(body, tuple(block.body.footer))
