"""Orders of samples that need no memory: which sample stands at a position is computed.

``permuted`` is a Feistel network of six rounds over the next power of four, walked until it falls
inside the set: a bijection chosen by its seed. It is a good shuffle and no cryptography.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Numbers = np.ndarray[Any, np.dtype[np.uint64]]

ROUNDS = 6
BLOCK = 1024
"""Samples that stay together when blocks are shuffled: what one sequential read brings."""


def permuted(positions: Numbers, count: int, seed: int) -> Numbers:
    """The sample at each of ``positions`` (each below ``count``) in the order of ``seed``."""
    bits = max(1, ((count - 1).bit_length() + 1) // 2)
    low = np.uint64((1 << bits) - 1)
    keys = _mixed(np.arange(1, ROUNDS + 1, dtype=np.uint64) + _number(seed))
    found = positions.astype(np.uint64)
    outside = np.arange(len(found))
    while len(outside):
        left, right = found[outside] >> np.uint64(bits), found[outside] & low
        for key in keys:
            left, right = right, left ^ (_mixed(right + key) & low)
        found[outside] = (left << np.uint64(bits)) | right
        outside = outside[found[outside] >= np.uint64(count)]
    return found


def in_blocks(positions: Numbers, count: int, seed: int, window: int) -> Numbers:
    """The sample at each position when blocks are shuffled, then samples inside windows.

    Blocks of ``BLOCK`` neighbours come in a shuffled order, and positions are shuffled inside
    each stretch of ``window``. Reads stay near each other; a sample meets only those in its window.
    """
    start = positions // np.uint64(window) * np.uint64(window)
    inside = positions - start
    for at in np.unique(start):
        here = start == at
        size = min(window, count - int(at))
        inside[here] = permuted(inside[here], size, _seed_of(seed, int(at) + 1))
    return _block_order(start + inside, count, seed)


def _block_order(positions: Numbers, count: int, seed: int) -> Numbers:
    """Whole blocks permuted; the shorter last block, if there is one, stays last."""
    whole = count // BLOCK
    blocks, inside = np.divmod(positions, np.uint64(BLOCK))
    moved = blocks < np.uint64(whole)
    blocks[moved] = permuted(blocks[moved], whole, _seed_of(seed, 0))
    found: Numbers = blocks * np.uint64(BLOCK) + inside
    return found


def _number(seed: int) -> np.uint64:
    return np.uint64(seed & (2**64 - 1))


def _seed_of(seed: int, part: int) -> int:
    return int(_mixed(np.array([part], np.uint64) + _mixed(np.array([_number(seed)])))[0])


def _mixed(numbers: Numbers) -> Numbers:
    """The finisher of splitmix64: every bit of the input changes half of the output's."""
    mixed = numbers + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
