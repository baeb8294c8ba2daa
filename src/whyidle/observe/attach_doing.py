"""From a Python stack to what its thread was doing, by the rules that traces are judged with.

A sampled stack holds Python frames only: no operators, no calls into C. What a line such as
``loss.item()`` waits for is told by the text of the line, where its file is as it was when the job
began.
"""

from __future__ import annotations

import linecache
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from whyidle.observe.attach_stacks import Frame
from whyidle.views.activities import own_activity, within
from whyidle.views.host import is_user_frame
from whyidle.views.loading import stage_of

WORKER_LOOP = re.compile(r"torch/utils/data/_utils/worker\.py\(\d+\): _worker_loop$")
_LAUNCHER = re.compile(
    r"torch/distributed/(elastic|run|launcher)|torch/multiprocessing/spawn\.py\(\d+\): join$"
    r"|torch/distributed/launch\.py|accelerate/commands/launch\.py|deepspeed/launcher/"
)
_FETCH = "torch/utils/data/_utils/fetch.py"
_HELPER = re.compile(r"multiprocessing/(resource_tracker|forkserver)\.py\(\d+\): main$")
_ATTACHED = (
    (
        "backward",
        re.compile(r"torch/(_tensor|autograd/(__init__|graph))\.py\(\d+\): _?\w*backward$"),
    ),
    ("optimizer", re.compile(r"torch/optim/(?!lr_scheduler|swa_utils)|\): optimizer_step$")),
    ("sync", re.compile(r"torch/(cuda|xpu|accelerator)/[\w/]+\.py\(\d+\): synchronize$")),
    ("start_up", re.compile(r"importlib|torch/distributed/rendezvous\.py|: init_process_group$")),
    ("collective", re.compile(r"torch/distributed/distributed_c10d\.py")),
    ("tokens", re.compile(r"(^|/)(tokenizers|sentencepiece|tiktoken|transformers/.*tokeniz)")),
    ("forward", re.compile(r"torch/nn/modules/module\.py\(\d+\): _call_impl$")),
)
"""What a sampled frame tells that needs no such rule in a trace, where operators tell it."""

_TEXT = (
    ("empty_cache", re.compile(r"\bgc\.collect\s*\(|\bempty_cache\s*\(")),
    ("scalar_read", re.compile(r"\.(item|tolist|cpu|numpy)\s*\(|\bfloat\s*\(\s*loss")),
    ("sync", re.compile(r"\bsynchronize\s*\(")),
)
"""What the text of the line tells that a thread is at, when it runs no Python below it."""

STALLS = (
    "loader", "loader_restart", "checkpoint", "evaluation", "logging", "compile", "empty_cache",
    "tokens", "collective", "late", "profiler",
)  # fmt: skip
"""Activities during which a training thread hands no work of a step to its device."""

CAUSES = {
    "loader": "data_loading.loader_workers_too_few",
    "loader_restart": "data_loading.worker_restart_per_epoch",
    "checkpoint": "blind_spots.checkpoint_pause",
    "evaluation": "blind_spots.eval_pause",
    "logging": "blind_spots.logging_overhead",
    "compile": "small_work.recompile_dynamic_shapes",
    "empty_cache": "memory.empty_cache_in_loop",
    "tokens": "data_loading.tokenise_on_the_fly",
    "collective": "communication.collective_call_blocks_host",
    "late": "communication.rank_imbalance",
    "profiler": "blind_spots.profiler_overhead",
}
"""A stall -> the cause that its seconds belong to."""

WORDS = {
    "loader": "waiting for or making the next batch",
    "loader_restart": "starting loader workers",
    "checkpoint": "saving a checkpoint",
    "evaluation": "evaluating",
    "logging": "logging",
    "compile": "compiling",
    "empty_cache": "tidying up memory",
    "tokens": "tokenising",
    "collective": "in a call of torch.distributed",
    "late": "waiting in a collective for a rank that comes late",
    "profiler": "profiling",
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "optimizer": "in the optimizer",
    "scalar_read": "at a line that reads a result of the device",
    "sync": "waiting for the device",
    "start_up": "starting up",
    "python": "in other Python code",
}
"""An activity of the training thread -> a clause."""


@dataclass(frozen=True)
class Doing:
    """What a stack says. ``file`` and ``line`` are the user's innermost; None where none is known.

    ``stage`` is the stage of loading, by views.loading; ``op`` the frame that told the activity.
    """

    activity: str
    file: str | None
    line: int | None
    op: str
    stage: str | None = None


def spoken(frame: Frame) -> str:
    """The frame as a trace writes it: ``file(line): function``."""
    return f"{frame.file}({frame.line}): {frame.function.rsplit('.', 1)[-1]}"


def role_of(frames: Sequence[Frame]) -> str | None:
    """What a process is for by one stack of its main thread; None where that does not tell."""
    names = [spoken(frame) for frame in frames]
    if any(WORKER_LOOP.search(name) for name in names):
        return "loader worker"
    if any(_HELPER.search(name) for name in names):
        return "other"
    return "launcher" if any(_LAUNCHER.search(name) for name in names) else None


@lru_cache(maxsize=65536)
def doing(frames: tuple[Frame, ...], began_ns: int | None = None) -> Doing:
    """What the training thread with this stack does.

    ``began_ns`` is when its process began (Unix nanoseconds): text of files changed later is not
    looked at, nor any when it is None.
    """
    names = [spoken(frame) for frame in frames]
    code, told = "nothing", len(names) - 1
    for at, (name, imports) in enumerate(zip(names, _imports(names), strict=True)):
        own = "start_up" if imports else _own(name)
        inner = _deeper(code, own) if code in _KEPT else within(code, own)
        if inner != code:
            code, told = inner, at
    op = names[told]
    file, line = _users(names)
    if code in _CALLED:
        outer = _users(names[:told])
        file, line = outer if outer[0] is not None else (file, line)
    if code in ("nothing", "python", "op") and is_user_frame(names[-1]):
        code, op = _by_text(frames[-1], began_ns) or "python", names[-1]
    elif code in ("nothing", "op"):
        code = "python"
    stage = _stage(names) if code == "loader" else None
    if code == "loader" and any(_FETCH in name for name in names):
        op = f"{op.rpartition(': ')[0]}: _SingleProcessDataLoaderIter.__next__"
    return Doing(code, file, line, op, stage)


_CALLED = ("checkpoint", "evaluation", "logging", "compile", "collective", "empty_cache")
"""Activities told with the user's line that calls for them, not with the line they are at."""

_KEPT = ("backward", "optimizer", "forward", "start_up", "tokens", "evaluation")


def _imports(names: list[str]) -> list[bool]:
    """Per frame, whether it is a module's top level, run by an import; py-spy hides importlib."""
    top = [name.endswith(": <module>") for name in names]
    first = next((at for at, found in enumerate(top) if found), -1)
    return [found and at > first for at, found in enumerate(top)]


def _deeper(outer: str, own: str) -> str:
    """``within`` for the activities that only samples have."""
    if outer == "start_up" or own in ("nothing", "python", "op", "launch"):
        return outer
    if outer == "evaluation":
        return own if own in ("checkpoint", "profiler") else outer
    if outer in ("backward", "optimizer", "tokens"):
        return own if own in ("compile", "collective") else outer
    return own


def _own(name: str) -> str:
    own = own_activity("python", name)
    if own == "profiler" and "torch/autograd/profiler.py" in name:
        return "python"  # record_function, which torch calls in every step, profiled or not
    if own in ("nothing", "python"):
        return next((told for told, rule in _ATTACHED if rule.search(name)), own)
    return own


def _users(names: list[str]) -> tuple[str | None, int | None]:
    """The innermost line of the user's own source."""
    for name in reversed(names):
        if is_user_frame(name):
            file, _, rest = name.rpartition("(")
            return file, int(rest.partition(")")[0])
    return None, None


def _stage(names: list[str]) -> str | None:
    return next((stage for name in reversed(names) if (stage := stage_of(name))), None)


def _by_text(frame: Frame, began_ns: int | None) -> str | None:
    try:
        if began_ns is None or os.stat(frame.file).st_mtime_ns > began_ns:
            return None
    except OSError:
        return None
    text = linecache.getline(frame.file, frame.line)
    return next((told for told, rule in _TEXT if rule.search(text)), None)


def worker_doing(frames: tuple[Frame, ...]) -> Doing | None:
    """What a loader worker does for its batch; None while it waits to be asked for one.

    What a forked worker inherited above ``_worker_loop`` is its parent's and left out.
    """
    names = [spoken(frame) for frame in frames]
    begin = next((at for at, name in enumerate(names) if WORKER_LOOP.search(name)), None)
    if begin is None:
        return None
    below = names[begin + 1 :]
    if not any(_FETCH in name for name in below):
        return None
    file, line = _users(below)
    return Doing("loader", file, line, below[-1], _stage(below))
