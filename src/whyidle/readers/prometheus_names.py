"""What exporters of GPU readings call them in Prometheus, and which labels say whose they are."""

from __future__ import annotations

from whyidle.readers.dcgm_fields import EITHER, FIELDS, PERCENT

_EXPORTER = {
    "utilization_gpu_ratio": "gpu_utilization", "utilization_memory_ratio": "memory_utilization",
    "utilization_encoder_ratio": "encoder_utilization",
    "utilization_decoder_ratio": "decoder_utilization",
    "utilization_jpeg_ratio": "jpeg_utilization", "utilization_ofa_ratio": "ofa_utilization",
    "memory_total_bytes": "memory_total", "memory_used_bytes": "memory_used",
    "memory_free_bytes": "memory_free", "memory_reserved_bytes": "memory_reserved",
    "power_draw_watts": "power", "enforced_power_limit_watts": "power_limit",
    "temperature_gpu": "temperature", "temperature_memory": "memory_temperature",
    "clocks_current_sm_clock_hz": "sm_clock", "clocks_current_graphics_clock_hz": "graphics_clock",
    "clocks_current_memory_clock_hz": "memory_clock",
    "clocks_current_video_clock_hz": "video_clock",
    "clocks_max_sm_clock_hz": "sm_clock_max", "clocks_max_memory_clock_hz": "memory_clock_max",
    "pcie_link_gen_current": "pcie_gen", "pcie_link_gen_max": "pcie_gen_max",
    "pcie_link_width_current": "pcie_width", "pcie_link_width_max": "pcie_width_max",
    "fan_speed_ratio": "fan_speed", "energy_joules_total": "energy",
    "pcie_throughput_tx_bytes_per_second": "pcie_tx",
    "pcie_throughput_rx_bytes_per_second": "pcie_rx",
    "mig_memory_total_bytes": "memory_total", "mig_memory_used_bytes": "memory_used",
    "mig_memory_free_bytes": "memory_free", "mig_memory_reserved_bytes": "memory_reserved",
    "mig_graphics_activity_ratio": "graphics_engine_active", "mig_sm_activity_ratio": "sm_active",
    "mig_sm_occupancy_ratio": "sm_occupancy", "mig_tensor_activity_ratio": "tensor_active",
    "mig_pcie_throughput_tx_bytes_per_second": "pcie_tx",
    "mig_pcie_throughput_rx_bytes_per_second": "pcie_rx",
    "compute_app_used_memory_bytes": "memory_used",
    "clocks_event_reasons_gpu_idle": "throttle_gpu_idle",
    "clocks_event_reasons_sw_power_cap": "throttle_sw_power_cap",
    "clocks_event_reasons_hw_slowdown": "throttle_hw_slowdown",
    "clocks_event_reasons_hw_thermal_slowdown": "throttle_hw_thermal_slowdown",
    "clocks_event_reasons_hw_power_brake_slowdown": "throttle_hw_power_brake",
    "clocks_event_reasons_sw_thermal_slowdown": "throttle_sw_thermal_slowdown",
    "clocks_event_reasons_sync_boost": "throttle_sync_boost",
}  # fmt: skip

_OTHERS: dict[str, tuple[str, float]] = {
    # the NVML exporter that jobstats sites run
    "nvidia_gpu_duty_cycle": ("gpu_utilization", PERCENT),
    "nvidia_gpu_memory_used_bytes": ("memory_used", 1.0),
    "nvidia_gpu_memory_total_bytes": ("memory_total", 1.0),
    "nvidia_gpu_power_usage_milliwatts": ("power", 1e-3),
    "nvidia_gpu_temperature_celsius": ("temperature", 1.0),
    # slurm-job-exporter
    "slurm_job_utilization_gpu": ("gpu_utilization", PERCENT),
    "slurm_job_utilization_gpu_memory": ("memory_utilization", PERCENT),
    "slurm_job_memory_usage_gpu": ("memory_used", 1.0),
    "slurm_job_power_gpu": ("power", 1e-3),
    "slurm_job_sm_active_gpu": ("sm_active", PERCENT),
    "slurm_job_sm_occupancy_gpu": ("sm_occupancy", PERCENT),
    "slurm_job_tensor_gpu": ("tensor_active", PERCENT),
    "slurm_job_fp64_gpu": ("fp64_active", PERCENT),
    "slurm_job_fp32_gpu": ("fp32_active", PERCENT),
    "slurm_job_fp16_gpu": ("fp16_active", PERCENT),
    # nvitop-exporter
    "gpu_utilization_Percentage": ("gpu_utilization", PERCENT),
    "gpu_memory_utilization_Percentage": ("memory_utilization", PERCENT),
    "gpu_memory_used_MiB": ("memory_used", 1048576.0),
    "gpu_memory_total_MiB": ("memory_total", 1048576.0),
    "gpu_memory_free_MiB": ("memory_free", 1048576.0),
    "gpu_power_usage_W": ("power", 1.0),
    "gpu_temperature_C": ("temperature", 1.0),
    "gpu_fan_speed_Percentage": ("fan_speed", PERCENT),
    # AMD device-metrics-exporter
    "gpu_gfx_activity": ("gpu_utilization", PERCENT),
    "gpu_umc_activity": ("memory_utilization", PERCENT),
    "gpu_package_power": ("power", 1.0),
    "gpu_average_package_power": ("power", 1.0),
}

NAMES: dict[str, tuple[str, float]] = {
    **FIELDS,
    **{name: (metric, 0.0) for name, metric in EITHER.items()},
    **{f"nvidia_smi_{name}": (metric, 1.0) for name, metric in _EXPORTER.items()},
    **{f"nvidia_smi_{name.replace('event', 'throttle')}": (metric, 1.0)
       for name, metric in _EXPORTER.items() if "event" in name},
    **_OTHERS,
}  # fmt: skip
"""Name in Prometheus -> our metric and the factor to our unit; 0 for those of ``EITHER``."""

LABELS = {
    "gpu": ("UUID", "uuid", "gpu_uuid"),
    "index": ("gpu", "index", "minor_number", "gpu_id", "minor"),
    "host": ("Hostname", "hostname", "exported_hostname", "host", "node", "instance"),
    "instance": ("GPU_I_ID", "gpu_instance_id", "mig_instance"),
    "pid": ("pid",),
    "model": ("modelName", "name", "devicename", "gpu_type", "card_model"),
    "bus": ("pci_bus_id",),
    "job": ("hpc_job", "slurmjobid", "jobid", "exported_pod", "pod"),
    "container": ("exported_container", "container"),
    "core": ("core", "cpu"),
    "state": ("state", "mode", "resource"),
}
"""What a label says -> the labels that say it, the surest first."""
