"""CPU time of machines and jobs as Prometheus has it, of the exporters that clusters run.

node_exporter tells of the machine, cAdvisor and kube-state-metrics of containers and their quota,
slurm-job-exporter of jobs: their cores, and what their threads were doing when it looked.
"""

from __future__ import annotations

import polars as pl

from whyidle.model import HOST_METRICS, SAMPLES, frame

_SINGLE: dict[str, tuple[str, float]] = {
    "node_load1": ("host/load", 1.0),
    "container_cpu_cfs_periods_total": ("job/quota_periods", 1.0),
    "container_cpu_cfs_throttled_periods_total": ("job/quota_periods_held", 1.0),
    "container_spec_cpu_quota": ("job/cpu_quota", 1e-6),
    "container_spec_cpu_period": ("job/cpu_period", 1e-6),
    "kube_pod_container_resource_limits": ("job/cpus", 1.0),
}
_SUMMED: dict[str, tuple[str, float, str | None]] = {
    "slurm_job_core_usage_total": ("job/cpu_time", 1e-9, "job/cpus"),
    "container_cpu_usage_seconds_total": ("job/cpu_time", 1.0, None),
    "node_cpu_seconds_total": ("host/cpu_time", 1.0, "host/cpus"),
}
"""Series that are one per core: our metric of their sum, the factor, and of their number."""

_STATES = {"running": "job/threads_running", "disk-sleep": "job/threads_on_disk"}
_THREADS, _PROCESSES = "slurm_job_threads_count", "slurm_job_process_usage_total"
CPU_NAMES = frozenset([*_SINGLE, *_SUMMED, _THREADS, _PROCESSES])
"""Names in Prometheus that ``cpu_samples`` understands."""

_UNUSED = ("idle", "iowait")
UNLISTED = "its processes used more CPU time than the cores listed for it"
_KEY = ["host", "job", "t_ns"]


def job_of() -> pl.Expr:
    """What to call a job: its number, or its pod and container; null when not labelled."""
    container = pl.col("container")
    return pl.when(container.is_not_null()).then(pl.col("job") + "/" + container).otherwise("job")


def cpu_samples(rows: pl.DataFrame) -> pl.DataFrame:
    """Samples from rows of CPU_NAMES with their labels in columns (host, job, core, state).

    Container readings of a pod as a whole, or of the container that only holds it open, are left
    out, and so is a quota that is not a limit.
    """
    rows = rows.with_columns(pl.col("value").cast(pl.Float64, strict=False))
    rows = rows.filter(pl.col("value").is_finite() & (pl.col("value") >= 0))
    cadvisor = pl.col("name").str.starts_with("container_")
    bare = pl.col("container").is_null() | (pl.col("container") == "POD")
    rows = rows.filter(~(cadvisor & bare))
    found = [_one(rows, name, *what) for name, what in _SINGLE.items()]
    found += [part for name, what in _SUMMED.items() for part in _sums(rows, name, *what)]
    for state, metric in _STATES.items():
        mine = rows.filter((pl.col("name") == _THREADS) & (pl.col("state") == state))
        found.append(_as(mine, metric))
    return frame(SAMPLES, pl.concat(found))


def _one(rows: pl.DataFrame, name: str, metric: str, factor: float) -> pl.DataFrame:
    mine = rows.filter(pl.col("name") == name)
    if name == "kube_pod_container_resource_limits":
        mine = mine.filter(pl.col("state") == "cpu")
    if name == "container_spec_cpu_quota":
        mine = mine.filter(pl.col("value") > 0)
    return _as(mine.with_columns(pl.col("value") * factor), metric)


def _sums(
    rows: pl.DataFrame, name: str, metric: str, factor: float, counted: str | None
) -> list[pl.DataFrame]:
    mine = rows.filter(pl.col("name") == name)
    cores = mine.group_by(_KEY, maintain_order=True).agg(
        pl.col("core").n_unique().cast(pl.Float64).alias("value")
    )
    if name.startswith("node_"):
        mine = mine.filter(~pl.col("state").is_in(_UNUSED))
    sums = mine.group_by(_KEY, maintain_order=True).agg(pl.col("value").sum() * factor)
    if name == "slurm_job_core_usage_total":
        cores = _complete(cores, sums, rows)
    return [_as(sums, metric), *([_as(cores, counted)] if counted else [])]


def _complete(cores: pl.DataFrame, sums: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """The numbers of cores, unknown where processes used more time than those cores gave."""
    used = rows.filter(pl.col("name") == _PROCESSES).group_by(_KEY).agg(pl.col("value").sum())
    told = {"on": _KEY, "how": "left", "nulls_equal": True, "maintain_order": "left"}
    both = cores.join(sums, suffix="_given", **told).join(used, suffix="_used", **told)  # type: ignore[arg-type]
    short = (pl.col("value_used") > pl.col("value_given")).fill_null(value=False)
    return both.select(
        *_KEY,
        pl.when(~short).then("value").alias("value"),
        pl.when(short).then(pl.lit(UNLISTED)).alias("reason"),
    )


def _as(rows: pl.DataFrame, metric: str) -> pl.DataFrame:
    reason = "reason" if "reason" in rows.columns else pl.lit(None, pl.String).alias("reason")
    return rows.select(
        *_KEY, "value", pl.lit(metric).alias("metric"), pl.lit(HOST_METRICS[metric]).alias("unit"),
        reason,
    )  # fmt: skip
