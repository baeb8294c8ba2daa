"""Histograms and pictures logged in each training step: every 100 steps."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from whyidle.fix import training
from whyidle.fix.edits import Edit, Left, Lines, Rewrite, at, left
from whyidle.fix.seldom import EVERY, Counter, counter, decides, guarding, neighbours
from whyidle.fix.source import Source, called_method

HEAVY = (
    "add_histogram", "add_image", "add_images", "add_image_with_boxes", "add_figure", "add_video",
    "add_embedding", "add_mesh", "add_pr_curve",
)  # fmt: skip


class LogEvery:
    """Puts neighbouring heavy calls of a summary writer under one condition."""

    NAME = "log_every"
    CAUSES = ("blind_spots.logging_overhead",)
    SAFE = False
    WHY = (
        "Histograms and pictures are copied to the host and drawn there while training waits. "
        f"They are then logged every {EVERY} steps, so there are fewer of them."
    )

    def find(self, source: Source) -> Iterator[Edit | Left]:
        """Every heavy call that each step of a training loop reaches."""
        targets: list[tuple[cst.BaseStatement, cst.For | cst.While]] = []
        for name in HEAVY:
            for call in source.method_calls(name):
                found = _target(source, call)
                if isinstance(found, str):
                    yield left(source, call, found)
                elif found is not None and found not in targets:
                    targets.append(found)
        targets.sort(key=lambda pair: source.line(pair[0]))
        for group, loop in _together(source, targets):
            counted = counter(source, loop)
            if counted is None:
                yield left(source, group[0], "nothing plain counts the steps of this loop")
                continue
            edit = at(source, group[0], f"logged every {EVERY} steps")
            edit.last = source.last_line(group[-1])
            edit.lines |= guarding(source, f"{counted.name} % {EVERY} == 0", group)
            if counted.binding is not None:
                edit.lines[loop] = _binding(counted)
            yield edit


def _binding(counted: Counter) -> Rewrite:
    def bound(loop: cst.BaseStatement) -> Lines:
        assert isinstance(loop, cst.For) and counted.binding is not None
        return Lines((counted.binding(loop),))

    return bound


def _target(
    source: Source, call: cst.Call
) -> tuple[cst.BaseStatement, cst.For | cst.While] | str | None:
    """The statement to guard and the training loop that runs it; a sentence, or None for neither.

    A loop inside the training loop that only logs is guarded as a whole.
    """
    line: cst.BaseStatement | None = source.alone(call)
    inner = source.loop(call)
    if inner is None:
        return None
    loop = inner
    if not training.trains(source, inner):
        outer = source.loop(inner)
        if outer is None or not training.trains(source, outer):
            return None
        loop = outer
        if not _only_logs(source, inner):
            return "the loop around it does more than log"
        line = inner
    if line is None:
        return "this line does something else as well"
    reason = decides(source, line, loop)
    return reason if reason is not None else (line, loop)


def _only_logs(source: Source, loop: cst.For | cst.While) -> bool:
    lines = loop.body.body if isinstance(loop.body, cst.IndentedBlock) else ()
    return isinstance(loop, cst.For) and all(_logs(source, line) for line in lines)


def _logs(source: Source, line: cst.CSTNode) -> bool:
    calls = [c for c in source.calls if called_method(c) in HEAVY]
    if isinstance(line, cst.If) and isinstance(line.body, cst.IndentedBlock):
        return line.orelse is None and all(_logs(source, one) for one in line.body.body)
    return any(source.alone(c) is line for c in calls)


def _together(
    source: Source, targets: list[tuple[cst.BaseStatement, cst.For | cst.While]]
) -> list[tuple[list[cst.BaseStatement], cst.For | cst.While]]:
    """Targets that follow one another directly, as one group."""
    groups: list[tuple[list[cst.BaseStatement], cst.For | cst.While]] = []
    for line, loop in targets:
        lines = neighbours(source, line)
        place = next((i for i, one in enumerate(lines) if one is line), 0)
        if groups and place and lines[place - 1] is groups[-1][0][-1]:
            groups[-1][0].append(line)
        else:
            groups.append(([line], loop))
    return groups
