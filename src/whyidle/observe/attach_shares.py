"""Shares of time from samples of stacks, and how sure they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from whyidle.observe.attach_doing import Doing

Z = 1.96
"""For an interval that holds the truth 95 times in 100."""

BLOCKS = 20
"""Equal parts of the time, whose differences tell how much neighbouring samples are alike."""


@dataclass(frozen=True)
class Share:
    """A share of time (0..1) with its 95 % interval."""

    mid: float
    low: float
    high: float


@dataclass(frozen=True)
class Piece:
    """One stretch of the training thread, Unix nanoseconds, half open."""

    start_ns: int
    end_ns: int
    doing: Doing


def share_of(pieces: Sequence[Piece], activity: str, rate: int) -> Share:
    """The share of the time of ``pieces`` that went by in an activity, sampled ``rate`` times a s.

    Wilson's interval for as many samples as are worth independent ones: samples of one long stay
    are alike, so the number is cut by how much more the shares of blocks of time differ than
    those of independent samples would.
    """
    start = np.array([piece.start_ns for piece in pieces], np.int64)
    end = np.array([piece.end_ns for piece in pieces], np.int64)
    mine = np.array([piece.doing.activity == activity for piece in pieces], bool)
    whole = int((end - start).sum())
    if whole <= 0:
        return Share(0.0, 0.0, 1.0)
    mid = int((end - start)[mine].sum()) / whole
    samples = max(whole / 1e9 * rate, 1.0)
    return _wilson(mid, samples / _alike(start, end, mine, mid, samples))


def _alike(
    start: npt.NDArray[np.int64], end: npt.NDArray[np.int64], mine: npt.NDArray[np.bool_],
    mid: float, samples: float,
) -> float:  # fmt: skip
    """How many samples are worth one independent one; at least 1."""
    if mid in (0.0, 1.0) or samples < 2 * BLOCKS:
        return 1.0
    order = np.argsort(start, kind="stable")
    length = (end - start)[order]
    at = np.concatenate([[0], np.cumsum(length)]).astype(float)
    amount = np.concatenate([[0], np.cumsum(np.where(mine[order], length, 0))])
    edges = np.linspace(0.0, at[-1], BLOCKS + 1)
    shares = np.diff(np.interp(edges, at, amount)) / (at[-1] / BLOCKS)
    expected = mid * (1 - mid) / (samples / BLOCKS)
    return float(min(max(1.0, np.var(shares, ddof=1) / expected), samples / 2))


def _wilson(mid: float, samples: float) -> Share:
    z2 = Z * Z
    centre = (mid + z2 / (2 * samples)) / (1 + z2 / samples)
    half = Z * math.sqrt(mid * (1 - mid) / samples + z2 / (4 * samples**2)) / (1 + z2 / samples)
    return Share(mid, max(0.0, min(mid, centre - half)), min(1.0, max(mid, centre + half)))
