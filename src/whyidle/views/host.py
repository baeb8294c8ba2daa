"""What every host thread was doing: the activity, operator and source line of each host span."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import polars as pl

from whyidle.intervals import Index
from whyidle.views.activities import (
    ANOMALY_CHECKS,
    CODE,
    HIDDEN_WAITS,
    NODE,
    READS,
    own_activity,
    within_table,
)
from whyidle.views.names import (
    BLOCKING_COPIES,
    GRAPH_LAUNCHES,
    INBOUND,
    KERNEL_LAUNCHES,
    OUTBOUND,
    SYNCHRONISATIONS,
)
from whyidle.views.nest import Nest, Partition, holding, nearest, partition

Codes = npt.NDArray[np.int8]
Flags = npt.NDArray[np.bool_]
SMALL_COPY_BYTES = 65536
"""Up to here CUDA stages a pageable copy itself; what the caller waits for is the stream."""


@dataclass(frozen=True)
class Host:
    """The nested host spans and, per span (index into ``nest``), what it means.

    activity: code in ACTIVITIES, given everything around it; scope: the outermost span around it
    (or itself) of the same activity; operator: index of the outermost operator it belongs to,
    -1 for none; frame: index of the innermost frame of the user's own source, -1 for none;
    waits: whether the span or one inside it waits for the device.
    """

    nest: Nest
    activity: Codes
    scope: Index
    operator: Index
    frame: Index
    waits: Flags
    feeds: Flags  # per thread: does it launch device work

    @cached_property
    def partition(self) -> Partition:
        """Every instant of every thread with its innermost span."""
        return partition(self.nest)

    def forget_partition(self) -> None:
        """Give its memory back; it is made again when asked for."""
        self.__dict__.pop("partition", None)


def host(nested: Nest, activity: pl.DataFrame) -> Host:
    """Classify the nested host spans; ``activity`` is the device work with its launches."""
    table = _Names(nested.spans)
    parent = nested.parent
    copies = _copies(nested, activity)
    waits = holding(nested, table.sync | (copies != 0))
    own = _own(table, parent, waits, copies)
    code = _inherit(nested, own)
    operator = _first_from_above(nested, table.is_op)
    frame = nearest(nested, table.user_frame)
    callers = activity["caller"].drop_nulls().unique().to_numpy().astype(np.int64)
    feeds = np.zeros(nested.edges[0].size, dtype=bool)
    feeds[callers[callers < feeds.size]] = True
    return Host(nested, code, _scope(nested, code), operator, frame, waits, feeds)


class _Names:
    """Per span, what its kind and name alone say; rules run once per distinct name."""

    def __init__(self, spans: pl.DataFrame) -> None:
        kind, name = pl.col("kind").to_physical(), pl.col("name").to_physical()
        keys = spans.select((name.cast(pl.Int64).fill_null(-1) * 64 + kind).alias("key"))["key"]
        _, first, at = np.unique(keys.to_numpy(), return_index=True, return_inverse=True)
        distinct = spans.select("kind", pl.col("name").cast(pl.String).fill_null(""))[first]
        pairs = list(distinct.iter_rows())
        self.own: Codes = np.array([CODE[own_activity(k, n)] for k, n in pairs], dtype=np.int8)[at]
        self.is_op = _take([k == "op" for k, _ in pairs], at)
        self.is_python = _take([k == "python" for k, _ in pairs], at)
        self.user_frame = _take([k == "python" and is_user_frame(n) for k, n in pairs], at)
        self.sync = _take([k == "runtime" and _is_wait(n) for k, n in pairs], at)
        self.reads = _take([bool(READS.search(n)) for _, n in pairs], at)
        self.hidden = _take([bool(HIDDEN_WAITS.search(n)) for _, n in pairs], at)
        self.node = _take([n.startswith(NODE) for _, n in pairs], at)
        self.check = _take([n in ANOMALY_CHECKS for _, n in pairs], at)
        self.isnan = _take([n == "aten::isnan" for _, n in pairs], at)
        self.wrapped = _take(
            [
                n.startswith(("DistributedDataParallel.", "FullyShardedDataParallel."))
                for _, n in pairs
            ],
            at,
        )
        self.broadcast = _take([k == "op" and "broadcast" in n for k, n in pairs], at)
        self.free = _take([k == "runtime" and bool(_FREES.search(n)) for k, n in pairs], at)


_FREES = re.compile(r"^(cuda|hip)Free$|^(cu|hip)MemUnmap")
_FRAME = re.compile(r"^(?P<file>.*)\((?P<line>\d+)\): (?P<function>.*)$")
_LIBRARY = re.compile(
    r"^<|(^|/)(site-packages|dist-packages|lib/python3(\.\d+)?)/|(^|/)(torch|torchvision|torchaudio"
    r"|transformers|accelerate|lightning|pytorch_lightning|deepspeed|numpy|triton|datasets"
    r"|scipy|pandas|PIL|cv2|sklearn|skimage|albumentations|matplotlib|pyarrow|fsspec|av|timm|peft"
    r"|diffusers|tokenizers|safetensors|huggingface_hub|torchdata|torchmetrics|webdataset|wandb|tqdm"
    r"|contextlib\.py|threading\.py|selectors\.py|multiprocessing|concurrent|asyncio|importlib"
    r"|functools\.py|runpy\.py|typing_extensions\.py|typing\.py|enum\.py|inspect\.py|warnings\.py"
    r"|weakref\.py|dataclasses\.py|abc\.py|copy\.py|collections|_whyidle_hook)(/|\(|$)"
)
_STANDARD_PACKAGES = (
    "asyncio", "ctypes", "dbm", "email", "encodings", "html", "http", "json", "logging", "pathlib",
    "re", "sqlite3", "tomllib", "unittest", "urllib", "xml", "xmlrpc", "zipfile", "zoneinfo",
)  # fmt: skip
_STANDARD = frozenset(
    {f"{name}.py" for name in sys.stdlib_module_names if name not in ("this", "test")}
    | {f"{name}/__init__.py" for name in _STANDARD_PACKAGES}
)
"""Files of the standard library as a profiler writes them, relative to ``sys.path``."""


def is_user_frame(name: str) -> bool:
    """Whether a Python frame lies in the user's source rather than in a library.

    A file of the user that is named like a module of the standard library counts as a library's.
    """
    found = _FRAME.match(name)
    if not found or _LIBRARY.search(found["file"]):
        return False
    top, _, below = found["file"].partition("/")
    return found["file"] not in _STANDARD and not (below and top in _STANDARD_PACKAGES)


def split_frame(name: str) -> tuple[str, int, str] | None:
    """(file, line, function) of a recorded frame; None when it names no source line."""
    found = _FRAME.match(name)
    return (found["file"], int(found["line"]), found["function"]) if found else None


def _take(values: list[bool], at: Index) -> Flags:
    return np.array(values, dtype=bool)[at]


def _is_wait(name: str) -> bool:
    return bool(SYNCHRONISATIONS.search(name) or BLOCKING_COPIES.search(name))


def _copies(nested: Nest, activity: pl.DataFrame) -> Codes:
    """Per span: 1 = launches a blocking host-to-device copy, 2 = its twin back, 0 = neither."""
    named = activity.filter((pl.col("kind") == "copy") & pl.col("launch").is_not_null())
    text = pl.col("name").cast(pl.String)
    pinned = text.str.contains("Pinned")
    large = pl.col("bytes").fill_null(SMALL_COPY_BYTES + 1) > SMALL_COPY_BYTES
    named = named.select(
        "launch",
        pl.when(pinned).then(0).when(text.str.contains(INBOUND) & large).then(1)
        .when(text.str.contains(INBOUND)).then(3).when(text.str.contains(OUTBOUND)).then(2)
        .otherwise(0).alias("way"),
    ).filter(pl.col("way") > 0)  # fmt: skip
    found = np.zeros(nested.start.size, dtype=np.int8)
    at = nested.index_of(named["launch"].to_numpy())
    found[at[at >= 0]] = named["way"].to_numpy()[at >= 0]
    return found


def _own(table: _Names, parent: Index, waits: Flags, copies: Codes) -> Codes:
    own = table.own.copy()
    own[table.reads & waits] = CODE["scalar_read"]
    own[table.hidden & waits] = CODE["sync"]
    way = np.array([0, CODE["pageable_copy"], CODE["scalar_read"], CODE["sync"]], dtype=np.int8)
    launches = np.flatnonzero(copies)
    own[launches] = way[copies[launches]]
    # the wait that follows a copy inside the same operator belongs to the copy
    beside = np.zeros(own.size, dtype=np.int8)
    held = launches[parent[launches] >= 0]
    beside[parent[held]] = copies[held]
    after = np.flatnonzero(table.sync & (parent >= 0) & (copies == 0))
    after = after[beside[parent[after]] > 0]
    own[after] = way[beside[parent[after]]]
    _anomaly(table, parent, own)
    _wrapper(table, parent, own)
    return own


def _anomaly(table: _Names, parent: Index, own: Codes) -> None:
    """Checks directly below a backward node, where a check for NaN is, are anomaly mode's."""
    below = (parent >= 0) & table.node[parent]
    nodes = np.unique(parent[below & table.isnan])
    checks = np.flatnonzero(below & table.check & np.isin(parent, nodes))
    own[checks] = CODE["anomaly"]


def _wrapper(table: _Names, parent: Index, own: Codes) -> None:
    """Buffers that DDP broadcasts before a forward are the wrapper's."""
    for index in np.flatnonzero(table.broadcast):
        above = parent[index]
        while above >= 0 and not table.wrapped[above]:
            above = parent[above]
        if above >= 0:
            own[index] = CODE["wrapper"]


def _inherit(nested: Nest, own: Codes) -> Codes:
    table = np.array(within_table(), dtype=np.int8)
    code = own.copy()
    for level in nested.levels[1:]:
        code[level] = table[code[nested.parent[level]], own[level]]
    return code


def _scope(nested: Nest, code: Codes) -> Index:
    """Per span the outermost span of an unbroken run of the same activity around it.

    A range that the framework recorded says more than the Python frames around it.
    """
    found = np.arange(nested.start.size, dtype=np.intp)
    ranged = (nested.spans["kind"] == "annotation").to_numpy()
    for level in nested.levels[1:]:
        above = nested.parent[level]
        better = ranged[level] & ~ranged[found[above]]
        found[level] = np.where((code[above] == code[level]) & ~better, found[above], level)
    return found


def _first_from_above(nested: Nest, mine: Flags) -> Index:
    """Per span the outermost span around it (or itself) for which ``mine`` holds, else -1."""
    found = np.full(nested.start.size, -1, dtype=np.intp)
    for depth, level in enumerate(nested.levels):
        above = found[nested.parent[level]] if depth else np.full(level.size, -1, dtype=np.intp)
        found[level] = np.where(above >= 0, above, np.where(mine[level], level, -1))
    return found


def is_kernel_launch(name: str) -> bool:
    """Whether a runtime call of this name hands a kernel to the device."""
    return bool(KERNEL_LAUNCHES.search(name)) and not GRAPH_LAUNCHES.search(name)
