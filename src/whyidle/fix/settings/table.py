"""The settings that are known: one row for each key, the values that cost time, what to write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Value = bool | int | float | str | None
Framework = Literal["hf", "lightning", "deepspeed", "environment"]

FRAMEWORKS: dict[Framework, str] = {
    "hf": "Hugging Face Trainer",
    "lightning": "Lightning",
    "deepspeed": "DeepSpeed",
    "environment": "environment variables",
}

WORKERS = "workers"
"""In place of a new value: as many loader workers as suit this machine or a diagnosis advises."""


@dataclass(frozen=True)
class Row:
    """One known key. ``bad`` tells whether a value costs time; ``new`` takes its place.

    ``NAME``, ``CAUSES``, ``SAFE`` and ``WHY`` are those of a change of source code. ``unless``
    are values of other keys (paths as here) beside which the row is left alone, and ``beside``
    a key that must be a number above 0. ``ON_REQUEST``: only where a diagnosis names a cause or
    --only names it; ``diagnosed``: only the former. ``default`` is bad too: where a diagnosis
    names a cause, a call or command line that does not mention the key gets it.
    """

    framework: Framework
    key: str
    bad: Callable[[Value], bool]
    new: Value
    NAME: str
    CAUSES: tuple[str, ...]
    SAFE: bool
    WHY: str
    ON_REQUEST: bool = False
    diagnosed: bool = False
    default: bool = False
    unless: tuple[tuple[str, Value], ...] = ()
    beside: str | None = None


def same(one: Value, other: Value) -> bool:
    """Equal, and of one type: 1 is not True."""
    return type(one) is type(other) and one == other


def is_(*values: Value) -> Callable[[Value], bool]:
    """Bad are these values."""
    return lambda value: any(same(value, one) for one in values)


def whole(low: int, high: int) -> Callable[[Value], bool]:
    """Bad are whole numbers from ``low`` to ``high``, both included."""
    return lambda value: type(value) is int and low <= value <= high


LOADER = (
    "data_loading.loader_workers_too_few",
    "data_loading.sample_work_too_heavy",
    "data_loading.tokenise_on_the_fly",
    "data_loading.slow_storage",
)
LAUNCHES = (
    "small_work.launch_bound_small_kernels",
    "small_work.kernel_launch_latency",
    "small_work.python_between_ops",
    "model_design.memory_bound_ops",
)
RESTART = ("data_loading.worker_restart_per_epoch",)
COPIES = ("data_loading.h2d_copy_blocking",)
FP32 = ("memory.fp32_no_tensor_cores",)
DEBUG = ("blind_spots.debug_left_on",)
PROFILER = ("blind_spots.profiler_overhead",)
LOGGING = ("blind_spots.logging_overhead",)
SEARCH = ("communication.wrapper_host_overhead",)
EXPOSED = ("communication.exposed_communication",)
WAITS = ("small_work.host_sync_implicit",)

MORE_WORKERS = (
    "Worker processes load the next batches while the device computes. A settings file does not "
    "show the data set: one that is iterable would yield all samples in each worker."
)
LIVE_ON = "Workers that live on skip their start in each epoch; they keep their memory in between."
PINNED = "A copy from pinned memory runs beside other work; pinned memory cannot be swapped out."
HALF = (
    "Tensor cores then multiply in bfloat16, which keeps 7 bits of the mantissa: results differ "
    "and training must be watched. Needs hardware with bfloat16."
)
UNUSED = (
    "The search walks the whole graph in every step. Without it a model that does leave parameters "
    "unused in some step stops with an error."
)
REPEATABLE = "Deterministic algorithms are slower. Without them two runs differ in last digits."
ANOMALY = "Anomaly detection checks every gradient; it finds faults and changes no result."
SEARCH_OFF = (
    "With shapes that change, every new shape searches for the fastest convolution again. Another "
    "algorithm may change last digits."
)
SEARCH_ON = (
    "With fixed shapes the search for the fastest convolution is done once. Another algorithm may "
    "change last digits."
)
RARER_SAVES = "Training stands still for a checkpoint; a run that stops loses more work."
RARER_LOGS = "Each report reads values from the device and waits for it; there are fewer reports."


def _hf() -> tuple[Row, ...]:
    return (
        Row("hf", "dataloader_num_workers", is_(0), WORKERS, "loader_workers", LOADER, False,
            MORE_WORKERS, default=True),
        Row("hf", "dataloader_persistent_workers", is_(False), True, "persistent_workers", RESTART,
            True, LIVE_ON, default=True, beside="dataloader_num_workers"),
        Row("hf", "dataloader_pin_memory", is_(False), True, "pinned_copies", COPIES, True, PINNED),
        Row("hf", "tf32", is_(False), True, "matmul_precision", FP32, False,
            "Tensor cores then multiply FP32 matrices with 10 bits of the mantissa, so results "
            "differ in their last digits.", ON_REQUEST=True),
        Row("hf", "bf16", is_(False), True, "mixed_precision", FP32, False, HALF, ON_REQUEST=True,
            unless=(("fp16", True),)),
        Row("hf", "optim", is_("adamw_torch"), "adamw_torch_fused", "optimizer_fused",
            ("small_work.optimizer_launch_bound",), False,
            "One kernel updates all parameters; last digits may differ.", ON_REQUEST=True),
        Row("hf", "torch_compile", is_(False), True, "compile", LAUNCHES, False,
            "Fused operators launch fewer kernels; the first steps compile for a while, and last "
            "digits may differ.", ON_REQUEST=True),
        Row("hf", "ddp_find_unused_parameters", is_(True), False, "unused_parameters", SEARCH,
            False, UNUSED),
        Row("hf", "save_steps", whole(1, 20), 500, "checkpoint_every",
            ("blind_spots.checkpoint_pause",), False, RARER_SAVES,
            unless=(("save_strategy", "no"), ("save_strategy", "epoch"),
                    ("load_best_model_at_end", True))),
        Row("hf", "logging_steps", whole(1, 4), 50, "log_every",
            (*LOGGING, "small_work.host_sync_scalar_read"), False, RARER_LOGS,
            unless=(("logging_strategy", "no"), ("logging_strategy", "epoch"))),
        Row("hf", "torch_empty_cache_steps", whole(1, 1_000_000), None, "empty_cache",
            ("memory.empty_cache_in_loop",), True,
            "Emptying the cache gives memory to the driver that the next step asks back."),
        Row("hf", "full_determinism", is_(True), False, "deterministic", DEBUG, False, REPEATABLE,
            ON_REQUEST=True),
        Row("hf", "debug", is_("underflow_overflow"), "", "anomaly_mode", DEBUG, True,
            "The search for overflows looks at every output; it finds faults and changes no "
            "result."),
        Row("hf", "skip_memory_metrics", is_(False), True, "memory_metrics", PROFILER, True,
            "Memory reports follow every allocation of the process; they change no result."),
    )  # fmt: skip


def _lightning() -> tuple[Row, ...]:
    data = (
        row
        for place in ("data", "data.init_args")
        for row in (
            Row("lightning", f"{place}.num_workers", is_(0), WORKERS, "loader_workers", LOADER,
                False, MORE_WORKERS),
            Row("lightning", f"{place}.persistent_workers", is_(False), True, "persistent_workers",
                RESTART, True, LIVE_ON, beside=f"{place}.num_workers"),
            Row("lightning", f"{place}.pin_memory", is_(False), True, "pinned_copies", COPIES, True,
                PINNED),
        )
    )  # fmt: skip
    return (
        Row("lightning", "trainer.detect_anomaly", is_(True), False, "anomaly_mode", DEBUG, True,
            ANOMALY),
        Row("lightning", "trainer.deterministic", is_(True, "warn"), False, "deterministic", DEBUG,
            False, REPEATABLE, ON_REQUEST=True),
        Row("lightning", "trainer.benchmark", is_(True), False, "cudnn_benchmark",
            ("model_design.cudnn_benchmark_mismatch",), False, SEARCH_OFF, diagnosed=True),
        Row("lightning", "trainer.benchmark", is_(False), True, "cudnn_benchmark", (), False,
            SEARCH_ON, ON_REQUEST=True, unless=(("trainer.deterministic", True),)),
        Row("lightning", "trainer.precision", is_(32, "32", "32-true"), "bf16-mixed",
            "mixed_precision", FP32, False, HALF, ON_REQUEST=True),
        Row("lightning", "trainer.log_every_n_steps", whole(1, 4), 50, "log_every", LOGGING, False,
            RARER_LOGS),
        Row("lightning", "trainer.strategy", is_("ddp_find_unused_parameters_true"), "ddp",
            "unused_parameters", SEARCH, False, UNUSED),
        Row("lightning", "trainer.profiler", is_("simple", "advanced", "pytorch"), None, "profiler",
            PROFILER, True, "A profiler that is left on slows every step; it changes no result."),
        Row("lightning", "trainer.reload_dataloaders_every_n_epochs", is_(1), 0,
            "persistent_workers", RESTART, False,
            "Loaders that are made once keep their workers. A data module that hands out other "
            "data in each epoch no longer does."),
        *data,
    )  # fmt: skip


def _deepspeed() -> tuple[Row, ...]:
    zero = "zero_optimization"
    pins = (
        Row("deepspeed", f"{zero}.{part}.pin_memory", is_(False), True, "pinned_copies",
            ("memory.cpu_offload_step", *COPIES), True, PINNED)
        for part in ("offload_optimizer", "offload_param")
    )  # fmt: skip
    return (
        Row("deepspeed", "wall_clock_breakdown", is_(True), False, "timers", (*PROFILER, *WAITS),
            True, "The timers wait for the device around each part of a step."),
        Row("deepspeed", "flops_profiler.enabled", is_(True), False, "profiler", PROFILER, True,
            "A profiler that is left on slows every step; it changes no result."),
        Row("deepspeed", "comms_logger.enabled", is_(True), False, "timers", (*PROFILER, *WAITS),
            True, "Logging of collectives waits for each of them."),
        Row("deepspeed", f"{zero}.overlap_comm", is_(False), True, "overlap_comm", EXPOSED, False,
            "Gradients are reduced beside the backward pass; that takes memory for more buckets "
            "and may not fit."),
        Row("deepspeed", f"{zero}.contiguous_gradients", is_(False), True, "contiguous_gradients",
            ("memory.fragmentation", "memory.allocator_pressure"), True,
            "Gradients go into one buffer as they are made, which spares small allocations."),
        Row("deepspeed", f"{zero}.reduce_bucket_size", whole(1, 10_000_000), 500_000_000,
            "bucket_size", EXPOSED, False,
            "Larger buckets reduce in fewer collectives; each takes memory and may not fit."),
        Row("deepspeed", "bf16.enabled", is_(False), True, "mixed_precision", FP32, False, HALF,
            ON_REQUEST=True, unless=(("fp16.enabled", True), ("fp16.enabled", "auto"))),
        Row("deepspeed", "steps_per_print", whole(1, 4), 50, "log_every", LOGGING, False,
            RARER_LOGS),
        Row("deepspeed", "activation_checkpointing.profile", is_(True), False, "timers",
            (*PROFILER, *WAITS), True, "Timing of checkpointed parts waits for the device."),
        Row("deepspeed", "activation_checkpointing.synchronize_checkpoint_boundary", is_(True),
            False, "timers", WAITS, True, "It waits for the device at each checkpointed part."),
        *pins,
    )  # fmt: skip


def _environment() -> tuple[Row, ...]:
    return (
        Row("environment", "CUDA_LAUNCH_BLOCKING", is_(1), 0, "blocking_launches", DEBUG, True,
            "Each launch waits for its kernel; it helps to find a fault and changes no result."),
        Row("environment", "TORCH_DISTRIBUTED_DEBUG", is_("DETAIL"), "OFF", "distributed_debug",
            DEBUG, True, "Each collective is checked over all ranks before it runs."),
    )  # fmt: skip


ROWS: tuple[Row, ...] = (*_hf(), *_lightning(), *_deepspeed(), *_environment())
