"""Backward passes whose gradient reduction a later pass repeats.

Forward operators and optimizer steps cut a rank's time into stretches. A stretch with a gradient
reduction issued inside autograd is a pass. It is needless when the next pass before the same
Optimizer.step# runs exactly the same backward operators.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from whyidle.intervals import Axis, Index, Intervals, Ints, covered, expand, union
from whyidle.views import names
from whyidle.views.activities import NODE
from whyidle.views.host import Host
from whyidle.views.nest import inside

_GRADIENTS = re.compile(r"^(c10d::|_c10d_functional::)_?(allreduce|all_reduce|reduce_scatter)")
_FORWARD = re.compile(
    r"^aten::(linear|matmul|mm|addmm|bmm|baddbmm|conv\w*|embedding\w*|einsum)$"
    r"|^(Torch-Compiled Region|CompiledFunction$|## Call CompiledFxGraph)"
)
_STEP = re.compile(r"^Optimizer\.step#")

Mask = npt.NDArray[np.bool_]


def in_needless_pass(ranks: pl.Series, issued_ns: pl.Series, host: Host) -> Mask:
    """Which instants, each on the host clock of a rank, lie in a needless pass of that rank.

    An instant that is not known (null) lies in none.
    """
    known = issued_ns.is_not_null().to_numpy()
    found = np.zeros(known.size, dtype=bool)
    ours = host.nest.spans["rank"].fill_null(-1).to_numpy()
    numbers = np.unique(ours)
    rank = ranks.fill_null(-1).to_numpy()[known]
    group = np.minimum(np.searchsorted(numbers, rank), max(numbers.size - 1, 0))
    issued = issued_ns.drop_nulls().to_numpy()
    if not issued.size or not numbers.size:
        return found
    begins = host.nest.axis.take(host.nest.start, host.nest.thread)
    low, high = min(issued.min(), begins.min()), max(issued.max(), begins.max())
    axis = Axis(np.full(numbers.size, low), np.full(numbers.size, high))
    rooms = axis.put(np.arange(numbers.size), np.full(numbers.size, low))
    marks = _marks(host, axis.put(np.searchsorted(numbers, ours), begins))
    area = _needless(marks, rooms, axis)
    found[known] = covered(axis.put(group, issued), area) & (numbers[group] == rank)
    return found


@dataclass(frozen=True)
class _Marks:
    """Sorted starts, ranks side by side on one axis; ``nodes`` with the code of their name."""

    forwards: Ints
    steps: Ints
    reduces: Ints
    nodes: Ints
    named: npt.NDArray[np.uint32]


def _marks(host: Host, at: Ints) -> _Marks:
    """``at``: where each host span starts on the axis of ranks."""
    spans = host.nest.spans
    node = names.matching(spans["name"], lambda n: n.startswith(NODE)).to_numpy()
    within = inside(host.nest, node)
    outer = host.operator == np.arange(host.operator.size)
    forward = outer & ~within & names.matching(spans["name"], _FORWARD.search).to_numpy()
    step = names.matching(spans["name"], _STEP.search).to_numpy()
    reduces = within & names.matching(spans["name"], _GRADIENTS.search).to_numpy()
    codes = spans["name"].to_physical().to_numpy()
    return _Marks(
        np.sort(at[forward]), np.sort(at[step]), np.sort(at[reduces]), at[node], codes[node]
    )


def _needless(marks: _Marks, rooms: Ints, axis: Axis) -> Intervals:
    """When passes are needless; ``rooms``: where the room of each rank begins."""
    breaks = np.sort(np.concatenate([rooms, marks.forwards, marks.steps]))
    stretches = np.unique(np.searchsorted(breaks, marks.reduces, side="right"))
    low = breaks[stretches - 1]
    high = np.append(breaks, np.iinfo(np.int64).max)[stretches]
    if stretches.size < 2 or not marks.steps.size:
        return low[:0], high[:0]
    rank = axis.group_of(low)
    step = np.searchsorted(marks.steps, low, side="right")
    ahead = np.minimum(step, marks.steps.size - 1)
    steps_follow = (step < marks.steps.size) & (axis.group_of(marks.steps[ahead]) == rank)
    keep = (rank[:-1] == rank[1:]) & (step[:-1] == step[1:]) & steps_follow[:-1]
    made = np.searchsorted(breaks, marks.nodes, side="right")
    keep &= _alike(made, marks.named, stretches)
    chosen = np.flatnonzero(keep)
    return union(low[chosen], high[chosen])


def _alike(stretch: Index, named: npt.NDArray[np.uint32], wanted: Index) -> Mask:
    """Whether each wanted stretch and the next one ran the same operators as often."""
    keys, count = np.unique((stretch << 32) | named.astype(np.int64), return_counts=True)
    holder, name = keys >> 32, keys & 0xFFFFFFFF
    first = np.searchsorted(holder, wanted, side="left")
    width = np.searchsorted(holder, wanted, side="right") - first
    same = width[:-1] == width[1:]
    pair = np.flatnonzero(same)
    one, two = expand(first[pair], width[pair]), expand(first[pair + 1], width[pair])
    differs = (name[one] != name[two]) | (count[one] != count[two])
    same[np.repeat(pair, width[pair])[differs]] = False
    return np.asarray(same)
