"""The remedies that can be tried: what each does, which causes it answers, and how to keep it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Value = int | str | bool
"""What a remedy is set to; True where there is nothing to choose."""


@dataclass(frozen=True)
class Place:
    """What the job has to work with: CPUs and threads of each rank, and whether on a GPU."""

    cpus: int
    threads: int | None = None
    gpu: bool = False


@dataclass(frozen=True)
class Remedy:
    """One remedy. ``values`` are those tried unless one is given.

    ``source`` is the line that keeps it, with {value}; ``fix`` the change of ``whyidle fix`` that
    writes it. ``by_default``: tried without being asked for, always, on a GPU only, or never.
    ``rare``: it acts on few steps, so the mean step tells and the median does not. ``redraws``:
    the job draws other random numbers with it, which changes a loss as another seed would.
    """

    name: str
    does: str
    causes: tuple[str, ...]
    source: str
    safe: bool = True
    why: str = "Results stay the same."
    values: Callable[[Place], Sequence[Value]] = lambda place: [True]
    fix: str | None = None
    by_default: str = "always"
    rare: bool = False
    redraws: bool = False
    scales_batch: bool = False


def _workers(place: Place) -> Sequence[Value]:
    """One per CPU, and twice as many for loaders that wait for storage rather than compute."""
    return sorted({min(8, place.cpus), min(16, 2 * place.cpus)})


def _threads(place: Place) -> Sequence[Value]:
    return [n for n in sorted({1, max(1, place.cpus)}) if n != place.threads]


def _fixed(value: Value) -> Callable[[Place], Sequence[Value]]:
    return lambda place: [value]


_ROUNDING = "Sums are rounded in another order."

REMEDIES = (
    Remedy(
        "loader_workers",
        "load batches in this many worker processes",
        (
            "data_loading.loader_workers_too_few",
            "data_loading.sample_work_too_heavy",
            "data_loading.tokenise_on_the_fly",
            "data_loading.slow_storage",
        ),
        "DataLoader(..., num_workers={value}, persistent_workers=True)",
        why="Batches stay the same; random augmentation draws other numbers.",
        values=_workers,
        fix="loader_workers",
        redraws=True,
    ),
    Remedy(
        "prefetch_factor",
        "each loader worker works this many batches ahead",
        ("data_loading.loader_workers_too_few", "data_loading.slow_storage"),
        "DataLoader(..., prefetch_factor={value})",
        values=_fixed(4),
    ),
    Remedy(
        "persistent_workers",
        "loader workers live on between epochs",
        ("data_loading.worker_restart_per_epoch",),
        "DataLoader(..., persistent_workers=True)",
        fix="persistent_workers",
        rare=True,
        redraws=True,
    ),
    Remedy(
        "pin_memory",
        "batches lie in memory that the GPU can copy from by itself",
        ("data_loading.h2d_copy_blocking",),
        "DataLoader(..., pin_memory=True)",
        fix="pinned_copies",
    ),
    Remedy(
        "no_anomaly",
        "anomaly mode stays off",
        ("blind_spots.debug_left_on",),
        "remove torch.autograd.set_detect_anomaly(True)",
        fix="anomaly_mode",
    ),
    Remedy(
        "no_empty_cache",
        "torch.cuda.empty_cache() and gc.collect() in the job's code do nothing",
        ("memory.empty_cache_in_loop", "communication.gc_jitter"),
        "remove gc.collect() and torch.cuda.empty_cache() from the loop",
        fix="empty_cache",
        rare=True,
    ),
    Remedy(
        "gc_schedule",
        "collections of garbage are rarer, and skip what lives since the start",
        ("communication.gc_jitter",),
        "gc.freeze(); gc.set_threshold({value}, 20, 100) after the first steps",
        why="Results stay the same; garbage in cycles lives longer.",
        values=_fixed(50_000),
        rare=True,
    ),
    Remedy(
        "checkpoint_every",
        "of the checkpoints that one line saves, each Nth is written",
        ("blind_spots.checkpoint_pause",),
        "save a checkpoint {value} times more rarely",
        safe=False,
        why="A job that breaks loses more.",
        values=_fixed(10),
        rare=True,
    ),
    Remedy(
        "foreach",
        "the optimizer updates all parameters together",
        ("small_work.optimizer_launch_bound",),
        "Optimizer(..., foreach=True)",
        fix="optimizer_foreach",
    ),
    Remedy(
        "fused",
        "the optimizer updates each parameter with one kernel",
        ("small_work.optimizer_launch_bound",),
        "Optimizer(..., fused=True)",
        why=_ROUNDING,
    ),
    Remedy(
        "zero_grad",
        "gradients are dropped instead of filled with zeros",
        ("small_work.optimizer_launch_bound", "small_work.launch_bound_small_kernels"),
        "optimizer.zero_grad()  # without set_to_none=False",
        safe=False,
        why="Parameters without a gradient are not stepped; nothing else changes.",
        fix="zero_grad",
    ),
    Remedy(
        "threads",
        "torch computes with this many threads per process",
        ("scheduling.cpu_allocation", "small_work.cpu_op_inside_step", "scheduling.noisy_host"),
        "torch.set_num_threads({value})",
        why=_ROUNDING,
        values=_threads,
        by_default="cpu",
    ),
    Remedy(
        "interop_threads",
        "torch runs this many operators at a time",
        ("scheduling.cpu_allocation",),
        "torch.set_num_interop_threads({value})  # before anything else",
        values=_fixed(1),
        by_default="never",
    ),
    Remedy(
        "compile",
        "torch.compile of the model",
        (
            "small_work.launch_bound_small_kernels",
            "small_work.python_between_ops",
            "small_work.kernel_launch_latency",
            "model_design.memory_bound_ops",
        ),
        "model.compile()",
        why=_ROUNDING + " Dropout draws other numbers.",
        redraws=True,
    ),
    Remedy(
        "cuda_graphs",
        "torch.compile with CUDA graphs, which needs fixed shapes",
        ("small_work.launch_bound_small_kernels", "small_work.kernel_launch_latency"),
        'model.compile(mode="reduce-overhead")',
        why=_ROUNDING + " Dropout draws other numbers.",
        by_default="gpu",
        redraws=True,
    ),
    Remedy(
        "tf32",
        "matrix products and convolutions in TF32",
        ("memory.fp32_no_tensor_cores",),
        'torch.set_float32_matmul_precision("high")',
        safe=False,
        why="Products keep 10 bits of the mantissa.",
        fix="matmul_precision",
        by_default="gpu",
    ),
    Remedy(
        "matmul_precision",
        "torch.set_float32_matmul_precision",
        ("memory.fp32_no_tensor_cores",),
        'torch.set_float32_matmul_precision("{value}")',
        safe=False,
        why="Products keep fewer bits of the mantissa.",
        values=_fixed("high"),
        fix="matmul_precision",
        by_default="never",
    ),
    Remedy(
        "bf16",
        "the model's forward under autocast in bfloat16",
        ("memory.fp32_no_tensor_cores",),
        "with torch.autocast(device, dtype=torch.bfloat16): around the forward pass",
        safe=False,
        why="Activations keep 8 bits of the mantissa.",
        by_default="gpu",
    ),
    Remedy(
        "channels_last",
        "convolutions work on tensors whose channels lie together",
        ("model_design.memory_bound_ops", "model_design.unaligned_shapes"),
        "model.to(memory_format=torch.channels_last), and the images likewise",
        why=_ROUNDING,
    ),
    Remedy(
        "cudnn_benchmark",
        "cuDNN times its algorithms and takes the fastest",
        ("model_design.cudnn_benchmark_mismatch",),
        "torch.backends.cudnn.benchmark = True",
        why=_ROUNDING,
        by_default="gpu",
    ),
    Remedy(
        "ddp_flags",
        "DDP without a search for unused parameters, broadcasts of buffers and copies of gradients",
        ("communication.wrapper_host_overhead", "communication.exposed_communication"),
        "DistributedDataParallel(..., {value})",
        safe=False,
        why="A model with unused parameters stops with an error; buffers may differ by rank.",
        values=_fixed("find_unused_parameters+broadcast_buffers+gradient_as_bucket_view"),
        fix="unused_parameters",
    ),
    Remedy(
        "no_sync",
        "of several backward passes per optimizer step, only the last exchanges gradients",
        ("communication.sync_every_microstep",),
        "with model.no_sync(): around all micro-steps but the last",
        why=_ROUNDING,
    ),
    Remedy(
        "gradient_checkpointing",
        "activations are computed again in the backward pass; it makes room, and costs time",
        (),
        "torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)",
        by_default="never",
    ),
    Remedy(
        "batch_size",
        "batches this many times as large, the learning rate scaled; compared per sample",
        ("small_work.batch_too_small", "small_work.underfilled_kernels"),
        "DataLoader(..., batch_size={value} times as large), lr likewise",
        safe=False,
        why="Fewer steps per epoch train another way.",
        values=_fixed(2),
        by_default="never",
        scales_batch=True,
    ),
)

NOT_OFFERED = {
    "no_sync_loss": "loss.item() cannot return another value without telling the job something "
    "untrue; `whyidle fix --only loss_item` moves the read out of the loop"
}
"""Remedies that cannot be tried honestly at run time, and why."""

BY_NAME = {remedy.name: remedy for remedy in REMEDIES}

APART = (("foreach", "fused"), ("compile", "cuda_graphs"), ("tf32", "matmul_precision"))
"""Remedies of which one excludes the other; of those that pay, the better one joins the rest."""
