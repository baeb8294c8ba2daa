"""What a cause may need, whether the evidence holds it, and how to record it when it does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import polars as pl

from whyidle.views.cpu_use import cpu_read
from whyidle.views.recorders import record_with

if TYPE_CHECKING:
    from whyidle.model import DeviceInfo
    from whyidle.views import Views


@dataclass(frozen=True)
class Need:
    """One thing that evidence may lack."""

    missing: str  # completes "not judged, because there is no ..."
    record_with: str
    present: Callable[[Views], bool]


def _launched(views: Views) -> bool:
    return bool(views.activity["launch"].is_not_null().any())


def _device(views: Views) -> bool:
    return views.has_device


def _host(views: Views) -> bool:
    return bool(views.evidence.table("spans")["kind"].is_in(["op", "annotation"]).any())


def _frames(views: Views) -> bool:
    return bool((views.evidence.table("spans")["kind"] == "python").any())


def _ops(views: Views) -> bool:
    return bool((views.evidence.table("spans")["kind"] == "op").any())


def _column(name: str) -> Callable[[Views], bool]:
    return lambda views: bool(views.evidence.table("spans")[name].is_not_null().any())


def _table(name: str) -> Callable[[Views], bool]:
    return lambda views: views.evidence.has(name)


def _series(views: Views) -> bool:
    return views.sampled.gpus.height > 0


def _timed(views: Views) -> bool:
    return bool(views.moments.trainers)


def _gpu_settings(views: Views) -> bool:
    about = pl.col("gpu").is_not_null() | pl.col("device").is_not_null()
    return bool(views.evidence.table("settings").select(about.any()).item())


def _thread_count(views: Views) -> bool:
    keys = views.evidence.table("settings")["key"].cast(pl.String)
    return bool((keys == "cpus").any())


def _read(*metrics: str) -> Callable[[Views], bool]:
    return lambda views: _series(views) and views.sampled.has(*metrics)


def _judged(views: Views) -> list[DeviceInfo]:
    """What is known of each device that has a window; others that are listed do not matter."""
    pairs = views.windows.select("rank", "device").iter_rows()
    return [views.facts.device(rank, device) for rank, device in pairs]


def _sms(views: Views) -> bool:
    return any(info.sms for info in _judged(views))


def _steps(views: Views) -> bool:
    return views.marks.height > 0


def _blame(views: Views) -> bool:
    return _host(views) and (_launched(views) or not views.has_device)


def _calls(views: Views) -> bool:
    return _blame(views) or _launched(views)


def _work(views: Views) -> bool:
    return views.windows.height > 0


def _tensor_cores(views: Views) -> bool:
    devices = _judged(views)
    return any(d.capability is not None or (d.vendor == "amd" and d.name) for d in devices)


def _alignment(views: Views) -> bool:
    return _column("shapes")(views) or views.kernels["align"].is_not_null().any()


_PROFILE = "torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
_SAMPLER = (
    "nvidia-smi --query-gpu=timestamp,index,uuid,name,utilization.gpu,memory.used,memory.total,"
    "power.draw,power.limit,clocks.sm,clocks.max.sm --format=csv -l 1"
)
_OBSERVED = "whyidle run -- python train.py"
_LISTS = "torch that lists the GPU in the trace (deviceProperties)"
PEERS = Need(
    "the same collectives as other ranks saw them",
    "the same steps on every rank, each into its own file, and whyidle diagnose FOLDER",
    lambda views: False,  # only the ranks together can tell
)
NEEDS: dict[str, Need] = {
    "peers": PEERS,
    "device": Need("device activity", f"{_PROFILE})", _device),
    "launches": Need(
        "launch records that join device work to host calls", f"{_PROFILE})", _launched
    ),
    "host": Need("host operators or annotations", f"{_PROFILE})", _host),
    "blame": Need("host activity with launches", f"{_PROFILE})", _blame),
    "calls": Need("calls that launch device work", f"{_PROFILE})", _calls),
    "ops": Need("framework operators", f"{_PROFILE})", _ops),
    "steps": Need(
        "step marks", f"{_PROFILE}, schedule=...) and prof.step() after each step", _steps
    ),
    "shapes": Need("operator input shapes", f"{_PROFILE}, record_shapes=True)", _column("shapes")),
    "blocks": Need("kernel grid sizes", f"{_PROFILE})", _column("blocks")),
    "sms": Need("the GPU's number of multiprocessors", f"{_PROFILE}) with a {_LISTS}", _sms),
    "work": Need("device activity, or operators of a run without a GPU", f"{_PROFILE})", _work),
    "tensor_cores": Need(
        "the GPU's compute capability or model", f"{_PROFILE}) with a {_LISTS}", _tensor_cores
    ),
    "alignment": Need(
        "operator input shapes, and kernel names that state their alignment",
        f"{_PROFILE}, record_shapes=True)",
        _alignment,
    ),
    "frames": Need("Python frames", f"{_PROFILE}, with_stack=True)", _frames),
    "samples": Need(
        "readings of the GPU over time",
        "nvidia-smi --query-gpu=timestamp,index,utilization.gpu,power.draw,clocks.sm --format=csv "
        "-l 1",
        _table("samples"),
    ),
    "series": Need("a series of readings with times", _SAMPLER, _series),
    "timed_run": Need("the times of all steps", _OBSERVED, _timed),
    "series_or_run": Need(
        "a series of readings with times, or the times of all steps",
        f"{_OBSERVED}; or {_SAMPLER}",
        lambda views: _series(views) or _timed(views),
    ),
    "sampled_memory": Need("readings of memory in use", _SAMPLER, _read("memory_used")),
    "sampled_clocks": Need(
        "readings of the SM clock and its maximum", _SAMPLER, _read("sm_clock", "sm_clock_max")
    ),
    "sampled_power": Need("readings of power", _SAMPLER, _read("power")),
    "sampled_sms": Need(
        "readings of how many multiprocessors were active",
        "dcgmi dmon -e 203,1002,1003,1004,1005 -d 1000, or a Prometheus scrape of dcgm-exporter",
        _read("sm_active"),
    ),
    "reads": Need(
        "Python frames of the loader, or what the job's threads waited for",
        f"{_PROFILE}, with_stack=True)",
        lambda views: cpu_read(views.evidence) or (_blame(views) and _frames(views)),
    ),
    "cpu_use": Need(
        "readings of the job's CPUs",
        "a Prometheus range of container_cpu_cfs_periods_total, "
        "container_cpu_cfs_throttled_periods_total and container_cpu_usage_seconds_total of the "
        "pod, or of slurm_job_threads_count and slurm_job_core_usage_total",
        lambda views: cpu_read(views.evidence),
    ),
    "foreign_load": Need(
        "the machine's load beside the job's CPU time, or marked steps with launches",
        f"{_PROFILE}, schedule=...) and prof.step() after each step; or a Prometheus range of "
        "node_load1, node_cpu_seconds_total and container_cpu_usage_seconds_total",
        lambda views: cpu_read(views.evidence) or (_blame(views) and _steps(views)),
    ),
    "settings": Need("the GPU's settings", "nvidia-smi -q -x", _gpu_settings),
    "thread_count": Need("the threads of each process and its CPUs", _OBSERVED, _thread_count),
    "links": Need("how the GPUs are connected", "nvidia-smi topo -m", _table("links")),
    "memory_blocks": Need(
        "a snapshot of the CUDA memory allocator",
        "torch.cuda.memory._record_memory_history() before the steps and "
        "torch.cuda.memory._dump_snapshot(file) after them",
        _table("memory_blocks"),
    ),
    "allocations": Need(
        "a history of CUDA memory",
        "torch.cuda.memory._record_memory_history() before the steps and "
        "torch.cuda.memory._dump_snapshot(file) after them",
        _table("allocations"),
    ),
    "collectives": Need(
        "dumps of the NCCL flight recorder",
        "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 in every rank's "
        "environment",
        _table("collectives"),
    ),
}
"""Capability -> what it is. Any other need is the name of a table of the evidence."""


def missing(views: Views, needs: tuple[str, ...]) -> list[Need]:
    """The needs that this evidence does not meet, in the order given."""
    lacking = [(name, need) for name in needs if not (need := _need(name)).present(views)]
    return [
        replace(need, record_with=record_with(views.evidence, name, need.record_with))
        for name, need in lacking
    ]


def _need(name: str) -> Need:
    if name in NEEDS:
        return NEEDS[name]
    return Need(f"table {name!r}", f"evidence that holds {name!r}", lambda v: v.evidence.has(name))


def nothing_claimed() -> pl.DataFrame:
    """No claims."""
    from whyidle.model import CLAIMS, frame

    return frame(CLAIMS)
