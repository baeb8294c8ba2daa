"""Remedies for data loaders: each changes arguments of ``DataLoader(...)`` as it is built."""

import functools
import inspect


def _edits(edit):
    """A remedy whose ``edit(torch, remedy, arguments)`` looks at the arguments of each loader."""

    def put(torch, remedy):
        loader = torch.utils.data.DataLoader
        build = loader.__init__
        signature = inspect.signature(build)

        @functools.wraps(build)
        def __init__(self, *args, **options):
            try:
                bound = signature.bind(self, *args, **options)
            except TypeError:
                return build(self, *args, **options)
            try:
                bound.apply_defaults()
                edit(torch, remedy, bound.arguments)
            except Exception as error:  # noqa: BLE001
                remedy.broke(error)
                return build(self, *args, **options)
            return build(*bound.args, **bound.kwargs)

        loader.__init__ = __init__

    return put


def _loader_workers(torch, remedy, arguments):
    wanted, had = int(remedy.value), arguments["num_workers"]
    if had >= wanted:
        remedy.refuse("a loader has %d workers already" % had)
        return
    why = _unfit_for_workers(torch, arguments) if had == 0 else None
    if why is not None:
        remedy.refuse(why)
    elif remedy.take("num_workers=%d instead of %d" % (wanted, had)):
        arguments["num_workers"] = wanted
        if had == 0:
            arguments["persistent_workers"] = True


def _unfit_for_workers(torch, arguments):
    """Why a loader that loads in the training process must not get workers; None if it may."""
    import multiprocessing

    dataset = arguments["dataset"]
    if multiprocessing.current_process().daemon:
        return "the training process is a daemon, which may not start workers"
    if isinstance(dataset, torch.utils.data.IterableDataset) and not _shards(dataset):
        return "an IterableDataset that does not look at get_worker_info() would repeat its samples"
    if any(_on_device(value) for value in _held(dataset)):
        return "the data set lies on a GPU, which worker processes cannot use"
    return None


def _shards(dataset):
    try:
        return "get_worker_info" in inspect.getsource(type(dataset))
    except (OSError, TypeError):
        return False


def _held(dataset):
    found = []
    for value in list(getattr(dataset, "__dict__", {}).values())[:50]:
        found.extend(value[:50] if isinstance(value, (list, tuple)) else [value])
    return found


def _on_device(value):
    return bool(getattr(value, "is_cuda", False))


def _prefetch_factor(torch, remedy, arguments):
    had = arguments["prefetch_factor"] or 2
    if not arguments["num_workers"]:
        remedy.refuse("a loader without workers does not prefetch")
    elif had >= int(remedy.value):
        remedy.refuse("a loader has prefetch_factor=%d already" % had)
    elif remedy.take("prefetch_factor=%s instead of %d" % (remedy.value, had)):
        arguments["prefetch_factor"] = int(remedy.value)


def _persistent_workers(torch, remedy, arguments):
    if not arguments["num_workers"]:
        remedy.refuse("a loader without workers has none to keep")
    elif arguments["persistent_workers"]:
        remedy.refuse("a loader keeps its workers already")
    elif remedy.take():
        arguments["persistent_workers"] = True


def _pin_memory(torch, remedy, arguments):
    if not torch.cuda.is_available():
        remedy.refuse("no GPU")
    elif arguments["pin_memory"]:
        remedy.refuse("a loader pins its batches already")
    elif remedy.take():
        arguments["pin_memory"] = True


def _batch_size(torch, remedy):
    """A batch ``value`` times as large, and a learning rate scaled with it."""
    factor = int(remedy.value)

    def edit(torch, remedy, arguments):
        had = arguments["batch_size"]
        if arguments["batch_sampler"] is not None or had is None:
            remedy.refuse("a loader's batches are made by a sampler of the job's own")
        elif remedy.take("batch_size=%d instead of %d, learning rate scaled" % (had * factor, had)):
            arguments["batch_size"] = had * factor

    _edits(edit)(torch, remedy)
    from torch.optim.optimizer import Optimizer

    add = Optimizer.add_param_group

    @functools.wraps(add)
    def add_param_group(optimizer, group):
        add(optimizer, group)
        rate = optimizer.param_groups[-1].get("lr")
        if not remedy.dry and isinstance(rate, float):
            optimizer.param_groups[-1]["lr"] = rate * factor

    Optimizer.add_param_group = add_param_group


KNOWN = {
    "loader_workers": _edits(_loader_workers),
    "prefetch_factor": _edits(_prefetch_factor),
    "persistent_workers": _edits(_persistent_workers),
    "pin_memory": _edits(_pin_memory),
    "batch_size": _batch_size,
}
