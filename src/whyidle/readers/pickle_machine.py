"""The instructions of a pickle that build plain data, and no other.

What a hostile file could make large is bounded: the stack, the memo and its numbering, nesting by
marks and by tuples, integers, and keys other than text, whose hashes an attacker could choose.
Sets, persistent ids and out-of-band buffers are refused like calls, since no recorder writes them.
"""

from __future__ import annotations

import codecs
import re
import struct
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Absorb = Callable[[dict[Any, Any]], None]


class Limits(NamedTuple):
    """What one pickle may ask for."""

    stack: int = 1 << 24
    memo: int = 1 << 26
    marks: int = 200  # containers open at once
    tuple_depth: int = 32
    integer_bytes: int = 16
    other_keys: int = 10_000  # keys of one dictionary that are not text
    text_bytes: int = 1 << 24
    items: int = 1 << 28  # of all containers together
    blocks: int = 50_000_000  # pieces of memory, of about 64 bytes, that all values take


class Refused(Exception):
    """The pickle asks for something that no plain data needs; the text completes "the pickle"."""


PLAIN = Limits()
_CALLS = {
    0x52: "REDUCE", 0x62: "BUILD", 0x63: "GLOBAL", 0x69: "INST", 0x6F: "OBJ", 0x81: "NEWOBJ",
    0x92: "NEWOBJ_EX", 0x93: "STACK_GLOBAL", 0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4",
}  # fmt: skip
_FOREIGN = {
    0x50: "PERSID", 0x51: "BINPERSID", 0x8F: "EMPTY_SET", 0x90: "ADDITEMS", 0x91: "FROZENSET",
    0x96: "BYTEARRAY8", 0x97: "NEXT_BUFFER", 0x98: "READONLY_BUFFER",
}  # fmt: skip
_SAFE_KEYS = {str, bytes, int, bool, type(None)}
_CHECK_EVERY = 1 << 20
_U32 = struct.Struct("<I").unpack_from
_I32 = struct.Struct("<i").unpack_from
_U64 = struct.Struct("<Q").unpack_from
_F64 = struct.Struct(">d").unpack_from
_GETS = re.compile(rb"(?:j.{4})+", re.DOTALL)
_GET = np.dtype([("op", "u1"), ("number", "<u4")])


class Machine:
    """One run over one pickle."""

    def __init__(self, data: bytes, limits: Limits, absorb: Absorb | None) -> None:
        """``absorb`` sees each dictionary after several values were put into it at once."""
        self.data = data
        self.limits = limits
        self.absorb = absorb
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: list[Any] = []
        self.depths: dict[int, tuple[tuple[Any, ...], int]] = {}
        self.items = 0
        room = min(limits.blocks, _CHECK_EVERY + len(data) // 4)  # records take a tenth of that
        self.most_blocks = sys.getallocatedblocks() + room
        self.cold = [_COLD.get(op) for op in range(256)]

    def run(self) -> Any:
        """Follow the instructions to STOP and return what is then on top."""
        data, stack, marks, memo, cold = self.data, self.stack, self.marks, self.memo, self.cold
        push, remember, number_of = stack.append, memo.append, int.from_bytes
        most_marks, most_bytes = self.limits.marks, self.limits.integer_bytes
        i = 0
        while True:
            for _ in range(_CHECK_EVERY):
                op = data[i]
                i += 1
                if op == 0x68:  # BINGET
                    push(memo[data[i]])
                    i += 1
                elif op == 0x6A:  # LONG_BINGET
                    i = self.recall(i) if data[i + 4] == 0x6A else self.recall_one(i)
                elif op == 0x94:  # MEMOIZE
                    remember(stack[-1])
                elif op == 0x4B:  # BININT1
                    push(data[i])
                    i += 1
                elif op == 0x4D:  # BININT2
                    push(data[i] | data[i + 1] << 8)
                    i += 2
                elif op == 0x8A and data[i] <= most_bytes:  # LONG1
                    end = i + 1 + data[i]
                    push(number_of(data[i + 1 : end], "little", signed=True))
                    i = end
                elif op == 0x4A:  # BININT
                    push(_I32(data, i)[0])
                    i += 4
                elif op == 0x28:  # MARK
                    marks.append(len(stack))
                    if len(marks) > most_marks:
                        raise Refused(f"nests more than {most_marks} containers")
                elif op == 0x7D:  # EMPTY_DICT
                    push({})
                elif op == 0x5D:  # EMPTY_LIST
                    push([])
                elif op == 0x75:  # SETITEMS
                    self.fill(self.since_mark())
                elif op == 0x65:  # APPENDS
                    items = self.since_mark()
                    self.target(list).extend(items)
                elif op == 0x71:  # BINPUT
                    self.put(data[i])
                    i += 1
                elif op == 0x2E:  # STOP
                    return stack[-1]
                else:
                    handler = cold[op]
                    if handler is None:
                        raise Refused(_unknown(op, data, i))
                    i = handler(self, i)
            self.check()

    def recall_one(self, i: int) -> int:
        """LONG_BINGET: push the remembered value of a number."""
        self.stack.append(self.memo[_U32(self.data, i)[0]])
        return i + 4

    def recall(self, i: int) -> int:
        """Several LONG_BINGET in a row: a call stack is a list of frames that were seen before."""
        run = _GETS.match(self.data, i - 1)
        if run is None:
            raise IndexError
        numbers = np.frombuffer(run.group(), dtype=_GET)["number"].tolist()
        self.stack.extend(map(self.memo.__getitem__, numbers))
        return run.end()

    def check(self) -> None:
        """Refuse a stack, a memo or an amount of values that no honest file needs."""
        if (
            len(self.stack) > self.limits.stack
            or len(self.memo) > self.limits.memo
            or self.items > self.limits.items
            or sys.getallocatedblocks() > self.most_blocks
        ):
            raise Refused("keeps more values at hand than plain data needs")

    def since_mark(self) -> list[Any]:
        """The values above the last mark, taken from the stack."""
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        self.items += len(items)
        return items

    def target(self, kind: type) -> Any:
        """The container on top of the stack; its elements' own mark must lie above it."""
        if self.marks and len(self.stack) <= self.marks[-1]:
            raise Refused("takes values across a mark")
        top = self.stack[-1]
        if type(top) is not kind:
            raise Refused("fills something that is no list or dictionary")
        return top

    def fill(self, items: list[Any]) -> None:
        """Put key, value, key, value into the dictionary on top."""
        target = self.target(dict)
        keys = items[::2]
        try:
            "".join(keys)
        except TypeError:
            self.refuse_keys(keys, target)
        target.update(zip(keys, items[1::2], strict=True))
        if self.absorb is not None and len(items) > 2:
            self.absorb(target)

    def refuse_keys(self, keys: list[Any], target: dict[Any, Any]) -> None:
        """Keys that are not text are rare, short and of kinds that hash fast."""
        if not set(map(type, keys)) <= _SAFE_KEYS:
            raise Refused("uses a container as a key")
        if any(type(key) is int and key.bit_length() > 60 for key in keys):
            raise Refused("uses a huge number as a key")
        if len(target) + len(keys) > self.limits.other_keys:
            raise Refused("uses too many keys that are not text")

    def put(self, number: int) -> None:
        """Remember the top under a number. Numbers run on; a few may be left out."""
        memo = self.memo
        gap = number - len(memo)
        if gap == 0:
            memo.append(self.stack[-1])
        elif gap < 0:
            memo[number] = self.stack[-1]
        elif gap <= 1024:
            memo.extend([None] * gap)
            memo.append(self.stack[-1])
        else:
            raise Refused(f"remembers a value as number {number} out of turn")

    def integer(self, i: int, length: int) -> int:
        """A signed little-endian integer of some bytes."""
        if length > self.limits.integer_bytes:
            raise Refused(f"holds an integer of {length} bytes")
        self.stack.append(int.from_bytes(self.take(i, length), "little", signed=True))
        return i + length

    def take(self, i: int, length: int) -> bytes:
        """The next bytes, all of them."""
        if length > self.limits.text_bytes:
            raise Refused(f"holds a text of {length} bytes")
        part = self.data[i : i + length]
        if len(part) != length:
            raise IndexError
        return part

    def line(self, i: int) -> tuple[bytes, int]:
        """The bytes up to the next line feed (protocol 0), and where the next instruction is."""
        end = self.data.index(b"\n", i, i + self.limits.text_bytes)
        return self.data[i:end], end + 1

    def tuple_of(self, items: list[Any]) -> None:
        """Push a tuple; tuples in tuples are counted, since their depth costs no bytes."""
        made = tuple(items)
        inner = [self.depths[id(item)][1] for item in items if id(item) in self.depths]
        if inner or any(type(item) is tuple for item in items):
            depth = 1 + max(inner, default=1)
            if depth > self.limits.tuple_depth:
                raise Refused(f"nests more than {self.limits.tuple_depth} tuples")
            self.depths[id(made)] = (made, depth)
        self.stack.append(made)


Handler = Callable[[Machine, int], int]


def _unknown(op: int, data: bytes, i: int) -> str:
    if op in _CALLS:
        named = ""
        if op == 0x63:
            words = data[i : i + 200].split(b"\n")[:2]
            named = " " + ".".join(word.decode("ascii", "replace")[:60] for word in words)
        return f"asks for code to be loaded or run ({_CALLS[op]}{named})"
    return f"holds the instruction {_FOREIGN.get(op, hex(op))}"


def _text(width: int, kind: str) -> Handler:
    """An instruction that pushes text or bytes after a length of ``width`` bytes."""

    def handle(machine: Machine, i: int) -> int:
        length = int.from_bytes(machine.data[i : i + width], "little")
        i += width
        part = machine.take(i, length)
        if kind == "bytes":
            machine.stack.append(part)
        elif kind == "text":
            machine.stack.append(part.decode("utf-8", "surrogatepass"))
        else:
            machine.stack.append(part.decode("utf-8", "replace"))
        return i + length

    return handle


def _constant(value: Any) -> Handler:
    def handle(machine: Machine, i: int) -> int:
        machine.stack.append(value)
        return i

    return handle


def _skip(width: int) -> Handler:
    return lambda machine, i: i + width


def _long_put(machine: Machine, i: int) -> int:
    machine.put(_U32(machine.data, i)[0])
    return i + 4


def _long1(machine: Machine, i: int) -> int:
    return machine.integer(i + 1, machine.data[i])


def _long4(machine: Machine, i: int) -> int:
    length: int = _U32(machine.data, i)[0]
    return machine.integer(i + 4, length)


def _binary_float(machine: Machine, i: int) -> int:
    machine.stack.append(_F64(machine.data, i)[0])
    return i + 8


def _append(machine: Machine, i: int) -> int:
    value = machine.stack.pop()
    machine.target(list).append(value)
    machine.items += 1
    return i


def _set_item(machine: Machine, i: int) -> int:
    value = machine.stack.pop()
    key = machine.stack.pop()
    machine.fill([key, value])
    return i


def _marked(build: Callable[[Machine, list[Any]], None]) -> Handler:
    """An instruction that makes one value of everything above the last mark."""

    def handle(machine: Machine, i: int) -> int:
        build(machine, machine.since_mark())
        return i

    return handle


def _dict_of(machine: Machine, items: list[Any]) -> None:
    machine.stack.append({})
    machine.fill(items)


def _small_tuple(size: int) -> Handler:
    def handle(machine: Machine, i: int) -> int:
        if len(machine.stack) - (machine.marks[-1] if machine.marks else 0) < size:
            raise IndexError
        items = machine.stack[-size:]
        del machine.stack[-size:]
        machine.tuple_of(items)
        return i

    return handle


def _pop(machine: Machine, i: int) -> int:
    if machine.marks and machine.marks[-1] == len(machine.stack):
        machine.marks.pop()
    else:
        machine.stack.pop()
    return i


def _duplicate(machine: Machine, i: int) -> int:
    machine.stack.append(machine.stack[-1])
    return i


def _line_of(parse: Callable[[Machine, bytes], Any], *, push: bool = True) -> Handler:
    """An instruction of protocol 0: its argument is a line of text."""

    def handle(machine: Machine, i: int) -> int:
        line, after = machine.line(i)
        value = parse(machine, line)
        if push:
            machine.stack.append(value)
        return after

    return handle


def _whole(machine: Machine, line: bytes) -> int | bool:
    if line in (b"00", b"01"):
        return line == b"01"
    digits = line.removesuffix(b"L")
    if len(digits) > 40:
        raise Refused("holds a number of more than 40 digits")
    return int(digits)


def _quoted(machine: Machine, line: bytes) -> str:
    """A string of Python 2, in quotes and with escapes."""
    if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b"'", b'"'):
        raise ValueError
    return codecs.escape_decode(line[1:-1])[0].decode("utf-8", "replace")


def _recall(machine: Machine, line: bytes) -> Any:
    number = int(line[:20])
    if number < 0:
        raise ValueError
    return machine.memo[number]


def _remember(machine: Machine, line: bytes) -> None:
    number = int(line[:20])
    if number < 0:
        raise ValueError
    machine.put(number)


_COLD: dict[int, Handler] = {
    0x80: _skip(1), 0x95: _skip(8),
    0x4E: _constant(None), 0x88: _constant(value=True), 0x89: _constant(value=False),
    0x29: _constant(()),
    0x8C: _text(1, "text"), 0x58: _text(4, "text"), 0x8D: _text(8, "text"),
    0x43: _text(1, "bytes"), 0x42: _text(4, "bytes"), 0x8E: _text(8, "bytes"),
    0x55: _text(1, "old"), 0x54: _text(4, "old"),
    0x72: _long_put, 0x8A: _long1, 0x8B: _long4, 0x47: _binary_float,
    0x61: _append, 0x73: _set_item,
    0x74: _marked(Machine.tuple_of), 0x6C: _marked(lambda m, items: m.stack.append(items)),
    0x64: _marked(_dict_of), 0x31: _marked(lambda m, items: None),
    0x85: _small_tuple(1), 0x86: _small_tuple(2), 0x87: _small_tuple(3),
    0x30: _pop, 0x32: _duplicate,
    0x49: _line_of(_whole), 0x4C: _line_of(_whole),
    0x46: _line_of(lambda m, line: float(line[:64])),
    0x53: _line_of(_quoted),
    0x56: _line_of(lambda m, line: line.decode("raw-unicode-escape")),
    0x67: _line_of(_recall), 0x70: _line_of(_remember, push=False),
}  # fmt: skip
