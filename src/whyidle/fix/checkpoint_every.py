"""A checkpoint in each training step: written every 100 steps and after the last one."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
from libcst import matchers as m

from whyidle.fix import training
from whyidle.fix.arguments import argument
from whyidle.fix.edits import Edit, Left, Lines, at, left
from whyidle.fix.seldom import EVERY, Counter, counter, decides, guarding, neighbours
from whyidle.fix.source import Source, names_in

SAVE = ("torch.save", "torch.serialization.save")


class CheckpointEvery:
    """Puts torch.save under a condition; what was saved last is saved as before."""

    NAME = "checkpoint_every"
    CAUSES = ("blind_spots.checkpoint_pause",)
    SAFE = False
    WHY = (
        f"Training stands still while a checkpoint is written. One is then written every {EVERY} "
        "steps and after the last; a run that stops in between loses more work."
    )

    def find(self, source: Source) -> Iterator[Edit | Left]:
        """Every torch.save that each step of a training loop reaches."""
        for call in source.calls_of(*SAVE):
            loop = source.loop(call)
            if loop is None or not training.trains(source, loop):
                continue
            found = _one(source, call, loop)
            yield found if isinstance(found, Edit) else left(source, call, found)


def _one(source: Source, call: cst.Call, loop: cst.For | cst.While) -> Edit | str:
    line = source.alone(call)
    if line is None:
        return "this line does something else as well"
    reason = decides(source, call, loop)
    if reason is not None:
        return reason
    target = _whole(source, line)
    if target is None:
        return "its with statement does more than save"
    if _read_again(source, call, target, loop):
        return "the file that it saves is used in the loop"
    counted = counter(source, loop)
    if counted is None:
        return "nothing plain counts the steps of this loop"
    lines = [*_made_for(source, target, loop), target]
    every = f"{counted.name} % {EVERY} == 0"
    after = _after(source, loop, lines)
    last = None if training.leaves_early(loop, m.Break(), m.Return()) else counted.last
    if last is None and after is None:
        return "the checkpoint of the last step could not be kept in a plain way"
    edit = at(source, target, f"saved every {EVERY} steps and at the end")
    test = f"{every} or {last}" if last is not None else every
    edit.lines |= guarding(source, test, lines)
    again = () if last is not None else after or ()
    if again or counted.binding is not None:
        edit.lines[loop] = lambda now: Lines((_counting(now, counted), *again))
    return edit


def _read_again(
    source: Source, call: cst.Call, target: cst.BaseStatement, loop: cst.For | cst.While
) -> bool:
    """Whether another statement of the loop names the saved file, as to copy the best one."""
    place = argument(call, "f", 1)
    if place is None or not isinstance(place.value, cst.Name | cst.Attribute | cst.SimpleString):
        return False
    text = source.text(place.value)
    kinds = m.findall(loop.body, m.Arg(value=m.Name() | m.Attribute() | m.SimpleString()))
    uses = [a for a in kinds if isinstance(a, cst.Arg) and source.text(a.value) == text]
    return any(target not in source.parents(use) for use in uses)


def _counting(loop: cst.BaseStatement, counted: Counter) -> cst.BaseStatement:
    if counted.binding is None:
        return loop
    assert isinstance(loop, cst.For)
    return counted.binding(loop)


def _whole(source: Source, line: cst.BaseStatement) -> cst.BaseStatement | None:
    """The statement to guard: the save, or the ``with open(...)`` that holds nothing else."""
    block = source.parent(line)
    around = source.parent(block) if block is not None else None
    if not isinstance(around, cst.With):
        return line
    return _whole(source, around) if len(neighbours(source, line)) == 1 else None


def _made_for(
    source: Source, target: cst.BaseStatement, loop: cst.For | cst.While
) -> list[cst.BaseStatement]:
    """The statement just above that makes what is saved, and is used for nothing else."""
    lines = neighbours(source, target)
    place = next(i for i, line in enumerate(lines) if line is target)
    above = lines[place - 1] if place else None
    plain = m.SimpleStatementLine(body=[m.Assign(targets=[m.AssignTarget(m.Name())])])
    if above is None or not m.matches(above, plain):
        return []
    (name,) = training.bound_in(above)
    uses = m.findall(source.function(loop), m.Name(name))
    inside = [*m.findall(above, m.Name(name)), *m.findall(target, m.Name(name))]
    return [above] if len(uses) == len(inside) > 1 else []


def _after(
    source: Source, loop: cst.For | cst.While, lines: list[cst.BaseStatement]
) -> tuple[cst.BaseStatement, ...] | None:
    """Statements that save once more after the loop; none where one does so already.

    None where that may not work: they use what only the loop binds, or the loop is left.
    """
    block = neighbours(source, loop)
    later = block[next(i for i, one in enumerate(block) if one is loop) + 1 :] if block else []
    text = source.text(lines[-1]).strip()
    if any(source.text(one).strip() == text for one in _below(source, loop, later)):
        return ()
    if loop.orelse is not None or training.leaves_early(loop, m.Return(), m.Yield()):
        return None
    bound = training.bound_in(loop.body) - training.bound_in(lines)
    bound |= names_in(loop.target) if isinstance(loop, cst.For) else set()
    if bound & set().union(*(names_in(line) for line in lines)) or not block:
        return None
    copies = [line.deep_clone() for line in lines]
    block_of = source.parent(lines[-1])
    around = source.parent(block_of) if block_of is not None else None
    if around is loop:
        return tuple(one.with_changes(leading_lines=()) for one in copies)
    if isinstance(around, cst.If) and isinstance(around.body, cst.IndentedBlock):
        body = around.body.with_changes(body=copies, footer=())
        return (around.with_changes(body=body, orelse=None, leading_lines=()),)
    return None


def _below(
    source: Source, loop: cst.CSTNode, later: list[cst.BaseStatement]
) -> list[cst.BaseStatement]:
    """Statements that follow the loop, and those that follow the ``with`` around it."""
    block = source.parent(loop)
    around = source.parent(block) if block is not None else None
    if not isinstance(around, cst.With):
        return later
    lines = neighbours(source, around)
    place = next((i for i, one in enumerate(lines) if one is around), len(lines))
    return [*later, *_below(source, around, lines[place + 1 :])]
