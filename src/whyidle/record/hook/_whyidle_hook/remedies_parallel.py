"""Remedies for training on several ranks with DistributedDataParallel."""

import functools
import inspect
import weakref

FLAGS = {
    "find_unused_parameters": False,
    "broadcast_buffers": False,
    "gradient_as_bucket_view": True,
    "static_graph": True,
}


def _ddp_flags(torch, remedy):
    """Flags of DDP for a graph that is the same in each step, with all parameters in use.

    ``remedy.value`` names them, joined by +; true stands for all of them.
    """
    owner = torch.nn.parallel.DistributedDataParallel
    build = owner.__init__
    signature = inspect.signature(build)
    asked = remedy.value.split("+") if isinstance(remedy.value, str) else list(FLAGS)

    @functools.wraps(build)
    def __init__(self, *args, **options):
        try:
            bound = signature.bind(self, *args, **options)
            bound.apply_defaults()
            changes = _changes(bound.arguments, asked)
            if not changes:
                remedy.refuse("DDP has these flags already")
            elif remedy.take(", ".join("%s=%s" % one for one in sorted(changes.items()))):
                bound.arguments.update(changes)
                args, options = bound.args[1:], bound.kwargs
        except Exception as error:  # noqa: BLE001
            remedy.broke(error)
        return build(self, *args, **options)

    owner.__init__ = __init__


def _changes(arguments, asked):
    """Arguments that set the flags which the job gives another value, of those this torch knows."""
    changes = {}
    for name, wanted in FLAGS.items():
        if name not in asked or name not in arguments or arguments[name] is wanted:
            continue
        if name != "broadcast_buffers":
            changes[name] = wanted
        elif any(True for _ in arguments["module"].buffers()):
            changes.update(_buffers_apart(arguments))
    return changes


def _buffers_apart(arguments):
    """No exchange of buffers before a forward pass; newer versions of torch have another name."""
    if "forward_sync_buffers" not in arguments:
        return {"broadcast_buffers": False}
    if arguments["forward_sync_buffers"] is False:
        return {}
    if arguments["broadcast_buffers"] is None:
        return {"forward_sync_buffers": False}
    return {"broadcast_buffers": None, "forward_sync_buffers": False}


class _Accumulation:
    """How often a model is called per optimizer step, learned from the first steps."""

    def __init__(self):
        self.calls = 0
        self.earlier = None
        self.per_step = None

    def stepped(self):
        """An optimizer step ended; whether the number of calls per step is known now."""
        calls, self.calls = self.calls, 0
        if self.per_step is None and calls and calls == self.earlier:
            self.per_step = calls
            return True
        self.earlier = calls
        return False


def _no_sync(torch, remedy):
    """Of several backward passes per optimizer step, only the last one exchanges gradients."""
    from torch.optim.optimizer import (
        register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook,
    )

    owner = torch.nn.parallel.DistributedDataParallel
    forward = owner.forward
    known = weakref.WeakKeyDictionary()

    @functools.wraps(forward)
    def counted(model, *args, **options):
        if model.training and torch.is_grad_enabled():
            _before_call(remedy, model, known.setdefault(model, _Accumulation()))
        return forward(model, *args, **options)

    def before_step(optimizer, *_):
        for model, count in _owned(optimizer, known):
            if count.per_step and 0 < count.calls < count.per_step and not remedy.dry:
                _exchange(torch, model)

    def after_step(optimizer, *_):
        for model, count in _owned(optimizer, known):
            if count.stepped() and count.per_step == 1:
                remedy.refuse("one backward pass per optimizer step")
            if count.per_step and count.per_step > 1 and not remedy.dry:
                model.require_backward_grad_sync = True

    owner.forward = counted
    register_optimizer_step_pre_hook(before_step)
    register_optimizer_step_post_hook(after_step)


def _before_call(remedy, model, count):
    count.calls += 1
    if count.per_step is None:
        if not model.require_backward_grad_sync:
            remedy.refuse("the job uses no_sync() already")
            count.per_step = 1
    elif count.per_step > 1:
        last = count.calls >= count.per_step
        if not last and remedy.take("%d backward passes per step" % count.per_step):
            model.require_backward_grad_sync = False
        elif last and not remedy.dry:
            model.require_backward_grad_sync = True


def _owned(optimizer, known):
    """The models with a parameter that the optimizer steps."""
    first = optimizer.param_groups[0]["params"][:1]
    return [
        (model, count)
        for model, count in list(known.items())
        if first and any(p is first[0] for p in model.parameters())
    ]


def _exchange(torch, model):
    """The step comes before its last backward pass: average what was kept back, as DDP would."""
    distributed = torch.distributed
    ranks = distributed.get_world_size(model.process_group)
    for parameter in model.parameters():
        if parameter.grad is not None:
            distributed.all_reduce(parameter.grad, group=model.process_group)
            parameter.grad /= ranks


KNOWN = {"ddp_flags": _ddp_flags, "no_sync": _no_sync}
