"""What readings of CPU time say of each job, and of the machine that it ran on.

One row of ``jobs``: one job (or container) on one machine. Null wherever it was not read.

========= ======= ======================================================================
host      String
job       String
cpus      Float64 CPUs that it may use: its cores, else its quota by its period
used      Float64 CPUs that it used, mean: CPU time by time
running   Float64 threads that ran or wanted to, mean
on_disk   Float64 threads that waited for a disk, mean
held      Float64 share of the quota's periods in which it ran out; 0..1
gpu       Float64 share of time in which its GPUs ran anything, mean; 0..1
readings  UInt32  of its threads, or of its quota
source    UInt16
machine   Float64 CPUs of the machine
busy      Float64 CPUs of the machine that were in use, mean
load      Float64 threads of the machine that ran or wanted to, mean
========= ======= ======================================================================

A counter that starts again adds what it counted since; nothing is guessed across the restart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import polars as pl

from whyidle.views.sampled import LEAST_READINGS

if TYPE_CHECKING:
    from whyidle.model import Evidence
    from whyidle.views import Views

THREADS, DISK, QUOTA = "job/threads_running", "job/threads_on_disk", "job/quota_periods"
CPU_METRICS = (THREADS, DISK, QUOTA, "job/cpu_time")
"""Any of these tells something of a job's CPUs."""

STARVED = 0.5
"""Studies of wasted GPUs count jobs whose GPUs run something for at most this share of the time."""

_HOST = ["host"]
_JOB = ["host", "job"]
_LEFT = {"how": "left", "nulls_equal": True, "maintain_order": "left"}


def cpu_read(evidence: Evidence) -> bool:
    """Whether anything was read of a job's CPUs."""
    samples = evidence.table("samples")
    return bool(samples["metric"].cast(pl.String).is_in(list(CPU_METRICS)).any())


def jobs(evidence: Evidence) -> pl.DataFrame:
    """The frame that the module describes."""
    samples = evidence.table("samples").with_columns(
        pl.col("host", "job", "metric").cast(pl.String)
    )
    found = samples.filter(pl.col("job").is_not_null() & pl.col("metric").str.starts_with("job/"))
    found = found.group_by(_JOB, maintain_order=True).agg(pl.col("source").min())
    told = {
        "listed": _mean(samples, "job/cpus", _JOB),
        "quota": _mean(samples, "job/cpu_quota", _JOB),
        "period": _mean(samples, "job/cpu_period", _JOB),
        "running": _mean(samples, THREADS, _JOB),
        "on_disk": _mean(samples, DISK, _JOB),
        "used": _rate(samples, "job/cpu_time", _JOB),
        "periods": _gained(samples, QUOTA, _JOB),
        "ran_out": _gained(samples, "job/quota_periods_held", _JOB),
        "gpu": _mean(samples, "gpu_utilization", _JOB),
        "readings": _count(samples, _JOB),
        "machine": _mean(samples, "host/cpus", _HOST),
        "busy": _rate(samples, "host/cpu_time", _HOST),
        "load": _mean(samples, "host/load", _HOST),
    }
    for name, values in told.items():
        keys = [key for key in _JOB if key in values.columns]
        found = found.join(values.rename({"value": name}), on=keys, **_LEFT)  # type: ignore[arg-type]
    ran = pl.when(pl.col("periods") > 0).then(pl.col("ran_out") / pl.col("periods"))
    return found.select(
        *_JOB, pl.coalesce("listed", pl.col("quota") / pl.col("period")).alias("cpus"),
        "used", "running", "on_disk", ran.alias("held"), "gpu", "readings", "source",
        "machine", "busy", "load",
    )  # fmt: skip


def starved() -> pl.Expr:
    """Jobs whose GPUs run little, or whose GPUs were not read."""
    return pl.col("gpu").is_null() | (pl.col("gpu") <= STARVED)


def on_disk() -> pl.Expr:
    """Jobs of whose threads at least as many wait for a disk as want to run."""
    return (pl.col("on_disk") > 0) & (pl.col("on_disk") >= pl.col("running").fill_null(0.0))


def gpu_words(row: Mapping[str, Any]) -> str:
    """How much the GPUs of a job ran, as the end of a sentence; "" where they were not read."""
    if row["gpu"] is None:
        return ""
    return f"; its GPUs ran something for {row['gpu']:.0%} of the time"


def waiting_for_disk(views: Views) -> pl.DataFrame:
    """Starved jobs whose threads wait for a disk, most first; ``sure``: by several readings."""
    found = views.cpu_jobs.filter(starved() & on_disk())
    sure = (pl.col("readings") >= LEAST_READINGS).alias("sure")
    return found.with_columns(sure).sort("on_disk", "job", descending=[True, False])


def _of(samples: pl.DataFrame, metric: str) -> pl.DataFrame:
    return samples.filter((pl.col("metric") == metric) & pl.col("value").is_not_null())


def _mean(samples: pl.DataFrame, metric: str, keys: list[str]) -> pl.DataFrame:
    return _of(samples, metric).group_by(keys).agg(pl.col("value").mean())


def _count(samples: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    mine = samples.filter(
        pl.col("metric").is_in([THREADS, DISK, QUOTA]) & pl.col("value").is_not_null()
    )
    counts = mine.group_by([*keys, "metric"]).len("value")
    return counts.group_by(keys).agg(pl.col("value").max())


def _steps(samples: pl.DataFrame, metric: str, keys: list[str]) -> pl.DataFrame:
    """gained, took_ns: how far a counter went between readings that have times."""
    rows = _of(samples, metric).filter(pl.col("t_ns").is_not_null())
    rows = rows.unique([*keys, "t_ns"], keep="first", maintain_order=True)
    rows = rows.sort(*keys, "t_ns", maintain_order=True)
    return rows.select(
        *keys,
        pl.col("value").diff().over(keys).alias("gained"),
        pl.col("t_ns").diff().over(keys).alias("took_ns"),
    ).filter(pl.col("gained") >= 0)


def _gained(samples: pl.DataFrame, metric: str, keys: list[str]) -> pl.DataFrame:
    steps = _steps(samples, metric, keys)
    return steps.group_by(keys).agg(pl.col("gained").sum().alias("value"))


def _rate(samples: pl.DataFrame, metric: str, keys: list[str]) -> pl.DataFrame:
    steps = _steps(samples, metric, keys)
    return steps.group_by(keys).agg(
        (pl.col("gained").sum() / pl.col("took_ns").sum() * 1e9).alias("value")
    )
