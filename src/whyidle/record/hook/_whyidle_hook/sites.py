"""Lines of the user's source where something was made that decides about speed, or switched."""

import sys

from _whyidle_hook.around import after, put
from _whyidle_hook.places import place_of

MOST = 500
"""Sites told of one process; a job that makes more lines than this as it runs tells no more."""

LOADER = ("batch_size", "num_workers", "prefetch_factor", "pin_memory", "persistent_workers")
OPTIMIZER = ("foreach", "fused", "capturable")
DATA_PARALLEL = ("find_unused_parameters", "broadcast_buffers", "static_graph")

CALLS = (
    ("torch.autograd.anomaly_mode.detect_anomaly", "__init__", "anomaly_mode", None),
    ("torch.autograd.anomaly_mode.set_detect_anomaly", "__init__", "anomaly_mode", "mode"),
    ("torch", "use_deterministic_algorithms", "deterministic", "mode"),
    ("torch", "set_num_threads", "threads", "value"),
    ("torch", "set_num_interop_threads", "interop_threads", "value"),
    ("torch", "set_float32_matmul_precision", "matmul_precision", "precision"),
    ("torch", "manual_seed", "seed", "seed"),
    ("torch", "compile", "compile", None),
    ("torch.autocast", "__init__", "autocast", "device_type"),
    ("torch.Tensor", "backward", "backward", None),
)
"""Owner, name, what the site is called, and what its first argument is called there."""

SWITCHES = ("deterministic", "threads", "interop_threads", "matmul_precision", "seed")
"""PyTorch sets these itself too, and sets them back: nobody chose that on the user's line."""

PLAIN = (bool, int, float, str, type(None))


class Sites:
    """Each site is told once; those of a loader's workers are not the user's choice."""

    def __init__(self, observer):
        self._observer = observer
        self._guard = observer.guard("site")
        self.reset()

    def reset(self):
        """As at the start, in a child that was forked off: what its parent told stays told."""
        self._told = getattr(self, "_told", set())
        self._callers = getattr(self, "_callers", set())
        self._made = getattr(self, "_made", {})

    def install(self, torch):
        """Notice what is made and switched; each in turn, since an older torch may lack some."""
        for owner, name, what, argument in CALLS:
            self._try(self._watch, _named(torch, owner), name, what, argument)
        loader, optimizer = torch.utils.data.DataLoader, torch.optim.Optimizer
        self._try(after, loader, "__init__", self._loader_made)
        self._try(after, optimizer, "__init__", self._optimizer_made)
        parallel = torch.nn.parallel
        self._try(after, parallel.DataParallel, "__init__", self._parallel_made)
        self._try(after, parallel.DistributedDataParallel, "__init__", self._parallel_made)
        self._try(self._watch_setting, torch)
        self._observer.when_imported("torch.distributed.fsdp", self._watch_fsdp)

    def _try(self, put_in_place, *args):
        try:
            put_in_place(*args)
        except Exception as error:  # noqa: BLE001  an unknown torch costs one kind of site
            name = args[1] if len(args) > 1 else put_in_place.__name__
            self._observer.problem("site %s" % name, error)

    def say(self, what, detail, frame):
        """A site on the user's line that the frame was called from; (file, line) or Nones."""
        file, line = place_of(frame)
        key = (what, file, line)
        if file is not None and key not in self._told and len(self._told) < MOST:
            self._told.add(key)
            if not self._observer.works_for_loader:
                self._observer.events.say("site", what=what, file=file, line=line, detail=detail)
        return file, line

    def _watch(self, owner, name, what, argument):
        """Tell calls of a function; a caller that was seen costs a look into a set from then on."""

        def note(result, args, options):
            caller = sys._getframe(2)
            key = (what, caller.f_code, caller.f_lineno)
            if key in self._callers or not self._guard.on:
                return
            with self._guard:
                if len(self._callers) < 10 * MOST:
                    self._callers.add(key)
                if what in SWITCHES and caller.f_globals.get("__name__", "").startswith("torch."):
                    return
                given = args[1:] if name == "__init__" else args
                self.say(what, _detail(argument, given, options), caller)

        after(owner, name, note)

    def _loader_made(self, result, args, options):
        with self._guard:
            loader = args[0]
            detail = {name: getattr(loader, name, None) for name in LOADER}
            detail["dataset"] = type(loader.dataset).__name__
            place = self.say("loader", _plain(detail), sys._getframe(2))
            self._observer.loaders.made(loader, place)

    def _optimizer_made(self, result, args, options):
        with self._guard:
            optimizer = args[0]
            detail = {name: optimizer.defaults.get(name) for name in OPTIMIZER}
            detail["name"] = type(optimizer).__name__
            place = self.say("optimizer", _plain(detail), sys._getframe(2))
            self._made[id(optimizer)] = (type(optimizer).__name__, place)
            self._observer.evaluations.made(optimizer)
            self._observer.watch.prepare()

    def _parallel_made(self, result, args, options):
        with self._guard:
            owner = args[0]
            detail = {name: getattr(owner, name, None) for name in DATA_PARALLEL}
            if "static_graph" in options:
                detail["static_graph"] = options["static_graph"]
            detail["name"] = type(owner).__name__
            self.say("data_parallel", _plain(detail), sys._getframe(2))

    def _watch_fsdp(self, fsdp):
        self._try(after, fsdp.FullyShardedDataParallel, "__init__", self._parallel_made)
        if hasattr(fsdp, "fully_shard"):
            self._try(self._watch, fsdp, "fully_shard", "data_parallel", None)

    def _watch_setting(self, torch):
        """Switches that are set like variables: cudnn.benchmark, and TF32 in matrix products."""
        flag = vars(type(torch.backends.cudnn))["benchmark"]
        set_flag = flag.setter

        def set_benchmark(value):
            set_flag(value)
            self._switched("cudnn_benchmark", {"value": value})

        flag.setter = set_benchmark
        matmul = type(torch.backends.cuda.matmul)
        set_attribute = matmul.__setattr__

        def __setattr__(owner, name, value):
            set_attribute(owner, name, value)
            self._switched("matmul_precision", {name: value})

        put(matmul, "__setattr__", __setattr__, set_attribute)

    def _switched(self, what, detail):
        if self._guard.on:
            with self._guard:
                self.say(what, _plain(detail), sys._getframe(2))

    def describe(self, optimizer):
        """The ``optimizer`` event, of the one whose steps count."""
        groups = optimizer.param_groups
        parameters = [p for group in groups for p in group["params"]]
        file, line = place_of(sys._getframe(1))
        name, made = self._made.get(id(optimizer), (None, (None, None)))
        if name != type(optimizer).__name__:
            made = (None, None)
        self._observer.events.say(
            "optimizer",
            name=type(optimizer).__name__,
            lr=_number(groups[0].get("lr")),
            foreach=groups[0].get("foreach"),
            fused=groups[0].get("fused"),
            groups=len(groups),
            parameters=sum(p.numel() for p in parameters),
            bytes=sum(p.numel() * p.element_size() for p in parameters),
            types=sorted({str(p.dtype) for p in parameters}),
            file=file,
            line=line,
            made_file=made[0],
            made_line=made[1],
        )


def _named(torch, path):
    found = torch
    for part in path.split(".")[1:]:
        found = getattr(found, part)
    return found


def _detail(argument, given, options):
    found = dict(options)
    if argument is not None and given:
        found[argument] = given[0]
    return _plain(found)


def _plain(detail):
    """What JSON can hold; anything else by its name."""
    return {
        name: value if isinstance(value, PLAIN) else str(getattr(value, "__name__", value))[:100]
        for name, value in detail.items()
        if not name.startswith("_")
    }


def _number(value):
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return found if found - found == 0 else None
