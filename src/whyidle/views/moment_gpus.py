"""Which sampled GPU a training process ran on, where the hook and the readings can tell."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

import polars as pl

from whyidle.views.sampled_gpus import about_gpus

if TYPE_CHECKING:
    from whyidle.views import Views

Place = tuple[int, int | None, int | None]
"""Source, process id and rank of a training process."""


def gpus_of(views: Views, places: Sequence[Place]) -> dict[int, int | None]:
    """For processes beside sampled GPUs that did work: index -> number of the GPU, None unknown.

    Known is a GPU whose readings name the process; the only GPU of the only process; and, of as
    many processes as GPUs on a machine, each by its rank. Processes beside no working GPU are left
    out: their own steps are their meter.
    """
    found: dict[int, int | None] = {}
    for source in sorted({place[0] for place in places}):
        mine = [at for at, place in enumerate(places) if place[0] == source]
        gpus = _beside(views, source)
        if gpus:
            found |= _matched(views, [(at, places[at]) for at in mine], gpus)
    return found


def _beside(views: Views, source: int) -> list[int]:
    """The GPUs with a series on the machine of a bundle, by index; none where none ever worked."""
    sampled = views.sampled
    if not sampled.gpus.height:
        return []
    sources = views.evidence.sources
    host = views.moments.hosts.get(source)
    folder = PurePath(sources[source].path).parent if source < len(sources) else None
    alone = views.evidence.table("moments")["source"].n_unique() == 1
    found = []
    for row in sampled.gpus.sort("device", "number").iter_rows(named=True):
        theirs = sources[row["source"]].path if row["source"] < len(sources) else ""
        inside = folder is not None and PurePath(theirs).is_relative_to(folder)
        named = row["host"] == host if row["host"] is not None and host is not None else alone
        if inside or named:
            found.append(row["number"])
    busy = sampled.pieces.filter(pl.col("number").is_in(found) & (pl.col("value") > 0))
    return found if busy.height else []


def _matched(
    views: Views, places: list[tuple[int, Place]], gpus: list[int]
) -> dict[int, int | None]:
    held = _holding(views, gpus)
    known = {at: held[pid] for at, (_, pid, _) in places if pid in held}
    if len(known) == len(places):
        return dict(known)
    ranked = [(rank, at) for at, (_, _, rank) in places if rank is not None]
    if len(places) == len(gpus) == 1:
        return {places[0][0]: gpus[0]}
    if len(ranked) == len(places) == len(gpus):
        return {at: number for (_, at), number in zip(sorted(ranked), gpus, strict=True)}
    return {at: known.get(at) for at, _ in places}


def _holding(views: Views, gpus: list[int]) -> dict[int, int]:
    """Process id -> the one GPU whose readings name it."""
    samples = views.evidence.table("samples")
    rows = samples.lazy().filter(pl.col("process").is_not_null() & about_gpus(samples))
    names = ("source", "host", "gpu", "device")
    told = rows.select(*names, "process").unique().with_columns(
        pl.col("host", "gpu").cast(pl.String)
    ).collect()  # fmt: skip
    numbered = told.join(views.sampled.members, on=list(names), nulls_equal=True)
    numbered = numbered.filter(pl.col("number").is_in(gpus)).select("process", "number").unique()
    return dict(numbered.filter(pl.col("process").is_unique()).rows())
