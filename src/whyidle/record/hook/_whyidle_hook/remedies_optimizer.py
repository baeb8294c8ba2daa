"""Remedies for the optimizer, put in place just before its first step."""

import functools
import weakref

FUSED = ("Adam", "AdamW", "SGD", "Adagrad")


def _before_first_step(act):
    def put(torch, remedy):
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        seen = weakref.WeakSet()

        def steps(optimizer, *_):
            if optimizer in seen:
                return
            seen.add(optimizer)
            try:
                act(torch, remedy, optimizer)
            except Exception as error:  # noqa: BLE001
                remedy.broke(error)

        register_optimizer_step_pre_hook(steps)

    return put


def _set(optimizer, **values):
    for holder in (optimizer.defaults, *optimizer.param_groups):
        for name, value in values.items():
            if name in holder:
                holder[name] = value


def _foreach(torch, remedy, optimizer):
    group = optimizer.param_groups[0]
    name = type(optimizer).__name__
    if "foreach" not in optimizer.defaults:
        remedy.refuse("%s has no foreach" % name)
    elif group.get("fused"):
        remedy.refuse("%s is fused already" % name)
    elif group["foreach"] or (group["foreach"] is None and _on(optimizer, "cuda")):
        remedy.refuse("%s works on many tensors at once already" % name)
    elif any(group.get("differentiable") for group in optimizer.param_groups):
        remedy.refuse("%s is differentiable" % name)
    elif remedy.take():
        _set(optimizer, foreach=True)


def _fused(torch, remedy, optimizer):
    name = type(optimizer).__name__
    why = _unfit_for_fused(torch, optimizer)
    if why is not None:
        remedy.refuse("%s %s" % (name, why))
    elif remedy.take():
        _set(optimizer, foreach=None, fused=True)
        optimizer._step_supports_amp_scaling = True


def _unfit_for_fused(torch, optimizer):
    if type(optimizer).__name__ not in FUSED or "fused" not in optimizer.defaults:
        return "has no fused form"
    if any(group.get("fused") for group in optimizer.param_groups):
        return "is fused already"
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return "is differentiable"
    if len(optimizer.state):
        return "was loaded with a state that the fused form does not take"
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if not all(torch.is_floating_point(p) for p in parameters):
        return "holds parameters that are no floating-point numbers"
    if not (_on(optimizer, "cuda") or _on(optimizer, "cpu")):
        return "holds parameters on more than one device, or on one without a fused form"
    return None


def _on(optimizer, device):
    return all(p.device.type == device for group in optimizer.param_groups for p in group["params"])


def _zero_grad(torch, remedy):
    """Gradients are dropped instead of filled with zeros, where the job asks for zeros."""
    from torch.optim.optimizer import Optimizer

    for owner in (Optimizer, torch.nn.Module):
        _drop_in(owner, remedy)


def _drop_in(owner, remedy):
    zero = owner.zero_grad

    @functools.wraps(zero)
    def zero_grad(self, set_to_none=True):
        if not set_to_none and remedy.take():
            set_to_none = True
        return zero(self, set_to_none=set_to_none)

    owner.zero_grad = zero_grad


KNOWN = {
    "foreach": _before_first_step(_foreach),
    "fused": _before_first_step(_fused),
    "zero_grad": _zero_grad,
}
