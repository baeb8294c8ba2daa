"""What W&B calls its system metrics (``gpu.0.smActive``) -> our names and units."""

from __future__ import annotations

import re

GPU: dict[str, tuple[str, float]] = {
    "gpu": ("gpu_utilization", 0.01),
    "memory": ("memory_utilization", 0.01),
    "memoryAllocatedBytes": ("memory_used", 1.0),
    "temp": ("temperature", 1.0),
    "powerWatts": ("power", 1.0),
    "enforcedPowerLimitWatts": ("power_limit", 1.0),
    "smClock": ("sm_clock", 1e6),
    "graphicsClock": ("graphics_clock", 1e6),
    "memoryClock": ("memory_clock", 1e6),
    "fanSpeed": ("fan_speed", 0.01),
    "correctedMemoryErrors": ("ecc_corrected", 1.0),
    "uncorrectedMemoryErrors": ("ecc_uncorrected", 1.0),
    "encoderUtilization": ("encoder_utilization", 0.01),
    "pcieLinkGen": ("pcie_gen", 1.0),
    "pcieLinkWidth": ("pcie_width", 1.0),
    "maxPcieLinkGen": ("pcie_gen_max", 1.0),
    "maxPcieLinkWidth": ("pcie_width_max", 1.0),
    "smActive": ("sm_active", 0.01),
    "smOccupancy": ("sm_occupancy", 0.01),
    "pipeTensorActive": ("tensor_active", 0.01),
    "dramActive": ("dram_active", 0.01),
    "pipeFp64Active": ("fp64_active", 0.01),
    "pipeFp32Active": ("fp32_active", 0.01),
    "pipeFp16Active": ("fp16_active", 0.01),
    "grEngineActive": ("graphics_engine_active", 0.01),
    "pcieTxBytes": ("pcie_tx", 1.0),
    "pcieRxBytes": ("pcie_rx", 1.0),
    "nvlinkTxBytes": ("nvlink_tx", 1.0),
    "nvlinkRxBytes": ("nvlink_rx", 1.0),
}
"""What follows ``gpu.N.`` or ``gpu.process.N.`` -> our metric and the factor to our unit."""

HOST: dict[str, tuple[str, float]] = {
    "cpu": ("host/cpu_utilization", 0.01),
    "memory": ("host/memory_utilization", 0.01),
    "memory_percent": ("host/memory_utilization", 0.01),
}

_GPU = re.compile(r"gpu\.(process\.)?(\d{1,6})\.(\w+)(?:/l:(\S+))?")


def translated(key: str) -> tuple[str, float, int | None, bool, str | None] | None:
    """(metric, factor, index of the GPU, of the job's process alone, node) of a system key."""
    bare, _, node = key.removeprefix("system.").partition("/l:")
    found = _GPU.fullmatch(bare)
    if found is None:
        known = HOST.get(bare)
        return (*known, None, False, node or None) if known else None
    metric = GPU.get(found[3])
    return (*metric, int(found[2]), bool(found[1]), node or None) if metric else None
