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
    return _changed_later(source, call)


def _changed_later(source: Source, call: cst.Call) -> str | None:
    """Why workers that live on might miss a change of their data set; None without one."""
    why = "its data set is changed elsewhere, which would not reach workers that live on"
    for target in source.assigned_attributes:
        owner = target.value
        if m.findall(owner, m.Attribute(attr=m.Name("dataset"))):
            return why
        if source.text(owner) in _data_sets(source, call):
            return why
    for method in source.calls:
        alone = source.alone(method) is not None and source.loop(method) is not None
        if alone and isinstance(method.func, cst.Attribute):
            owner = method.func.value
            if source.text(owner) in _data_sets(source, call) or m.matches(
                owner, m.Attribute(attr=m.Name("dataset"))
            ):
                return why
    return None


def _data_sets(source: Source, call: cst.Call) -> set[str]:
    """Code of what a loader reads, and of what that is made of."""
    given = argument(call, "dataset", 0)
    value: cst.BaseExpression | None = None if given is None else given.value
    found = set()
    if isinstance(value, cst.Name | cst.Attribute):
        found.add(source.text(value))
    if isinstance(value, cst.Name):
        value = source.bound(value)
    for arg in value.args if isinstance(value, cst.Call) else ():
        if isinstance(arg.value, cst.Name) and _is_data(arg.value):
            found.add(arg.value.value)
    return found


def _is_data(name: cst.Name) -> bool:
    return any(word in name.value.lower() for word in ("data", "set", "rows", "samples"))


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
    if _remembers(kind):
        return "its data set keeps what it reads in itself, which workers would not share"
    handle = _handle(source, kind)
    if handle is not None:
        return f"its data set opens a file ({handle}) that workers would share"
    return _starting(source, call, local=source.function(kind) is not source.module)


def _remembers(kind: cst.ClassDef) -> bool:
    """Whether reading a sample changes the data set: ``self.x = ...`` or ``self.x[i] = ...``."""
    for method in m.findall(kind, m.FunctionDef(m.Name("__getitem__"))):
        for one in m.findall(method, m.AssignTarget() | m.AugAssign() | m.AnnAssign()):
            target = one.target  # type: ignore[attr-defined]
            while isinstance(target, cst.Subscript | cst.Attribute):
                if m.matches(target, m.Attribute(value=m.Name("self"))):
                    return True
                target = target.value
    return False


HANDLES = (
    "h5py.File", "lmdb.open", "lmdb.Environment", "zipfile.ZipFile", "tarfile.open",
    "tarfile.TarFile", "sqlite3.connect", "tables.open_file",
)  # fmt: skip
"""Calls that give a handle with a place in its file, which processes must not share."""


def _handle(source: Source, kind: cst.ClassDef) -> str | None:
    """The call in the data set's ``__init__`` that opens what workers must open themselves."""
    for method in m.findall(kind, m.FunctionDef(m.Name("__init__"))):
        for call in m.findall(method, m.Call()):
            kept = source.parent(call) if isinstance(call, cst.Call) else None
            if not isinstance(call, cst.Call) or not isinstance(kept, cst.Assign):
                continue
            if not isinstance(kept.targets[0].target, cst.Attribute):
                continue
            name = source.meaning(call.func)
            if name in HANDLES or m.matches(call.func, m.Name("open")):
                return name or "open"
    return None


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
