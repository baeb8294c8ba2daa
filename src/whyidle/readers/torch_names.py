"""What the PyTorch Profiler calls things, and what we call them.

Categories come from kineto's ``ActivityType`` table (2021 to 2026, with the names that vendors
add by its pattern: ``xpu_*``, ``mlu_*``, ``privateuse1_*``), the capitalised ones from 2021
traces. A category that is not known by name is recognised by its ending, else left out and
counted in a note.
"""

from __future__ import annotations

from functools import lru_cache

from whyidle.model import DEVICE_KINDS, HOST_KINDS, KINDS

KIND_CODES: dict[str, int] = {kind: code for code, kind in enumerate(KINDS.categories)}
FIRST_DEVICE_CODE = len(HOST_KINDS)
LAST_WORK_CODE = FIRST_DEVICE_CODE + len(DEVICE_KINDS) - 1
OUTSIDE = 255
"""Code of an event that is not a span of the run, such as the profiler's own ``Trace`` record."""

CATEGORIES: dict[str, str | None] = {
    "cpu_op": "op",
    "operator": "op",
    "python_function": "python",
    "user_annotation": "annotation",
    "collective_comm": "annotation",  # communication calls as the host sees them
    "cuda_runtime": "runtime",
    "cuda_driver": "runtime",
    "runtime": "runtime",
    "hpu_op": "runtime",  # host-side calls of that vendor's runtime
    "overhead": "overhead",
    "kernel": "kernel",
    "concurrent_kernel": "kernel",
    "gpu_memcpy": "copy",
    "memcpy": "copy",
    "gpu_memset": "set",
    "memset": "set",
    "mtia_ccp_events": "kernel",  # or a copy: see kind_of
    "gpu_user_annotation": "device_annotation",
    "cuda_sync": "device_sync",
    "cuda_event": "device_sync",  # an event recorded on a stream occupies nothing
    "trace": None,
    "cpu_instant_event": None,
}
ENDINGS: tuple[tuple[str, str], ...] = (
    ("_runtime", "runtime"),
    ("_driver", "runtime"),
    ("_memcpy", "copy"),
    ("_memset", "set"),
    ("_user_annotation", "device_annotation"),
    ("_sync", "device_sync"),
    ("_kernel", "kernel"),
)
OLD_CATEGORIES = frozenset({"Operator", "Runtime", "Kernel", "Memcpy", "Memset"})

MARKS = (
    "ProfilerStep#",
    "enumerate(DataLoader)#",
    "Optimizer.step#",
    "Optimizer.zero_grad#",
    "DistributedDataParallel.forward",
)
"""Names that are annotations in any host category: 2021 traces file them as operators."""

LAUNCH_FLOWS = frozenset({"ac2g", "async", "async_gpu", "async_cpu_to_gpu"})
"""Categories of flow events that lead from a launch call to its device work."""

OUR_WRAPPERS = "<whyidle: "
"""Frames of thin functions that ``whyidle run`` puts around calls; the calls themselves count."""

THREADS_NOT_BLOCKS = ("hipExtModuleLaunchKernel", "hipHccModuleLaunchKernel")
"""HIP calls whose grid counts threads (``globalWorkSize``); all others count blocks."""


@lru_cache(maxsize=1 << 12)
def kind_of(category: object, name: str) -> int:
    """Code of the kind of a complete event; ``OUTSIDE`` when it is not a span."""
    if not isinstance(category, str) or name.startswith(OUR_WRAPPERS):
        return OUTSIDE
    lower = category.lower()
    kind = CATEGORIES.get(lower, "")
    if kind == "":
        kind = next((found for ending, found in ENDINGS if lower.endswith(ending)), None)
    if kind is None:
        return OUTSIDE
    if kind == "op" and name.startswith(MARKS):
        kind = "annotation"
    if lower.startswith("mtia") and kind == "kernel" and name.lower().startswith("dma"):
        kind = "copy"
    return KIND_CODES[kind]


class Labels(dict[tuple[object, object], int]):
    """Numbers the distinct (category, name) pairs; keeps the kind and the name of each.

    ``kinds[code]`` is a kind code, ``names[code]`` the name as recorded ("" when absent).
    """

    def __init__(self) -> None:
        """Start with no labels."""
        super().__init__()
        self.kinds: list[int] = []
        self.names: list[str] = []
        self.left_out: dict[int, str] = {}
        self.old = False
        self.vendors: set[str] = set()

    def __missing__(self, key: tuple[object, object]) -> int:
        """Number a pair seen for the first time."""
        category, name = key
        text = name if isinstance(name, str) else ("" if name is None else str(name))
        code = self[key] = len(self.names)
        kind = kind_of(category, text)
        self.names.append(text)
        self.kinds.append(kind)
        if category in OLD_CATEGORIES:
            self.old = True
        if kind == OUTSIDE and category != "Trace":
            self.left_out[code] = "no category" if category is None else str(category)
        self._notice_vendor(str(category), text, kind)
        return code

    def _notice_vendor(self, category: str, name: str, kind: int) -> None:
        if category.startswith("mtia_"):
            self.vendors.add("mtia")
        elif category.startswith("xpu_"):
            self.vendors.add("intel")
        elif kind == KIND_CODES["runtime"] and name.startswith("hip"):
            self.vendors.add("amd")
        elif kind == KIND_CODES["runtime"] and name.startswith(("cuda", "cuLaunch")):
            self.vendors.add("nvidia")


class Lanes(dict[tuple[object, object], int]):
    """Numbers the distinct (process, thread) pairs; 5555 and "5555" are one thread.

    ``keys[lane]`` is (process, thread) as text.
    """

    def __init__(self) -> None:
        """Start with no lanes."""
        super().__init__()
        self.lanes: list[tuple[str, str]] = []
        self._known: dict[tuple[str, str], int] = {}

    def __missing__(self, key: tuple[object, object]) -> int:
        """Number a pair seen for the first time, or find it under its text."""
        text = (as_text(key[0]), as_text(key[1]))
        lane = self._known.get(text)
        if lane is None:
            lane = self._known[text] = len(self.lanes)
            self.lanes.append(text)
        self[key] = lane
        return lane


def as_text(value: object) -> str:
    """A pid or tid as text: integral floats without their fraction, nothing as ""."""
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def as_integer(value: object) -> int | None:
    """An integer that fits 64 bits, from a number or text such as "12", "0x1f", "stream 7"."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, str):
        digits = value.strip().removeprefix("stream").strip()
        try:
            value = int(digits, 16) if digits[:2].lower() == "0x" else _number(digits)
        except (ValueError, OverflowError):
            return None
    if isinstance(value, float):
        if not value.is_integer() or abs(value) > 1 << 53:
            return None
        value = int(value)
    if isinstance(value, int) and -(1 << 63) < value < (1 << 63):
        return value
    return None


def _number(text: str) -> int | float:
    """The number a text says; raises ValueError."""
    return float(text) if "." in text else int(text)
