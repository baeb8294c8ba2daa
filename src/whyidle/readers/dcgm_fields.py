"""What DCGM calls its readings: field names old and new, and the short names of ``dcgmi dmon``.

DCGM 4.6 renamed fields and kept the old names; exporters print either. A utilization under a new
name that ends in ``_RATIO`` is a percentage in DCGM 4.6 and a ratio from 4.7 on: see ``EITHER``.
"""

from __future__ import annotations

PERCENT, MIB, MEGAHERTZ, MILLIJOULE = 0.01, 1048576.0, 1e6, 1e-3

FIELDS: dict[str, tuple[str, float]] = {
    "DCGM_FI_DEV_GPU_UTIL": ("gpu_utilization", PERCENT),
    "DCGM_FI_DEV_MEM_COPY_UTIL": ("memory_utilization", PERCENT),
    "DCGM_FI_DEV_ENC_UTIL": ("encoder_utilization", PERCENT),
    "DCGM_FI_DEV_DEC_UTIL": ("decoder_utilization", PERCENT),
    "DCGM_FI_DEV_FB_TOTAL": ("memory_total", MIB),
    "DCGM_FI_DEV_FB_FREE": ("memory_free", MIB),
    "DCGM_FI_DEV_FB_USED": ("memory_used", MIB),
    "DCGM_FI_DEV_FB_RESERVED": ("memory_reserved", MIB),
    "DCGM_FI_DEV_FB_CAPACITY_BYTES": ("memory_total", 1.0),
    "DCGM_FI_DEV_FB_FREE_BYTES": ("memory_free", 1.0),
    "DCGM_FI_DEV_FB_USED_BYTES": ("memory_used", 1.0),
    "DCGM_FI_DEV_FB_RESERVED_BYTES": ("memory_reserved", 1.0),
    "DCGM_FI_DEV_POWER_USAGE": ("power", 1.0),
    "DCGM_FI_DEV_POWER_USAGE_INSTANT": ("power", 1.0),
    "DCGM_FI_DEV_BOARD_POWER_WATTS": ("power", 1.0),
    "DCGM_FI_DEV_POWER_MGMT_LIMIT": ("power_limit", 1.0),
    "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": ("power_limit", 1.0),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ("energy", MILLIJOULE),
    "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL": ("energy", 1.0),
    "DCGM_FI_DEV_GPU_TEMP": ("temperature", 1.0),
    "DCGM_FI_DEV_GPU_TEMP_CELSIUS": ("temperature", 1.0),
    "DCGM_FI_DEV_MEMORY_TEMP": ("memory_temperature", 1.0),
    "DCGM_FI_DEV_MEMORY_TEMP_CELSIUS": ("memory_temperature", 1.0),
    "DCGM_FI_DEV_SM_CLOCK": ("sm_clock", MEGAHERTZ),
    "DCGM_FI_DEV_MEM_CLOCK": ("memory_clock", MEGAHERTZ),
    "DCGM_FI_DEV_VIDEO_CLOCK": ("video_clock", MEGAHERTZ),
    "DCGM_FI_DEV_MAX_SM_CLOCK": ("sm_clock_max", MEGAHERTZ),
    "DCGM_FI_DEV_MAX_MEM_CLOCK": ("memory_clock_max", MEGAHERTZ),
    "DCGM_FI_DEV_FAN_SPEED": ("fan_speed", PERCENT),
    "DCGM_FI_DEV_PCIE_LINK_GEN": ("pcie_gen", 1.0),
    "DCGM_FI_DEV_PCIE_MAX_LINK_GEN": ("pcie_gen_max", 1.0),
    "DCGM_FI_DEV_PCIE_LINK_WIDTH": ("pcie_width", 1.0),
    "DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH": ("pcie_width_max", 1.0),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": ("pcie_replays", 1.0),
    "DCGM_FI_DEV_PCIE_REPLAY_TOTAL": ("pcie_replays", 1.0),
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": ("ecc_corrected", 1.0),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": ("ecc_uncorrected", 1.0),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": ("graphics_engine_active", 1.0),
    "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO": ("graphics_engine_active", 1.0),
    "DCGM_FI_PROF_SM_ACTIVE": ("sm_active", 1.0),
    "DCGM_FI_PROF_SM_UTIL_RATIO": ("sm_active", 1.0),
    "DCGM_FI_PROF_SM_OCCUPANCY": ("sm_occupancy", 1.0),
    "DCGM_FI_PROF_SM_OCCUPANCY_RATIO": ("sm_occupancy", 1.0),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": ("tensor_active", 1.0),
    "DCGM_FI_PROF_TENSOR_UTIL_RATIO": ("tensor_active", 1.0),
    "DCGM_FI_PROF_DRAM_ACTIVE": ("dram_active", 1.0),
    "DCGM_FI_PROF_DRAM_UTIL_RATIO": ("dram_active", 1.0),
    "DCGM_FI_PROF_PIPE_FP64_ACTIVE": ("fp64_active", 1.0),
    "DCGM_FI_PROF_FP64_UTIL_RATIO": ("fp64_active", 1.0),
    "DCGM_FI_PROF_PIPE_FP32_ACTIVE": ("fp32_active", 1.0),
    "DCGM_FI_PROF_FP32_UTIL_RATIO": ("fp32_active", 1.0),
    "DCGM_FI_PROF_PIPE_FP16_ACTIVE": ("fp16_active", 1.0),
    "DCGM_FI_PROF_FP16_UTIL_RATIO": ("fp16_active", 1.0),
    "DCGM_FI_PROF_PCIE_TX_BYTES": ("pcie_tx", 1.0),
    "DCGM_FI_PROF_PCIE_RX_BYTES": ("pcie_rx", 1.0),
    "DCGM_FI_PROF_NVLINK_TX_BYTES": ("nvlink_tx", 1.0),
    "DCGM_FI_PROF_NVLINK_RX_BYTES": ("nvlink_rx", 1.0),
}
"""Field -> our metric and the factor to our unit."""

EITHER = {
    "DCGM_FI_DEV_GPU_UTIL_RATIO": "gpu_utilization",
    "DCGM_FI_DEV_MEMORY_UTIL_RATIO": "memory_utilization",
    "DCGM_FI_DEV_ENC_UTIL_RATIO": "encoder_utilization",
    "DCGM_FI_DEV_DEC_UTIL_RATIO": "decoder_utilization",
}
"""Fields that are percentages or ratios, depending on the version, which is not written."""

SHORT = {
    "GPUTL": "DCGM_FI_DEV_GPU_UTIL", "MCUTL": "DCGM_FI_DEV_MEM_COPY_UTIL",
    "ECUTL": "DCGM_FI_DEV_ENC_UTIL", "DCUTL": "DCGM_FI_DEV_DEC_UTIL",
    "FBTTL": "DCGM_FI_DEV_FB_TOTAL", "FBFRE": "DCGM_FI_DEV_FB_FREE",
    "FBUSD": "DCGM_FI_DEV_FB_USED", "FBRSV": "DCGM_FI_DEV_FB_RESERVED",
    "POWER": "DCGM_FI_DEV_POWER_USAGE", "TOTEC": "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
    "TMPTR": "DCGM_FI_DEV_GPU_TEMP", "MMTMP": "DCGM_FI_DEV_MEMORY_TEMP",
    "SMCLK": "DCGM_FI_DEV_SM_CLOCK", "MMCLK": "DCGM_FI_DEV_MEM_CLOCK",
    "VICLK": "DCGM_FI_DEV_VIDEO_CLOCK", "GRACT": "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
    "SMACT": "DCGM_FI_PROF_SM_ACTIVE", "SMOCC": "DCGM_FI_PROF_SM_OCCUPANCY",
    "TENSO": "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DRAMA": "DCGM_FI_PROF_DRAM_ACTIVE",
    "FP64A": "DCGM_FI_PROF_PIPE_FP64_ACTIVE", "FP32A": "DCGM_FI_PROF_PIPE_FP32_ACTIVE",
    "FP16A": "DCGM_FI_PROF_PIPE_FP16_ACTIVE", "PCITX": "DCGM_FI_PROF_PCIE_TX_BYTES",
    "PCIRX": "DCGM_FI_PROF_PCIE_RX_BYTES", "NVLTX": "DCGM_FI_PROF_NVLINK_TX_BYTES",
    "NVLRX": "DCGM_FI_PROF_NVLINK_RX_BYTES",
}  # fmt: skip
"""Column of ``dcgmi dmon`` -> field."""
