"""Calls that an edit made too long for the file: spread over lines in the file's own style."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import libcst as cst
from libcst import matchers as m
from libcst import metadata as md

LIMITS = (79, 88, 100, 120)
NEAR = 5
"""A file whose longest line ends this close below a limit keeps to that limit."""
USUAL = 100
MANY = 30
"""Lines from which on a file shows what it keeps to."""


def width_of(text: str) -> int:
    """Columns that a file keeps to: the limit that its longest lines come close to, else 100."""
    lengths = sorted(len(line.rstrip()) for line in text.splitlines())
    if len(lengths) < MANY:
        return USUAL
    longest = lengths[-1 - len(lengths) // 100]
    return next((one for one in LIMITS if one - NEAR <= longest <= one), USUAL)


def wrapped(before: str, module: cst.Module, edited: Collection[str], width: int) -> cst.Module:
    """The module with those of the ``edited`` calls (by their code) wrapped that got too long.

    Lines that were there ``before`` stay as they are, however long.
    """
    known = set(before.splitlines())
    tried: set[tuple[str, int]] = set()
    aligns = _aligns(module) if edited else False
    while True:
        lines = module.code.splitlines()
        long = {i for i, line in enumerate(lines, 1) if len(line) > width and line not in known}
        found = _found(module, edited, long, tried) if long else {}
        if not found:
            return module
        new: dict[cst.CSTNode, cst.CSTNode] = {}
        for call, (start, column) in found.items():
            tried.add((module.code_for_node(call), start))
            new[call] = _spread(module, call, lines[start - 1], width, column if aligns else None)
        module = cst.parse_module(module.visit(_Swap(new)).bytes)


class _Swap(cst.CSTTransformer):
    """Puts new nodes in the place of others, which do not lie in one another."""

    def __init__(self, new: dict[cst.CSTNode, cst.CSTNode]) -> None:
        super().__init__()
        self._new = new

    def on_leave(self, original_node: cst.CSTNodeT, updated_node: cst.CSTNodeT) -> Any:
        """The new node, where there is one."""
        return self._new.get(original_node, updated_node)


def _found(
    module: cst.Module, edited: Collection[str], long: set[int], tried: set[tuple[str, int]]
) -> dict[cst.Call, tuple[int, int]]:
    """Edited calls on lines that are too long, by the line and column that they begin at.

    Of calls that share a line, the first.
    """
    wrapper = md.MetadataWrapper(module, unsafe_skip_copy=True)
    places = wrapper.resolve(md.PositionProvider)
    squeezed = {_squeezed(code) for code in edited}
    found: dict[cst.Call, tuple[int, int]] = {}
    taken: set[int] = set()
    for call in m.findall(module, m.Call()):
        assert isinstance(call, cst.Call)
        start, end = places[call].start, places[call].end
        rows = set(range(start.line, end.line + 1))
        if not call.args or not long & rows or taken & rows:
            continue
        code = module.code_for_node(call)
        if (code, start.line) not in tried and _squeezed(code) in squeezed:
            found[call] = (start.line, start.column)
            taken |= rows
    return found


def _squeezed(code: str) -> str:
    return "".join(code.split()).replace(",)", ")")


def _spread(
    module: cst.Module, call: cst.Call, line: str, width: int, column: int | None
) -> cst.Call:
    """The call over several lines: on one line inside its brackets where that fits, or one each.

    A call that is over several lines already only breaks where it got too long. ``column``: where
    it begins, in a file whose calls begin on the first line.
    """
    if _breaks(call):
        return _broken_on(call)
    if column is not None:
        return _aligned(module, call, column, width)
    step = module.default_indent
    lead = line[: len(line) - len(line.lstrip())]
    inner = sum(len(module.code_for_node(a)) for a in _plain(call))
    fits = len(lead.expandtabs(4)) + len(step.expandtabs(4)) + inner <= width
    inside, outside = _line(lead + step), _line(lead)
    between = cst.SimpleWhitespace(" ") if fits else inside
    *args, last = (a.with_changes(comma=cst.Comma(whitespace_after=between)) for a in _plain(call))
    if fits:
        last = last.with_changes(comma=cst.MaybeSentinel.DEFAULT, whitespace_after_arg=outside)
    else:
        last = last.with_changes(comma=cst.Comma(whitespace_after=outside))
    return call.with_changes(whitespace_before_args=inside, args=[*args, last])


def _plain(call: cst.Call) -> list[cst.Arg]:
    """Its arguments, each followed by a comma and a space but the last."""
    space = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    plain = cst.SimpleWhitespace("")
    args = [a.with_changes(comma=space, whitespace_after_arg=plain) for a in call.args]
    return [*args[:-1], args[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)]


def _line(lead: str) -> cst.ParenthesizedWhitespace:
    """A line break inside brackets, and all that comes before the next word."""
    return cst.ParenthesizedWhitespace(indent=False, last_line=cst.SimpleWhitespace(lead))


def _spaces(call: cst.Call) -> list[cst.BaseParenthesizableWhitespace]:
    commas = [a.comma.whitespace_after for a in call.args[:-1] if isinstance(a.comma, cst.Comma)]
    return [call.whitespace_before_args, *commas]


def _breaks(call: cst.Call) -> bool:
    return any(isinstance(space, cst.ParenthesizedWhitespace) for space in _spaces(call))


def _broken_on(call: cst.Call) -> cst.Call:
    """The last argument on a line of its own, as its others are."""
    kept = next(s for s in _spaces(call)[::-1] if isinstance(s, cst.ParenthesizedWhitespace))
    silent = cst.TrailingWhitespace(newline=kept.first_line.newline)
    between = kept.with_changes(first_line=silent, empty_lines=[])
    args = list(call.args)
    for place in range(len(args) - 2, -1, -1):
        comma = args[place].comma
        assert isinstance(comma, cst.Comma)
        if isinstance(comma.whitespace_after, cst.ParenthesizedWhitespace):
            break
        following = args[place + 1].keyword
        if place and following is not None and following.value in _LATE:
            continue
        args[place] = args[place].with_changes(comma=cst.Comma(whitespace_after=between))
        break
    return call.with_changes(args=args)


_LATE = ("persistent_workers",)
"""Keywords that stay on the line of the one before them."""


def _aligns(module: cst.Module) -> bool:
    """Whether calls of this file that take several lines begin on the first one, mostly."""
    hanging = aligned = 0
    for call in m.findall(module, m.Call()):
        assert isinstance(call, cst.Call)
        first, *others = _spaces(call)
        if isinstance(first, cst.ParenthesizedWhitespace):
            hanging += 1
        elif any(isinstance(space, cst.ParenthesizedWhitespace) for space in others):
            aligned += 1
    return aligned > hanging


def _aligned(module: cst.Module, call: cst.Call, column: int, width: int) -> cst.Call:
    """Lines filled with arguments, all of which begin right of the bracket."""
    margin = column + len(module.code_for_node(call.func)) + 1
    below = _line(" " * margin)
    args, used = _plain(call), margin
    for place, arg in enumerate(args):
        size = len(module.code_for_node(arg).rstrip())
        if place and used + size + 1 > width:
            args[place - 1] = args[place - 1].with_changes(comma=cst.Comma(whitespace_after=below))
            used = margin
        used += size + 1
    return call.with_changes(args=args)
