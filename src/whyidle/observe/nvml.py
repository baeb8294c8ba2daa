"""Readings of GPUs by NVML, through ``pynvml`` of the package nvidia-ml-py where it is installed.

Devices are counted as the driver does, before CUDA_VISIBLE_DEVICES. From Hopper on, the GPU
counts what its parts do (GPM), which tells more than whether a kernel was resident.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from whyidle.observe.host import Reading

MHZ = 1e6
KIB = 1024.0
MIB = 1024.0 * 1024.0

GPM = (
    (1, "graphics_engine_active", 0.01),
    (2, "sm_active", 0.01),
    (3, "sm_occupancy", 0.01),
    (5, "tensor_active", 0.01),
    (10, "dram_active", 0.01),
    (11, "fp64_active", 0.01),
    (12, "fp32_active", 0.01),
    (13, "fp16_active", 0.01),
    (20, "pcie_tx", MIB),
    (21, "pcie_rx", MIB),
    (60, "nvlink_rx", MIB),
    (61, "nvlink_tx", MIB),
)
"""Number in NVML, our name, and what one unit of NVML's is in ours."""

REASONS = (
    (0x01, "throttle_gpu_idle"),
    (0x02, "throttle_clocks_setting"),
    (0x04, "throttle_sw_power_cap"),
    (0x08, "throttle_hw_slowdown"),
    (0x10, "throttle_sync_boost"),
    (0x20, "throttle_sw_thermal_slowdown"),
    (0x40, "throttle_hw_thermal_slowdown"),
    (0x80, "throttle_hw_power_brake"),
)
LARGEST_BYTES = 1 << 50
"""NVML says all ones where it does not know how much memory a process holds."""


class Gpu:
    """One GPU. What it does not support is asked once, told once with the reason, and left out."""

    def __init__(self, nvml: Any, device: int) -> None:
        self._nvml = nvml
        self._device = device
        self._handle = nvml.nvmlDeviceGetHandleByIndex(device)
        uuid = nvml.nvmlDeviceGetUUID(self._handle)
        self._gpu = uuid.decode() if isinstance(uuid, bytes) else str(uuid)
        self._refused: set[str] = set()
        self._sample: Any = None
        self._gpm = self._supports_gpm()

    def _supports_gpm(self) -> bool:
        try:
            found = self._nvml.nvmlGpmQueryDeviceSupport(self._handle)
        except (self._nvml.NVMLError, AttributeError):
            return False
        return bool(found.isSupportedDevice)

    def read(self, period_ns: int | None, pids: frozenset[int]) -> Iterator[Reading]:
        """All readings now; ``period_ns`` since the ones before, None at first."""
        gpm = self._active(period_ns) if self._gpm else []
        known = {reading.metric for reading in gpm}
        for name, ask in _QUESTIONS:
            if name not in self._refused:
                yield from (r for r in self._answers(name, ask, period_ns) if r.metric not in known)
        yield from gpm
        yield from self._processes(pids)

    def _answers(
        self, name: str, ask: Callable[[Any, Any], dict[str, float]], period_ns: int | None
    ) -> Iterator[Reading]:
        try:
            found = ask(self._nvml, self._handle)
        except (self._nvml.NVMLError, AttributeError) as error:
            self._refused.add(name)
            yield self._of(name, None, reason=str(error)[:100])
            return
        lasting = period_ns if name == "gpu_utilization" else None
        for metric, value in found.items():
            yield self._of(metric, value, lasting)

    def _of(
        self,
        metric: str,
        value: float | None,
        period_ns: int | None = None,
        reason: str | None = None,
        pid: int | None = None,
    ) -> Reading:
        return Reading(metric, value, period_ns, reason, pid, self._device, self._gpu)

    def _active(self, period_ns: int | None) -> list[Reading]:
        """What the GPU's own counters say of the time since the sample before."""
        nvml = self._nvml
        try:
            sample = nvml.nvmlGpmSampleAlloc()
            nvml.nvmlGpmSampleGet(self._handle, sample)
            before, self._sample = self._sample, sample
            if before is None or period_ns is None:
                return []
            try:
                asked = nvml.c_nvmlGpmMetricsGet_t()
                asked.version = nvml.NVML_GPM_METRICS_GET_VERSION
                asked.numMetrics = len(GPM)
                asked.sample1, asked.sample2 = before, sample
                for place, (number, _, _) in enumerate(GPM):
                    asked.metrics[place].metricId = number
                nvml.nvmlGpmMetricsGet(asked)
            finally:
                nvml.nvmlGpmSampleFree(before)
        except nvml.NVMLError:
            self._gpm = False
            return []
        found = []
        for place, (_, metric, unit) in enumerate(GPM):
            one = asked.metrics[place]
            if not one.nvmlReturn and one.value == one.value:
                found.append(self._of(metric, one.value * unit, period_ns))
        return found

    def _processes(self, pids: frozenset[int]) -> Iterator[Reading]:
        """Memory that each of the job's processes holds on this GPU."""
        if "processes" in self._refused:
            return
        try:
            found = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        except (self._nvml.NVMLError, AttributeError):
            self._refused.add("processes")
            return
        for one in found:
            held = one.usedGpuMemory
            if one.pid in pids and held is not None and held < LARGEST_BYTES:
                yield self._of("memory_used", held, pid=one.pid)


def _utilization(nvml: Any, handle: Any) -> dict[str, float]:
    found = nvml.nvmlDeviceGetUtilizationRates(handle)
    return {"gpu_utilization": found.gpu / 100, "memory_utilization": found.memory / 100}


def _memory(nvml: Any, handle: Any) -> dict[str, float]:
    found = nvml.nvmlDeviceGetMemoryInfo(handle)
    return {"memory_used": found.used, "memory_total": found.total}


def _reasons(nvml: Any, handle: Any) -> dict[str, float]:
    name = "nvmlDeviceGetCurrentClocksEventReasons"
    ask = getattr(nvml, name, None) or nvml.nvmlDeviceGetCurrentClocksThrottleReasons
    bits = ask(handle)
    return {metric: float(bool(bits & bit)) for bit, metric in REASONS}


def _links(nvml: Any, handle: Any) -> dict[str, float]:
    return {
        "pcie_gen": nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle),
        "pcie_gen_max": nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle),
        "pcie_width": nvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
        "pcie_width_max": nvml.nvmlDeviceGetMaxPcieLinkWidth(handle),
    }


_QUESTIONS: tuple[tuple[str, Callable[[Any, Any], dict[str, float]]], ...] = (
    ("gpu_utilization", _utilization),
    ("memory_used", _memory),
    ("power", lambda n, h: {"power": n.nvmlDeviceGetPowerUsage(h) / 1000}),
    ("power_limit", lambda n, h: {"power_limit": n.nvmlDeviceGetEnforcedPowerLimit(h) / 1000}),
    ("temperature", lambda n, h: {"temperature": n.nvmlDeviceGetTemperature(h, 0)}),
    ("sm_clock", lambda n, h: {"sm_clock": n.nvmlDeviceGetClockInfo(h, 1) * MHZ}),
    ("sm_clock_max", lambda n, h: {"sm_clock_max": n.nvmlDeviceGetMaxClockInfo(h, 1) * MHZ}),
    ("memory_clock", lambda n, h: {"memory_clock": n.nvmlDeviceGetClockInfo(h, 2) * MHZ}),
    ("throttle_gpu_idle", _reasons),
    ("pcie_gen", _links),
)
"""By the first metric of each answer, which is what a refusal is told of."""


class Gpus:
    """All GPUs that the driver shows."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._gpus = [Gpu(nvml, device) for device in range(nvml.nvmlDeviceGetCount())]
        self._before_ns: int | None = None

    def read(self, at_ns: int, pids: frozenset[int]) -> list[Reading]:
        """Readings of every GPU at an instant; a GPU that is lost is left out."""
        period_ns = None if self._before_ns is None else at_ns - self._before_ns
        self._before_ns = at_ns
        found: list[Reading] = []
        for gpu in list(self._gpus):
            try:
                found += gpu.read(period_ns, pids)
            except self._nvml.NVMLError:
                self._gpus.remove(gpu)
        return found

    def close(self) -> None:
        """Let the driver go."""
        with suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()


def opened() -> Gpus | None:
    """The machine's GPUs by NVML; None without the package, a driver, or a GPU."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        found = Gpus(pynvml)
    except pynvml.NVMLError:
        pynvml.nvmlShutdown()
        return None
    if not found._gpus:
        found.close()
        return None
    return found
