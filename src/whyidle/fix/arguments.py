"""Arguments of a call: read, added, replaced and removed in the manner of the call."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst
from libcst import matchers as m

TIGHT = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))


def open_ended(call: cst.Call) -> bool:
    """Whether ``*args`` or ``**kwargs`` may bring arguments that the source does not show."""
    return any(a.star for a in call.args)


def argument(call: cst.Call, name: str, position: int | None = None) -> cst.Arg | None:
    """The argument given by keyword, or by its position from 0."""
    for arg in call.args:
        if arg.keyword is not None and arg.keyword.value == name:
            return arg
    if position is not None and position < len(call.args):
        arg = call.args[position]
        if arg.keyword is None and not arg.star:
            return arg
    return None


def is_constant(arg: cst.Arg | None, value: str) -> bool:
    """Whether the argument is this constant: True, False, None or a number."""
    return arg is not None and m.matches(arg.value, m.Name(value) | m.Integer(value))


def constant(code: str) -> cst.BaseExpression:
    """An expression from code."""
    return cst.parse_expression(code)


def with_value(call: cst.Call, old: cst.Arg | None, name: str, code: str) -> cst.Call:
    """The call whose argument (``old``, or one to be added as ``name``) has a new value."""
    if old is None:
        return with_keyword(call, name, code)
    same = argument(call, name) if old.keyword is not None else old
    args = [a.with_changes(value=constant(code)) if _is(a, old, same) else a for a in call.args]
    return call.with_changes(args=args)


def _is(arg: cst.Arg, old: cst.Arg, same: cst.Arg | None) -> bool:
    return arg is old or arg is same


def with_keyword(call: cst.Call, name: str, code: str) -> cst.Call:
    """The call with one keyword more, at the end, on a line of its own where the others are."""
    new = cst.Arg(constant(code), cst.Name(name), equal=TIGHT)
    if not call.args:
        return call.with_changes(args=[new])
    *others, last = call.args
    between = _between(call)
    closed = isinstance(last.comma, cst.Comma)
    tail = (
        last.comma.whitespace_after
        if isinstance(last.comma, cst.Comma)
        else (last.whitespace_after_arg)
    )
    if isinstance(tail, cst.ParenthesizedWhitespace) and _says(tail):
        inner = between if isinstance(between, cst.ParenthesizedWhitespace) else tail
        between = tail.with_changes(last_line=inner.last_line, indent=inner.indent)
        tail = _silent(tail)
    last = last.with_changes(
        comma=cst.Comma(whitespace_after=between), whitespace_after_arg=cst.SimpleWhitespace("")
    )
    if closed:
        new = new.with_changes(comma=cst.Comma(whitespace_after=tail))
    else:
        new = new.with_changes(whitespace_after_arg=tail)
    return call.with_changes(args=[*others, last, new])


def without(call: cst.Call, *names: str) -> cst.Call:
    """The call without these keywords; a comment beside one goes with it."""
    kept: Sequence[cst.Arg] = [
        a for a in call.args if a.keyword is None or a.keyword.value not in names
    ]
    if not kept:
        return call.with_changes(args=[], whitespace_before_args=cst.SimpleWhitespace(""))
    last, end = kept[-1], call.args[-1]
    if last is not end:
        last = last.with_changes(comma=end.comma, whitespace_after_arg=end.whitespace_after_arg)
    return call.with_changes(args=[*kept[:-1], last])


def _between(call: cst.Call) -> cst.BaseParenthesizableWhitespace:
    """The space between two arguments of this call, without its comments."""
    if len(call.args) > 1:
        comma = call.args[-2].comma
        if isinstance(comma, cst.Comma):
            return _silent(comma.whitespace_after)
    if isinstance(call.whitespace_before_args, cst.ParenthesizedWhitespace):
        return _silent(call.whitespace_before_args)
    return cst.SimpleWhitespace(" ")


def _says(space: cst.ParenthesizedWhitespace) -> bool:
    return space.first_line.comment is not None or any(e.comment for e in space.empty_lines)


def _silent(space: cst.BaseParenthesizableWhitespace) -> cst.BaseParenthesizableWhitespace:
    if not isinstance(space, cst.ParenthesizedWhitespace):
        return space
    first = cst.TrailingWhitespace(newline=space.first_line.newline)
    return space.with_changes(first_line=first, empty_lines=[])
