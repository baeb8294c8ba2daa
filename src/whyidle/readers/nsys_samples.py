"""GPU metrics that Nsight Systems sampled (``--gpu-metrics-devices``), under our names and units.

A reading at T stands for the time from T to the next one. Rates of thousands a second would be
millions of rows, so readings are averaged until there are at most ``MOST`` a second; the mean over
a longer period is the same quantity.
"""

from __future__ import annotations

import re

import polars as pl

from whyidle.model import METRICS, SAMPLES, frame
from whyidle.readers.nsys_facts import Heading
from whyidle.readers.nsys_frame import FARTHEST_NS, Processes
from whyidle.readers.nsys_tables import Tables

READINGS = "GPU_METRICS"
NAMES = "TARGET_INFO_GPU_METRICS"
MOST = 1000
_GPU_BITS = 0xFF
"""The low bits of ``typeId`` are the GPU's number on the machine."""

_METRICS: tuple[tuple[re.Pattern[str], str, float], ...] = (
    (re.compile(r"^GR Active \[Throughput %\]"), "graphics_engine_active", 0.01),
    (re.compile(r"^GPU Active \[Throughput %\]"), "graphics_engine_active", 0.01),
    (re.compile(r"^SMs? Active \[Throughput %\]"), "sm_active", 0.01),
    (re.compile(r"^Tensor Active( / FP16 Active)? \[Throughput %\]"), "tensor_active", 0.01),
    (re.compile(r"^Compute Warps In Flight \[Throughput %\]", re.I), "sm_occupancy", 0.01),
    (re.compile(r"^DRAM (Read|Write) Bandwidth \[Throughput %\]"), "dram_active", 0.01),
    (re.compile(r"^GPC Clock Frequency \[MHz\]"), "sm_clock", 1.0),
)
"""The profiler's name, ours, and what to multiply by; clocks are written in Hz. Reads and writes
of device memory add up. Traffic of PCIe and NVLink is a share of an unstated peak: left out."""


def samples_of(tables: Tables, heading: Heading, found: Processes) -> pl.DataFrame | None:
    """The ``samples`` table, instants on the export's own clock; None when none were taken."""
    if not tables.has(READINGS, "timestamp", "metricId", "value"):
        return None
    known = _known(tables)
    batches = list(
        tables.numbers(READINGS, t_ns="timestamp", type="typeId", id="metricId", value="value")
    )
    if not batches or not known.height:
        return None
    whole = pl.concat(batches).drop_nulls(["t_ns", "id", "value"])
    whole = whole.filter(pl.col("t_ns").is_between(-FARTHEST_NS, FARTHEST_NS))
    keys = ["type", "id"] if known["type"].is_not_null().all() else ["id"]
    whole = whole.join(known.unique(keys), on=keys, how="inner", nulls_equal=True)
    clock = pl.col("metric") == "sm_clock"
    unwrapped = pl.when(clock & (pl.col("value") < 0)).then(pl.col("value") + (1 << 32))
    whole = whole.with_columns(
        (pl.col("type").fill_null(0) & _GPU_BITS).alias("number"),
        (unwrapped.otherwise("value") * pl.col("factor")).alias("value"),
    )
    whole = whole.group_by("number", "metric", "t_ns").agg(pl.col("value").sum())
    whole = _thinned(whole.sort("number", "metric", "t_ns"))
    whole = whole.filter((pl.col("value") >= 0) & ((pl.col("value") <= 1.5) | clock))
    return _in_our_columns(whole, heading, found) if whole.height else None


def _known(tables: Tables) -> pl.DataFrame:
    """type, id, metric and factor of every metric that has a name of ours."""
    rows = []
    for type_, number, name in tables.few(NAMES, "typeId", "metricId", "metricName"):
        for pattern, metric, factor in _METRICS:
            if isinstance(number, int) and isinstance(name, str) and pattern.match(name):
                rows.append((type_ if isinstance(type_, int) else None, number, metric, factor))
                break
    schema = {"type": pl.Int64, "id": pl.Int64, "metric": pl.String, "factor": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _thinned(whole: pl.DataFrame) -> pl.DataFrame:
    """Means over periods of 1/MOST s where there are more; t_ns is the end of each period."""
    series = ["number", "metric"]
    step = pl.col("t_ns").diff().over(series)
    typical = whole.select(step.median()).item()
    period = int(typical) if isinstance(typical, float | int) and typical > 0 else None
    if period is None or period * MOST >= 1_000_000_000:
        lasted = -pl.col("t_ns").diff(-1).over(series)
        lasted = lasted.fill_null(period) if period is not None else lasted
        return whole.with_columns(
            lasted.alias("period_ns"), (pl.col("t_ns") + lasted.fill_null(0)).alias("t_ns")
        )
    wide = 1_000_000_000 // MOST
    return (
        whole.group_by(*series, (pl.col("t_ns") // wide * wide + wide).alias("t_ns"))
        .agg(pl.col("value").mean())
        .with_columns(pl.lit(wide, dtype=pl.Int64).alias("period_ns"))
        .sort(*series, "t_ns")
    )


def _in_our_columns(whole: pl.DataFrame, heading: Heading, found: Processes) -> pl.DataFrame:
    """Name the GPU, and the rank and device that use it where that is one."""
    users: dict[int, list[tuple[int | None, int]]] = {}
    for key, rank in zip(found.keys, found.ranks, strict=True):
        for device in range(64):
            gpu = heading.gpu_of(key, device)
            if gpu is not None:
                users.setdefault(gpu.number, []).append((rank, device))
    rows = []
    for number in whole["number"].unique().to_list():
        gpu = heading.gpus.get(number)
        mine = users.get(number, [])
        rank, device = mine[0] if len(mine) == 1 else (None, number)
        rows.append((number, rank, device, gpu.name if gpu is not None else str(number)))
    schema = {"number": pl.Int64, "rank": pl.Int32, "device": pl.Int32, "gpu": pl.String}
    named = whole.join(pl.DataFrame(rows, schema=schema, orient="row"), on="number", how="left")
    named = named.with_columns(
        pl.lit(0, dtype=pl.UInt16).alias("source"),
        pl.col("metric").replace_strict(METRICS, return_dtype=pl.String).alias("unit"),
    )
    return frame(SAMPLES, named.sort("t_ns", "number", "metric"))
