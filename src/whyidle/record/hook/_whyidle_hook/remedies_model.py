"""Remedies for the model, put in place just before it is first called to train."""

import functools
import os
import shutil
import weakref


def at_first_training_call(torch, remedy, then):
    """Call ``then(module)`` before an outermost module with parameters is first called to train.

    Modules are no longer looked at once an optimizer has made a step.
    """
    from torch.optim.optimizer import register_optimizer_step_post_hook

    owner = torch.nn.Module
    call = owner.__call__
    seen, done = weakref.WeakSet(), []

    def __call__(module, *args, **options):
        mine = owner.__call__ is __call__
        if mine:
            owner.__call__ = call  # modules inside this one are called as ever
        try:
            if not done and module not in seen and _trains(torch, module):
                seen.add(module)
                try:
                    then(module)
                except Exception as error:  # noqa: BLE001
                    remedy.broke(error)
            return call(module, *args, **options)
        finally:
            if mine and not done and owner.__call__ is call:
                owner.__call__ = __call__

    def stepped(*_):
        done[:] = [True]
        if owner.__call__ is __call__:
            owner.__call__ = call

    register_optimizer_step_post_hook(stepped)
    owner.__call__ = __call__


def _trains(torch, module):
    return (
        module.training
        and torch.is_grad_enabled()
        and any(p.requires_grad for p in module.parameters())
    )


def device_of(module):
    """The type of the device that the first parameter lies on."""
    for parameter in module.parameters():
        return parameter.device.type
    return "cpu"


def _to_model(act):
    def put(torch, remedy):
        at_first_training_call(torch, remedy, lambda module: act(torch, remedy, module))

    return put


def _bf16(torch, remedy, module):
    device = device_of(module)
    kinds = {p.dtype for p in module.parameters() if torch.is_floating_point(p)}
    if torch.is_autocast_enabled(device):
        remedy.refuse("the model runs under autocast already")
    elif kinds != {torch.float32}:
        remedy.refuse("not all parameters are float32")
    elif device == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        remedy.refuse("this GPU has no bfloat16")
    elif remedy.take("forward of %s" % type(module).__name__):
        forward = module.forward

        @functools.wraps(forward)
        def under(*args, **options):
            with torch.autocast(device, dtype=torch.bfloat16):
                found = forward(*args, **options)
            return _as_float(torch, found)

        module.forward = under


def _as_float(torch, value):
    """The same with float32 in place of bfloat16, so that the job's loss is computed as ever."""
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype == torch.bfloat16 else value
    if isinstance(value, dict):
        for key in list(value):
            value[key] = _as_float(torch, value[key])
        return value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_as_float(torch, one) for one in value))
    if type(value) in (list, tuple):
        return type(value)(_as_float(torch, one) for one in value)
    return value


def _channels_last(torch, remedy, module):
    convolutions = [m for m in module.modules() if isinstance(m, torch.nn.Conv2d)]
    if not convolutions:
        remedy.refuse("the model has no Conv2d")
    elif isinstance(module, torch.nn.parallel.DistributedDataParallel):
        remedy.refuse("the model is wrapped in DDP, before which this has to be done")
    elif any(c.weight.is_contiguous(memory_format=torch.channels_last) for c in convolutions[:1]):
        remedy.refuse("the model is in channels_last already")
    elif remedy.take():
        module.to(memory_format=torch.channels_last)

        def turned(_, args):
            return tuple(
                value.contiguous(memory_format=torch.channels_last)
                if isinstance(value, torch.Tensor) and value.dim() == 4
                else value
                for value in args
            )

        module.register_forward_pre_hook(turned)


def _compile(torch, remedy, module):
    mode = remedy.value if isinstance(remedy.value, str) else None
    _compiled(torch, remedy, module, mode)


def _cuda_graphs(torch, remedy, module):
    if device_of(module) != "cuda":
        remedy.refuse("no GPU")
    else:
        _compiled(torch, remedy, module, "reduce-overhead")


def _compiled(torch, remedy, module, mode):
    inner = type(module).__name__ == "OptimizedModule"
    if inner or any(m._compiled_call_impl is not None for m in module.modules()):
        remedy.refuse("the model is compiled already")
        return
    why = _no_compiler(device_of(module))
    if why is not None:
        remedy.refuse(why)
    elif remedy.take(type(module).__name__):
        module.compile(**({} if mode is None else {"mode": mode}))


def _no_compiler(device):
    """Why code cannot be compiled for the device here; None if it can, as far as can be seen."""
    if device == "cuda":
        from importlib.util import find_spec

        return None if find_spec("triton") else "triton is not installed, which torch.compile needs"
    named = os.environ.get("CXX", "").split()
    if any(shutil.which(name) for name in (named[:1] or ("g++", "clang++", "c++"))):
        return None
    return "no C++ compiler is installed, which torch.compile needs on a CPU"


def _gradient_checkpointing(torch, remedy, module):
    inner = getattr(module, "module", module)
    if getattr(inner, "is_gradient_checkpointing", False):
        remedy.refuse("the model checkpoints its activations already")
        return
    if hasattr(inner, "gradient_checkpointing_enable"):
        if remedy.take("gradient_checkpointing_enable()"):
            inner.gradient_checkpointing_enable()
        return
    rows = [m for m in inner.modules() if isinstance(m, (torch.nn.Sequential, torch.nn.ModuleList))]
    row = max(rows, key=_size, default=None)
    parts = [] if row is None else [m for m in row if any(True for _ in m.parameters())]
    if len(parts) < 2:
        remedy.refuse("the model has no row of layers")
    elif remedy.take("%d layers of a %s" % (len(parts), type(row).__name__)):
        for part in parts:
            _recompute(part)


def _size(module):
    return sum(p.numel() for p in module.parameters())


def _recompute(part):
    from torch.utils.checkpoint import checkpoint

    forward = part.forward
    part.forward = functools.partial(checkpoint, forward, use_reentrant=False)


KNOWN = {
    "bf16": _to_model(_bf16),
    "channels_last": _to_model(_channels_last),
    "compile": _to_model(_compile),
    "cuda_graphs": _to_model(_cuda_graphs),
    "gradient_checkpointing": _to_model(_gradient_checkpointing),
}
