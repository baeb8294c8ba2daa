"""What can be known of a torch DataLoader from its source."""

from __future__ import annotations

import libcst as cst
from libcst import matchers as m

from whyidle.fix.arguments import argument, is_constant
from whyidle.fix.source import Source, called_method, names_in

LOADER = ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")
WORKERS = 5
"""Position of num_workers among the arguments of DataLoader, from 0."""
PIN = 7
ITERABLE = ("torch.utils.data.IterableDataset", "torch.utils.data.dataset.IterableDataset")
MAP_STYLE = ("torch.utils.data.Dataset", "torch.utils.data.dataset.Dataset")
IN_MEMORY = ("torch.utils.data.TensorDataset", "torch.utils.data.dataset.TensorDataset")
SENSITIVE = ("worker_init_fn", "multiprocessing_context", "generator", "prefetch_factor", "timeout")


def sensitive(call: cst.Call, started: bool = False) -> str | None:
    """The first argument of a loader whose meaning depends on its workers, or on their number."""
    for name in SENSITIVE[:1] if started else SENSITIVE:
        arg = argument(call, name)
        if arg is not None and not is_constant(arg, "None") and not is_constant(arg, "0"):
            return name
    return None


def workers_of(call: cst.Call) -> int | None:
    """The number of workers that the source shows; None when it is decided elsewhere."""
    arg = argument(call, "num_workers", WORKERS)
    if arg is None:
        return 0
    return arg.value.evaluated_value if isinstance(arg.value, cst.Integer) else None


def keeps_workers(source: Source, call: cst.Call) -> str | None:
    """Why workers of this loader must not live on after an epoch; None when they may."""
    if source.loop(call) is not None:
        return "it is made anew in each pass of a loop"
    for epoch in source.method_calls("set_epoch"):
        assert isinstance(epoch.func, cst.Attribute)
        if "sampler" not in source.text(epoch.func.value):
            return "set_epoch of a data set would not reach workers that live on"
    return None


def against_workers(source: Source, call: cst.Call) -> str | None:
    """Why workers might change what this loader yields; None when they are understood."""
    dataset = argument(call, "dataset", 0)
    if dataset is None:
        return "it has no data set that the source shows"
    value: cst.BaseExpression | None = dataset.value
    if isinstance(value, cst.Name):
        value = source.bound(value)
    made = value.func if isinstance(value, cst.Call) else None
    if made is not None and source.meaning(made) in IN_MEMORY:
        return "its samples lie in memory already, so workers would only copy them"
    kind = source.class_of(made) if made is not None else None
    if kind is not None:
        return _against_class(source, kind, call)
    if _counts_rows(call):
        return _starting(source, call, local=False)
    name = source.meaning(made) if made is not None else None
    if name is not None and name.startswith("torchvision.datasets."):
        return _starting(source, call, local=False)
    return "it may read an IterableDataset, of which each worker would yield all samples"


def _counts_rows(call: cst.Call) -> bool:
    """Only data sets with an index take shuffle=True or a sampler."""
    given = argument(call, "sampler") or argument(call, "batch_sampler")
    sampled = given is not None and not is_constant(given, "None")
    return sampled or is_constant(argument(call, "shuffle", 2), "True")


def _against_class(source: Source, kind: cst.ClassDef, call: cst.Call) -> str | None:
    bases = {source.meaning(_unindexed(b.value)) for b in kind.bases}
    if bases & set(ITERABLE):
        return "its IterableDataset would yield all samples in each worker"
    if not bases & set(MAP_STYLE) and not _counts_rows(call):
        return "its data set is not known to be a torch.utils.data.Dataset"
    if names_in(kind) & {"cuda", "device", "to"}:
        return "its data set seems to use a device, which workers must not"
    if m.findall(kind, m.Global() | m.Nonlocal()):
        return "its data set changes global names, which workers would not share"
    return _starting(source, call, local=source.function(kind) is not source.module)


def _unindexed(base: cst.BaseExpression) -> cst.BaseExpression:
    return base.value if isinstance(base, cst.Subscript) else base


def _starting(source: Source, call: cst.Call, local: bool) -> str | None:
    """Why workers could not start; under fork they inherit everything and can."""
    if source.start_method == "fork":
        return None
    how = f"workers are started by {source.start_method} here"
    if local or m.findall(call, m.Lambda()):
        return f"{how}, which cannot send them a local class or a lambda"
    guard = source.guard()
    inside = guard is not None and any(p is guard for p in source.parents(call))
    if guard is None:
        return f'{how} and the file has no `if __name__ == "__main__":`'
    if not inside and source.function(call) is source.module:
        return f'{how} and this is not under `if __name__ == "__main__":`'
    return None


def loop_target(loop: cst.For) -> tuple[cst.BaseExpression, cst.BaseAssignTargetExpression]:
    """What a loop iterates and what it binds, seen through enumerate() and tqdm()."""
    over, target = loop.iter, loop.target
    while isinstance(over, cst.Call) and over.args:
        name = called_method(over) or (over.func.value if isinstance(over.func, cst.Name) else "")
        if name == "enumerate" and isinstance(target, cst.Tuple) and len(target.elements) == 2:
            inner = target.elements[1].value
            assert isinstance(inner, cst.BaseAssignTargetExpression)
            target = inner
        elif name not in ("tqdm", "trange"):
            break
        over = over.args[0].value
    return over, target
