"""CRC-32C (Castagnoli), as TFRecord frames its records, and TensorFlow's masking of it.

``google-crc32c`` computes it at several GB/s where it is installed. Without it NumPy does, at some
100 MB/s for records of a few kilobytes and more: the record is read as rows of 1024 words, all
lanes of a row step at once through two tables of 65,536 entries, and the lanes are joined at last
in pairs. Both give the same number.
"""

from __future__ import annotations

import functools
import mmap
from typing import Any

import numpy as np

POLYNOMIAL = 0x82F63B78
"""Castagnoli's, with the bits of a byte from the lowest up."""

LANES = 1024
"""Words of four bytes that step at once."""

SHORT = 256
"""Up to so many bytes a plain loop is faster than NumPy."""

Words = np.ndarray[Any, np.dtype[np.uint32]]
Bytes = bytes | bytearray | memoryview | mmap.mmap


@functools.cache
def _native() -> Any:
    """The function of ``google-crc32c``, or None."""
    try:
        import google_crc32c
    except ImportError:
        return None
    return google_crc32c.value if google_crc32c.implementation == "c" else None


def crc32c(content: Bytes) -> int:
    """The CRC-32C of the bytes."""
    native = _native()
    if native is not None:
        value: int = native(bytes(content))
        return value
    return crc32c_in_numpy(content)


def masked(content: Bytes) -> int:
    """The CRC-32C of the bytes, rotated and shifted as TFRecord stores it."""
    crc = crc32c(content)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c_in_numpy(content: Bytes) -> int:
    """The CRC-32C without a package: a loop for short contents, lanes for long ones."""
    if len(content) <= SHORT:
        table, crc = _byte_list(), 0xFFFFFFFF
        for byte in bytes(content):
            crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
        return crc ^ 0xFFFFFFFF
    rows = -(-len(content) // (4 * LANES))
    # Zeros in front change nothing when the register begins at zero; that it begins at ones is
    # the same as the first four bytes inverted.
    padded = np.zeros(rows * 4 * LANES, np.uint8)
    padded[-len(content) :] = np.frombuffer(content, np.uint8)
    padded[-len(content) :][:4] ^= 0xFF
    lanes = _step(padded.view("<u4").reshape(rows, LANES))
    return _joined(lanes) ^ 0xFFFFFFFF


def crc32c_of_every_8(content: Bytes) -> Words:
    """The masked CRC-32C of the eight bytes at each offset: how a lost record's end is found."""
    values = np.frombuffer(content, np.uint8)
    count = len(values) - 7
    if count <= 0:
        return np.zeros(0, np.uint32)
    crc = np.full(count, _of_zeros(8), np.uint32)
    for at, table in enumerate(_position_tables()):
        crc ^= np.take(table, values[at : at + count])
    crc = (crc >> np.uint32(15)) | (crc << np.uint32(17))
    masked_crc: Words = crc + np.uint32(0xA282EAD8)
    return masked_crc


@functools.cache
def _byte_table() -> Words:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        odd = (table & np.uint32(1)).astype(bool)
        table = (table >> np.uint32(1)) ^ np.where(odd, np.uint32(POLYNOMIAL), np.uint32(0))
    return table


@functools.cache
def _byte_list() -> list[int]:
    return [int(value) for value in _byte_table()]


@functools.cache
def _position_tables() -> list[Words]:
    """What each byte of eight adds to the register, first byte first."""
    tables = [_byte_table()]
    for _ in range(7):
        last = tables[0]
        tables.insert(0, _byte_table()[last & np.uint32(0xFF)] ^ (last >> np.uint32(8)))
    return tables


def _of_zeros(count: int) -> int:
    table, crc = _byte_list(), 0xFFFFFFFF
    for _ in range(count):
        crc = table[crc & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _applied(columns: Words, registers: Words) -> Words:
    """Each register times a matrix over two elements, given as its 32 columns."""
    out = np.zeros_like(registers)
    for bit in range(32):
        out ^= np.where((registers >> np.uint32(bit)) & np.uint32(1), columns[bit], np.uint32(0))
    return out


@functools.cache
def _past(count: int) -> tuple[Words, Words]:
    """Tables that move a register past ``count`` zero bytes: for its low and its high half."""
    columns = np.uint32(1) << np.arange(32, dtype=np.uint32)
    power = _byte_table()[columns & np.uint32(0xFF)] ^ (columns >> np.uint32(8))
    left = count
    while left:
        if left & 1:
            columns = _applied(power, columns)
        power, left = _applied(power, power), left >> 1
    halves = []
    for first in (0, 16):
        table = np.zeros(1, np.uint32)
        for bit in range(first, first + 16):
            table = np.concatenate([table, table ^ columns[bit]])
        halves.append(table)
    return halves[0], halves[1]


def _moved(registers: Words, count: int) -> Words:
    """Registers after ``count`` zero bytes more."""
    low, high = _past(count)
    moved: Words = np.take(low, registers & np.uint32(0xFFFF))
    moved ^= np.take(high, registers >> np.uint32(16))
    return moved


def _step(rows: Words) -> Words:
    """One word a lane: the rows folded onto the last, each moved past a row for every row below."""
    lanes: Words = rows[0].copy()
    for row in rows[1:]:
        lanes = _moved(lanes, 4 * LANES)
        lanes ^= row
    return lanes


def _joined(lanes: Words) -> int:
    """The register after all lanes: neighbours joined in pairs until one is left."""
    width = 4
    while len(lanes) > 1:
        lanes = _moved(lanes[0::2], width) ^ lanes[1::2]
        width *= 2
    return int(_moved(lanes, 4)[0])
