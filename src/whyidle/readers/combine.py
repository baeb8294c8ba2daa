"""Several pieces of evidence as one run: ranks side by side, or one rank's files end to end."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from whyidle.errors import EvidenceConflict
from whyidle.model import DeviceInfo, Evidence, Facts
from whyidle.readers.clock_join import joined
from whyidle.readers.execution_trace import filled

RANK_IN_NAME = re.compile(r"(?<![A-Za-z])rank[-_.]?(\d{1,6})(?!\d)", re.I)
"""A rank in a file's name, such as "rank3" or "rank-12"."""


class Window(NamedTuple):
    """When one source recorded, on its own clock."""

    path: str
    start_ns: int
    end_ns: int


def combined(parts: Sequence[Evidence], notes: Sequence[str] = ()) -> Evidence:
    """One Evidence; ``notes`` go to its first source. Raises EvidenceConflict."""
    parts = filled(parts, RANK_IN_NAME)
    if len(parts) == 1:
        return _noted(parts[0], notes)
    parts = joined(_with_ranks_from_names(parts))
    _refuse_other_jobs(parts)
    _refuse_overlaps(parts)
    sources = tuple(source for part in parts for source in part.sources)
    return _noted(Evidence(_tables(parts), _facts(parts), sources), notes)


def _noted(evidence: Evidence, notes: Sequence[str]) -> Evidence:
    if not notes or not evidence.sources:
        return evidence
    first, *others = evidence.sources
    first = replace(first, notes=(*first.notes, *notes))
    return replace(evidence, sources=(first, *others))


def _with_ranks_from_names(parts: Sequence[Evidence]) -> list[Evidence]:
    """Give files without a rank the one in their name ("rank3"), traces when all of them have one.

    Samples, settings and links are about machines and keep none.
    """
    nameless = [i for i, part in enumerate(parts) if _rank(part) is None and _of_a_rank(part)]
    found = {i: RANK_IN_NAME.search(Path(parts[i].sources[0].path).name) for i in nameless}
    if not all(match for i, match in found.items() if parts[i].has("spans")):
        found = {i: match for i, match in found.items() if not parts[i].has("spans")}
    ranked = list(parts)
    for i, match in found.items():
        if match is not None:
            ranked[i] = _as_rank(parts[i], int(match.group(1)))
    return ranked


OF_A_RANK = ("spans", "collectives", "allocations", "memory_blocks")
"""Tables that one process of a job records; the others are about machines."""


def _of_a_rank(part: Evidence) -> bool:
    return any(part.has(name) for name in OF_A_RANK)


def _rank(part: Evidence) -> int | None:
    return part.sources[0].rank


def _as_rank(part: Evidence, rank: int) -> Evidence:
    tables = {
        name: table.with_columns(pl.lit(rank, dtype=pl.Int32).alias("rank"))
        for name, table in part.tables.items()
    }
    devices: dict[tuple[int | None, int], DeviceInfo] = {
        (rank, device): info for (_, device), info in part.facts.devices.items()
    }
    note = f"rank {rank} is deduced from the file name"
    sources = tuple(replace(s, rank=rank, notes=(*s.notes, note)) for s in part.sources)
    return Evidence(tables, replace(part.facts, devices=devices), sources)


def _refuse_other_jobs(parts: Sequence[Evidence]) -> None:
    sizes: dict[int, str] = {}
    for part in parts:
        if part.facts.world_size is not None:
            sizes.setdefault(part.facts.world_size, part.sources[0].path)
    if len(sizes) > 1:
        (one, first), (two, second), *_ = sizes.items()
        raise EvidenceConflict(
            f"These traces are not of one job: {first} says {one} ranks, {second} says {two}.\n"
            "Give the traces of one job only."
        )
    traces = [part for part in parts if part.has("spans")]
    ranked = {rank for part in traces if (rank := _rank(part)) is not None}
    nameless = [part.sources[0].path for part in traces if _rank(part) is None]
    if ranked and nameless:
        raise EvidenceConflict(
            f"{nameless[0]} does not say its rank, and others given with it do.\n"
            "Put the rank into its file name (rank0.json), or leave it out."
        )


def _refuse_overlaps(parts: Sequence[Evidence]) -> None:
    windows: dict[int | None, list[Window]] = {}
    for part in parts:
        spans = part.table("spans")
        start, end = spans["start_ns"].min(), spans["end_ns"].max()
        if isinstance(start, int) and isinstance(end, int):
            window = Window(part.sources[0].path, start, end)
            windows.setdefault(_rank(part), []).append(window)
    for rank, found in windows.items():
        found.sort(key=lambda window: window.start_ns)
        for one, two in zip(found, found[1:], strict=False):
            if two.start_ns >= one.end_ns:
                continue
            shared_s = (min(one.end_ns, two.end_ns) - two.start_ns) / 1e9
            if rank is None:
                raise EvidenceConflict(
                    f"{one.path} and {two.path} overlap by {shared_s:.3g} s, and neither says "
                    "its rank.\nPut the rank into each file name (rank0.json, rank1.json), or "
                    "give one file at a time."
                )
            raise EvidenceConflict(
                f"{one.path} and {two.path} are both of rank {rank} and overlap by "
                f"{shared_s:.3g} s.\nGive only one of them; two runs are compared with "
                "whyidle compare."
            )


def _tables(parts: Sequence[Evidence]) -> dict[str, pl.DataFrame]:
    """The tables of all parts, one below the other; keys renumbered, spans by start again."""
    found: dict[str, list[pl.DataFrame]] = {}
    shifts: dict[str, list[tuple[int, int, int]]] = {}
    threads = sources = 0
    for part in parts:
        for name, table in part.tables.items():
            found.setdefault(name, []).append(table)
            shifts.setdefault(name, []).append((table.height, threads, sources))
        threads += part.table("threads").height
        sources += len(part.sources)
    tables = {name: _renumbered(pl.concat(found[name]), shifts[name]) for name in found}
    if "spans" in tables:
        spans = tables["spans"].sort(
            "start_ns", "end_ns", descending=[False, True], maintain_order=True
        )
        tables["spans"] = spans.with_columns(pl.int_range(pl.len(), dtype=pl.UInt32).alias("row"))
    if "samples" in tables:
        tables["samples"] = tables["samples"].sort("t_ns", maintain_order=True)
    return tables


def _renumbered(table: pl.DataFrame, shifts: list[tuple[int, int, int]]) -> pl.DataFrame:
    """The table with its threads and sources counted on; a shift: rows, threads, sources."""
    rows, threads, sources = zip(*shifts, strict=True)
    new = []
    if table.schema.get("thread") == pl.UInt32:
        new.append((pl.col("thread") + pl.Series(np.repeat(threads, rows))).cast(pl.UInt32))
    if "source" in table.columns:
        new.append((pl.col("source") + pl.Series(np.repeat(sources, rows))).cast(pl.UInt16))
    return table.with_columns(new)


def _facts(parts: Sequence[Evidence]) -> Facts:
    devices: dict[tuple[int | None, int], DeviceInfo] = {}
    flags: dict[str, object] = {}
    versions: dict[str, str] = {}
    for part in parts:
        devices |= part.facts.devices
        for name, value in part.facts.flags.items():
            flags[name] = bool(flags.get(name, True)) and value
        versions = {**part.facts.versions, **versions}
    sizes = [p.facts.world_size for p in parts if p.facts.world_size is not None]
    backends = [p.facts.backend for p in parts if p.facts.backend is not None]
    return Facts(
        devices=devices,
        world_size=sizes[0] if sizes else None,
        backend=backends[0] if backends else None,
        flags=flags,
        versions=versions,
    )
