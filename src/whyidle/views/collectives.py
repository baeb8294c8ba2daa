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
                     step repeats; see views.needless
============= ====== =====================================================================
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from whyidle.intervals import Index, Intervals, Ints, expand, intersect
from whyidle.views import names
from whyidle.views.activity import COMMUNICATION
from whyidle.views.host import Host
from whyidle.views.needless import in_needless_pass

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
    return work.select(
        "rank", "device", "row", pl.Series("collective", kinds(work, host), dtype=pl.String),
        pl.col("name").cast(pl.String), pl.col("caller").alias("thread"),
    )  # fmt: skip


def kinds(work: pl.DataFrame, host: Host) -> list[str]:
    """The collective that each piece of communication work carries out."""
    issuer = _issuer(work, host)
    kernel = names.told(work["name"], collective_of).to_list()
    spans = host.nest.spans["name"]
    named = {i: collective_of(str(spans[i])) for i in np.unique(issuer[issuer >= 0]).tolist()}
    # send-and-receive kernels carry out all-to-all; only the caller knows
    return [
        (named.get(i) if k is None or k.startswith("send") else k) or k or "communication"
        for k, i in zip(kernel, issuer.tolist(), strict=True)
    ]


def speaker_rows(work: pl.DataFrame, host: Host, *, told: bool) -> pl.Series:
    """Row of a host span around each launch that may describe the message; null for none.

    ``told``: the span that PyTorch writes for that purpose only; else the innermost one named
    after a collective.
    """
    rule = re.compile(r"^record_param_comms$") if told else _ISSUES
    found = _issuer(work, host, rule)
    if not host.nest.spans.height:
        return pl.repeat(None, work.height, dtype=pl.UInt32, eager=True)
    rows = host.nest.spans["row"].gather(np.maximum(found, 0))
    return pl.select(pl.when(pl.Series(found >= 0)).then(rows)).to_series()


def _issuer(work: pl.DataFrame, host: Host, rule: re.Pattern[str] = _ISSUES) -> Index:
    """Index of the innermost host span of such a name around each launch; -1 for none."""
    nest = host.nest
    mine = names.matching(nest.spans["name"], rule.search).to_numpy()
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
    told = names.told(work["name"], collective_of)
    reductions = (told.is_null() | told.is_in(["all-reduce", "reduce-scatter"])).to_numpy()
    return np.asarray(reductions & in_needless_pass(work["rank"], work["launch_ns"], views.host))
