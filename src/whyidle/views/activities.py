"""From the name of a host span to what the thread is doing there.

``ACTIVITIES`` are what an instant of a host thread, or of an empty device, can be blamed on.
Each host span has an own activity by its name; nested spans combine by ``within``: the innermost
*meaningful* thing counts, so an operator inside a loader's ``__next__`` is still the loader.
"""

from __future__ import annotations

import re

import polars as pl

from whyidle.views import names

ACTIVITIES = (
    "nothing",  # no record, a bare annotation, or a frame that waits for another thread
    "python",  # Python between operators
    "op",  # a framework operator, the autograd engine, dispatch
    "launch",  # a runtime call that hands work to the device
    "optimizer",
    "loader",  # waiting for the next batch
    "loader_restart",  # the same, while worker processes start again
    "scalar_read",  # .item(), .cpu() and the wait they bring
    "sync",  # any other wait for the device
    "pageable_copy",  # a blocking copy of pageable host memory to the device
    "cpu_roundtrip",  # device -> host, host work, host -> device inside a step
    "python_loop",  # the same tiny operators over and over, driven by a Python loop
    "compile",
    "warm_up",  # loading modules and other things done once
    "allocator",
    "empty_cache",
    "wrapper",  # hooks of DDP/FSDP: bucket copies, buffer broadcast, search of unused parameters
    "collective",  # the host side of a collective
    "collector",  # Python's garbage collector
    "anomaly",  # checks of anomaly mode
    "launch_blocking",  # launch calls that return only when their kernel is done
    "profiler",
    "checkpoint",
    "evaluation",
    "logging",
    "device_delay",  # launched, and the device had not begun
    "unrecorded",  # likely work that the recorder dropped
    "unknown",
)
CODE = {name: code for code, name in enumerate(ACTIVITIES)}
ACTIVITY = pl.Enum(ACTIVITIES)

DISPATCH = ("op", "launch", "optimizer")
"""What an earlier launch lead would have hidden."""

_CONTAINERS = (
    "loader", "loader_restart", "scalar_read", "sync", "compile", "warm_up", "empty_cache",
    "wrapper", "collector", "anomaly", "profiler", "checkpoint", "logging", "collective",
)  # fmt: skip
_SURVIVORS = {
    "loader": ("profiler", "loader_restart"),
    "scalar_read": ("allocator", "profiler", "compile"),
    "sync": ("allocator", "profiler", "compile"),
    "collective": ("allocator", "profiler", "sync", "scalar_read", "pageable_copy", "wrapper"),
    "wrapper": ("allocator", "profiler", "sync", "scalar_read", "pageable_copy"),
}
_WEAK = ("nothing", "python", "op", "launch")

READS = re.compile(r"^aten::(item|_local_scalar_dense)$")
"""Operators that read one number; they wait only when the number lies on the device."""
HIDDEN_WAITS = re.compile(
    r"^aten::(nonzero|nonzero_numpy|is_nonzero|masked_select|_unique2|unique_dim|unique_consecutive"
    r"|unique|bincount|repeat_interleave|equal|allclose|argwhere)$"
)
"""Operators whose result size depends on the data, so that the host must wait to know it."""
NODE = "autograd::engine::evaluate_function: "
ANOMALY_CHECKS = ("aten::isnan", "aten::any", "aten::_is_any_true", "aten::item")

_LOADER = re.compile(
    r"^enumerate\(DataLoader\)#|DataLoaderIter\.__next__"
    r"|torch/utils/data/dataloader\.py\(\d+\): (__next__|_next_data)"
    r"|(^|/)(nvidia/dali/plugin|torchdata|webdataset|ffcv|ray/data)/.*\): __next__$"
    r"|\b(next|get|fetch)_batch\b|dataloader_next|\bdata_?loading\b"
)
_RESTART = re.compile(r"torch/utils/data/dataloader\.py\(\d+\): (_get_iterator|_shutdown_workers)$")
_OPTIMIZER = re.compile(r"^Optimizer\.(step|zero_grad)#")
_COMPILE = re.compile(
    r"\(dynamo_timed\)$|^(_compile\.compile_inner|entire_frame_compile|backend_compile"
    r"|inductor_compile|fx_codegen_and_compile)\b"
    r"|torch/_dynamo/convert_frame\.py\(\d+\): |triton/compiler/compiler\.py\(\d+\): compile$"
)
_WRAPPER = re.compile(
    r"^torch::distributed::reducer::|^torch\.distributed\.ddp\.reducer::|_broadcast_coalesced$"
    r"|^FullyShardedDataParallel\._?(pre|post)_|^FSDP::(pre|post)_|_sync_buffers|_sync_module_states"
    r"|^FullyShardedDataParallel\.rate_limiter"
)
_COLLECTIVE = re.compile(
    r"^(c10d::|nccl:|rccl:|hccl:|gloo:|mpi:|record_param_comms$|_c10d_functional::)"
    r"|^p?(nccl|rccl)(All|Reduce|Broadcast|Send|Recv|Group|Scatter|Gather)"  # its own NVTX ranges
)
_PROFILER = re.compile(
    r"torch/(autograd/)?profiler(/profiler)?\.py\(\d+\): |^PyTorch Profiler|(^|/)_whyidle_hook/"
)
_COLLECTOR = re.compile(r"^<built-in function collect>$|^gc\.collect")
_CHECKPOINT = re.compile(
    r"torch/serialization\.py\(\d+\): save$"
    r"|\b(save|write|dump|store)_?(model|state|checkpoint|ckpt)(?!_?(activation|recompute|fn))"
    r"|\b(checkpoint|ckpt)[_ ]?(save|saving|write)"
    r"|torch/distributed/checkpoint/.*: (save|async_save)"
    r"|\): save_(checkpoint|pretrained|file)$",
    re.IGNORECASE,
)
_EVALUATION = re.compile(
    r"(^|[^a-z])(evaluation|validation|validate|evaluate)([^a-z]|$)|(^|[^a-z_])eval([^a-z]|$)"
    r"|(validation|eval|test)_(step|loop|epoch)",
    re.IGNORECASE,
)
_NOT_EVALUATION = re.compile(
    r"evaluate_function|: eval$|eval_frame|numexpr|builtin.*eval", re.IGNORECASE
)
_LOGGING = re.compile(
    r"torch/utils/tensorboard/|/wandb/|/mlflow/|logging/__init__\.py\(\d+\): |tqdm/"
    r"|^<built-in function print>$|(^|[^a-z])(tensorboard|wandb|mlflow|add_histogram|add_scalar)"
    r"|^(?!<built-in).*?(?<![a-z_])log(ging|_metrics|_scalars?|_histograms?)?([^a-z_]|$)"
    r"|metrics:publish"
)
_TRACEBACKS = re.compile(r"torch/fx/traceback\.py\(\d+\): format_stack$")
"""Anomaly mode keeps the Python stack of every operator of forward."""
_EMPTY_CACHE = re.compile(r"\): empty_cache$|(cuda|hip)_emptyCache|\bempty_cache\b")
_WAITS = re.compile(
    r"run_backward|_engine_run_backward|<built-in method acquire of"
    r"|threading\.py\(\d+\): (wait|acquire)|queue\.py\(\d+\): get"
    r"|<built-in method (poll|select|wait) of"
)
_LAZY = re.compile(
    r"Lazy Function Loading|Module Loading|Driver Compiler|cu(da|hip)?Module|hipModuleLoad|hipInit"
)


def own_activity(kind: str, name: str) -> str:
    """What a host span of this kind and name is about, seen on its own."""
    if kind == "runtime":
        return _runtime(name)
    if kind == "system":
        return "nothing"
    if kind == "overhead":
        return "warm_up" if _LAZY.search(name) else "profiler"
    for rule, activity in _SCOPES:
        if rule.search(name):
            return activity
    if kind == "op":
        return "collective" if _COLLECTIVE.search(name) else "op"
    if kind == "annotation":
        return _annotation(name)
    return "nothing" if _WAITS.search(name) else _frame(name)


_SCOPES = (
    (_RESTART, "loader_restart"),
    (_LOADER, "loader"),
    (_OPTIMIZER, "optimizer"),
    (_COMPILE, "compile"),
    (_WRAPPER, "wrapper"),
    (_COLLECTOR, "collector"),
    (_EMPTY_CACHE, "empty_cache"),
    (_TRACEBACKS, "anomaly"),
)


def _runtime(name: str) -> str:
    if names.SYNCHRONISATIONS.search(name):
        return "sync"
    if names.ALLOCATIONS.search(name):
        return "allocator"
    if names.MODULE_LOADS.search(name) or _LAZY.search(name):
        return "warm_up"
    return "launch"


def _annotation(name: str) -> str:
    if _COLLECTIVE.search(name):
        return "collective"
    if _EVALUATION.search(name) and not _NOT_EVALUATION.search(name):
        return _written(name) or "evaluation"
    return _written(name) or "nothing"


def _written(name: str) -> str | None:
    """Writing of checkpoints and logs, whose words annotations and frames share."""
    if _CHECKPOINT.search(name):
        return "checkpoint"
    return "logging" if _LOGGING.search(name) else None


def _frame(name: str) -> str:
    written = "profiler" if _PROFILER.search(name) else _written(name)
    if written:
        return written
    called = name.rsplit("): ", 1)[-1]
    if _EVALUATION.fullmatch(called) and not _NOT_EVALUATION.search(name):
        return "evaluation"
    return "python"


def within(outer: str, own: str) -> str:
    """The activity of a span whose own is ``own``, inside a span of activity ``outer``."""
    if outer in _CONTAINERS:
        return own if own in _SURVIVORS.get(outer, ("profiler",)) else outer
    if outer in ("optimizer", "evaluation") and own in _WEAK:
        return outer
    if own == "nothing":
        return outer if outer in ("op", "launch") else own
    return own


def within_table() -> list[list[int]]:
    """``within`` as a table of codes: table[outer][own]."""
    return [[CODE[within(a, b)] for b in ACTIVITIES] for a in ACTIVITIES]
