"""Which readings are about the same GPU: sources name it by uuid, bus id, or index.

Two names are one GPU when they share a uuid, or the machine and the machine's index. Sources that
name no machine are taken to be of one machine, unless two of them hold readings of the same index
at the same time: then they are of as many machines.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import polars as pl

from whyidle.model import METRICS, Evidence

NAMES = ("source", "host", "gpu", "device")
"""Columns that name a GPU in the tables samples and settings."""

MEMBERS: dict[str, Any] = {
    "source": pl.UInt16, "host": pl.String, "gpu": pl.String, "device": pl.Int32,
    "number": pl.UInt32,
}  # fmt: skip
"""One row: one way in which one source names a GPU, and the GPU's number."""

_UUID = re.compile(r"(GPU|MIG)-[0-9a-f-]{8,}", re.I)
_MASKED = re.compile(r"[0x*-]+", re.I)

Row = tuple[int, str | None, str | None, int | None]


def members(evidence: Evidence) -> pl.DataFrame:
    """Every name of every GPU that was sampled or described; see MEMBERS.

    Numbers run from 0 in order of machine, index and name.
    """
    named = pl.concat(
        [
            _names(evidence.table("samples")),
            _names(evidence.table("settings")),
        ]
    ).unique(maintain_order=True)
    rows = named.rows()
    apart = _one_machine_each(evidence, rows)
    group = _joined([_keys(row, apart) for row in rows])
    order = sorted(set(group), key=lambda g: _place(g, group, rows))
    numbers = {g: n for n, g in enumerate(order)}
    return named.with_columns(pl.Series("number", [numbers[g] for g in group], pl.UInt32))


def machines_told_apart(evidence: Evidence) -> bool:
    """Whether sources that name no machine are taken to be of several."""
    rows = _names(evidence.table("samples")).unique(maintain_order=True).rows()
    return bool(_one_machine_each(evidence, rows))


def about_gpus(table: pl.DataFrame) -> pl.Expr:
    """Which rows of samples are readings of a GPU: those of our metrics, named or not.

    A source that names no GPU at all has one without a name. What the training logged names none.
    """
    metrics = table["metric"].unique().cast(pl.String)
    own = metrics.filter(metrics.is_in(list(METRICS)))
    return pl.col("metric").cast(pl.String).is_in(own.implode())


def _names(table: pl.DataFrame) -> pl.DataFrame:
    """The names in a table."""
    known = pl.col("gpu").is_not_null() | pl.col("device").is_not_null()
    if "metric" in table.columns:
        known = about_gpus(table)
    return (
        table.lazy()
        .filter(known)
        .select(NAMES)
        .unique(maintain_order=True)
        .with_columns(pl.col("host", "gpu").cast(pl.String))
        .collect()
    )


def _keys(row: Row, apart: set[int | None]) -> list[Hashable]:
    """What makes this name the same GPU as another one."""
    source, host, gpu, device = row
    machine: Hashable = host
    if host is None and device in apart:
        machine = source
    found: list[Hashable] = []
    if device is not None:
        found.append(("index", machine, device))
    if gpu is not None and _is_uuid(gpu):
        found.append(("uuid", gpu.lower()))
    elif gpu is not None and not (device is not None and gpu == str(device)):
        found.append(("name", machine, gpu))
    return found or [("source", source, gpu)]


def _is_uuid(text: str) -> bool:
    """Whether it is a uuid that was not masked: a masked one is the same for every GPU."""
    return bool(_UUID.match(text)) and not _MASKED.fullmatch(text[4:])


def _joined(keys: list[list[Hashable]]) -> list[int]:
    """A group number for each list; lists that share a key, directly or not, share the group."""
    parent = list(range(len(keys)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    first: dict[Hashable, int] = {}
    for i, mine in enumerate(keys):
        for key in mine:
            j = first.setdefault(key, i)
            parent[max(root(i), root(j))] = min(root(i), root(j))
    return [root(i) for i in range(len(keys))]


def _place(group: int, groups: list[int], rows: list[Any]) -> tuple[str, int, str]:
    mine = [row for row, g in zip(rows, groups, strict=True) if g == group]
    hosts = [host for _, host, _, _ in mine if host is not None]
    devices = [device for *_, device in mine if device is not None]
    names = [gpu for _, _, gpu, _ in mine if gpu is not None]
    return min(hosts, default=""), min(devices, default=1 << 31), min(names, default="")


def _one_machine_each(evidence: Evidence, rows: list[Any]) -> set[int | None]:
    """Indices that several sources without a machine name sampled at the same time."""
    nameless = {(source, device) for source, host, _, device in rows if host is None}
    if len({source for source, _ in nameless}) < 2:
        return set()
    meters = pl.col("metric").cast(pl.String) == "gpu_utilization"
    known = pl.col("host").is_null() & pl.col("device").is_not_null() & pl.col("t_ns").is_not_null()
    ranges = (
        evidence.table("samples").lazy()
        .filter(known & pl.col("process").is_null() & meters)
        .group_by("source", "device")
        .agg(pl.col("t_ns").min().alias("low"), pl.col("t_ns").max().alias("high"))
        .sort("device", "low", "high")
        .with_columns(pl.col("high").cum_max().shift(1).over("device").alias("reach"))
        .filter(pl.col("low") < pl.col("reach"))
        .collect()
    )  # fmt: skip
    return set(ranges["device"].to_list())
