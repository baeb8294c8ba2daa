"""Communication alone on a device: which collective, and whether a later one made it needless.

One row of ``exposed``: one stretch in which a device only communicated, disjoint per device.

============= ====== =====================================================================
rank, device  Int32
start_ns      Int64  end_ns likewise
row           UInt32 span of the communication work; the earliest started where several ran
collective    String "all-reduce", "all-to-all", ...; "communication" when no name tells
name          String name of the device work
thread        UInt32 host thread that issued it; null when not known
needless      Boolean a gradient reduction that a later backward pass before the same optimizer
                     step repeats; see ``needless_passes``
============= ====== =====================================================================
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from whyidle.intervals import Index, Intervals, Ints, covered, expand, intersect, union
from whyidle.views import names
from whyidle.views.activities import NODE
from whyidle.views.activity import COMMUNICATION
from whyidle.views.host import Host
from whyidle.views.nest import inside

if TYPE_CHECKING:
    from whyidle.views import Views

COLLECTIVES = (
    ("all-reduce", r"all_?reduce|cross_device_reduce"),
    ("reduce-scatter", r"reduce_?scatter"),
    ("all-gather", r"all_?gather"),
    ("all-to-all", r"all_?to_?all|deep_ep"),
    ("broadcast", r"broadcast"),
    ("reduce", r"(?<![a-z])reduce(?![a-z])|kernel_reduce_"),
    ("send and receive", r"send_?recv|(?<![a-z])(send|recv|isend|irecv)(?![a-z])"),
    ("barrier", r"barrier"),
)
_RULES = tuple((name, re.compile(rule, re.IGNORECASE)) for name, rule in COLLECTIVES)
_ISSUES = re.compile(r"^(c10d::|nccl:|rccl:|hccl:|gloo:|mpi:|_c10d_functional::)")
_GRADIENTS = re.compile(r"^(c10d::|_c10d_functional::)_?(allreduce|all_reduce|reduce_scatter)")
_FORWARD = re.compile(
    r"^aten::(linear|matmul|mm|addmm|bmm|baddbmm|conv\w*|embedding\w*|einsum)$"
    r"|^(Torch-Compiled Region|CompiledFunction$|## Call CompiledFxGraph)"
)
_STEP = re.compile(r"^Optimizer\.step#")


@lru_cache(maxsize=4096)
def collective_of(name: str) -> str | None:
    """The collective that a kernel, operator or annotation of this name carries out, if told."""
    return next((found for found, rule in _RULES if rule.search(name)), None)


def exposed(views: Views) -> pl.DataFrame:
    """The frame that the module describes."""
    states = views.states
    at = np.flatnonzero(states.work["state"].to_numpy() == COMMUNICATION)
    start, end, owner = _owned(states.start[at], states.end[at], states.sets[COMMUNICATION])
    work = states.work[at]
    told = _told(work, views.host).with_columns(pl.Series("needless", _needless(work, views)))
    group = states.group[at][owner]
    return told[owner].with_columns(
        pl.Series("start_ns", states.axis.take(start, group)),
        pl.Series("end_ns", states.axis.take(end, group)),
    )


def _owned(start: Ints, end: Ints, area: Intervals) -> tuple[Ints, Ints, Index]:
    """``area`` cut so that each part belongs to one interval: the first of those that hold it."""
    edges = np.unique(np.concatenate([start, end]))
    first = np.searchsorted(edges, start)
    count = np.searchsorted(edges, end) - first
    best = np.full(max(edges.size, 1), start.size, dtype=np.intp)
    np.minimum.at(best, expand(first, count), np.repeat(np.arange(start.size), count))
    cells = np.flatnonzero(best[:-1] < start.size)
    low, high = intersect((edges[cells], edges[cells + 1]), area)
    holder = best[np.searchsorted(edges, low, side="right") - 1] if low.size else cells[:0]
    return low, high, holder.astype(np.intp)


def _told(work: pl.DataFrame, host: Host) -> pl.DataFrame:
    """rank, device, row, collective, name and thread of communication work."""
    issuer = _issuer(work, host)
    kernel = names.told(work["name"], collective_of).to_list()
    spans = host.nest.spans["name"]
    named = {i: collective_of(str(spans[i])) for i in np.unique(issuer[issuer >= 0]).tolist()}
    # send-and-receive kernels carry out all-to-all; only the caller knows
    found = [
        (named.get(i) if k is None or k.startswith("send") else k) or k or "communication"
        for k, i in zip(kernel, issuer.tolist(), strict=True)
    ]
    return work.select(
        "rank", "device", "row", pl.Series("collective", found, dtype=pl.String),
        pl.col("name").cast(pl.String), pl.col("caller").alias("thread"),
    )  # fmt: skip


def _issuer(work: pl.DataFrame, host: Host) -> Index:
    """Index of the host span named after a collective around each launch; -1 for none."""
    nest = host.nest
    mine = names.matching(nest.spans["name"], _ISSUES.search).to_numpy()
    at = nest.index_of(work["launch"].fill_null(2**32 - 1).to_numpy())
    at = np.where(work["launch"].is_null().to_numpy(), -1, at)
    found = np.full(at.size, -1, dtype=np.intp)
    while np.any((at >= 0) & (found < 0)):
        hit = (at >= 0) & (found < 0) & mine[np.maximum(at, 0)]
        found[hit] = at[hit]
        at = np.where(at >= 0, nest.parent[np.maximum(at, 0)], -1)
    return found


def _needless(work: pl.DataFrame, views: Views) -> npt.NDArray[np.bool_]:
    """Which gradient reductions a later pass repeats before the same optimizer step."""
    found = np.zeros(work.height, dtype=bool)
    told = names.told(work["name"], collective_of)
    reductions = (told.is_null() | told.is_in(["all-reduce", "reduce-scatter"])).to_numpy()
    issued = work["launch_ns"].fill_null(np.iinfo(np.int64).min).to_numpy()
    codes = work["rank"].fill_null(-1).to_numpy()
    for rank in np.unique(codes).tolist():
        area = needless_passes(views.host, None if rank == -1 else int(rank))
        found |= (codes == rank) & reductions & covered(issued, area)
    return found


def needless_passes(host: Host, rank: int | None) -> Intervals:
    """Host time (ns) of backward passes whose gradient reduction a later pass repeats.

    Forward operators and optimizer steps cut a rank's time into stretches. A stretch with a
    gradient reduction issued inside autograd is a pass. It is needless when the next pass before
    the same Optimizer.step# runs exactly the same backward operators.
    """
    marks = _marks(host, rank)
    nothing = np.zeros(0, dtype=np.int64)
    if not marks.reduces.size or not marks.steps.size:
        return nothing, nothing
    breaks = np.sort(np.concatenate([marks.forwards, marks.steps]))
    passes = np.unique(np.searchsorted(breaks, marks.reduces, side="right"))
    low = np.append(np.iinfo(np.int64).min, breaks)[passes]
    high = np.append(breaks, np.iinfo(np.int64).max)[passes]
    step = np.searchsorted(np.sort(marks.steps), low, side="right")
    made = _made(marks, breaks)
    keep = np.zeros(passes.size, dtype=bool)
    for i in range(passes.size - 1):
        same = made.get(int(passes[i])) == made.get(int(passes[i + 1]))
        keep[i] = step[i] == step[i + 1] < marks.steps.size and same
    return union(low[keep], high[keep])


@dataclass(frozen=True)
class _Marks:
    """Starts (ns) on the host clock of one rank; ``nodes`` with the code of their name."""

    forwards: Ints
    steps: Ints
    reduces: Ints
    nodes: Ints
    named: npt.NDArray[np.uint32]


def _marks(host: Host, rank: int | None) -> _Marks:
    nest = host.nest
    spans = nest.spans
    begins = nest.axis.take(nest.start, nest.thread)
    mine = spans["rank"].eq_missing(pl.Series([rank], dtype=pl.Int32)).to_numpy()
    node = names.matching(spans["name"], lambda n: n.startswith(NODE)).to_numpy()
    within = inside(nest, node)
    outer = host.operator == np.arange(host.operator.size)
    forward = outer & ~within & names.matching(spans["name"], _FORWARD.search).to_numpy()
    step = names.matching(spans["name"], _STEP.search).to_numpy()
    reduces = within & names.matching(spans["name"], _GRADIENTS.search).to_numpy()
    codes = spans["name"].to_physical().to_numpy()
    return _Marks(
        begins[mine & forward],
        begins[mine & step],
        begins[mine & reduces],
        begins[mine & node],
        codes[mine & node],
    )


def _made(marks: _Marks, breaks: Ints) -> dict[int, Counter[int]]:
    """Per stretch between breaks, how often each backward operator ran."""
    found: dict[int, Counter[int]] = defaultdict(Counter)
    stretch = np.searchsorted(breaks, marks.nodes, side="right")
    for number, name in zip(stretch.tolist(), marks.named.tolist(), strict=True):
        found[number][name] += 1
    return found
