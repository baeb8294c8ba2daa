"""Times the stages inside ``__getitem__``: reads, decoders and transforms, wrapped for a while.

Everything wrapped is put back when the block is left. Stages nest; each gets its own time without
that of the stages inside it. Only the thread that entered the block is timed.
"""

from __future__ import annotations

import builtins
import functools
import io
import os
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

Undo = Callable[[], None]

DECODERS = (
    ("simplejpeg", "decode_jpeg"), ("cv2", "imdecode"), ("cv2", "imread"),
    ("imagecodecs", "jpeg8_decode"), ("imagecodecs", "imread"), ("imageio.v3", "imread"),
    ("skimage.io", "imread"), ("torchvision.io", "decode_jpeg"), ("torchvision.io", "decode_image"),
    ("torchvision.io", "read_image"), ("soundfile", "read"), ("torchaudio", "load"),
    ("librosa", "load"),
)  # fmt: skip
"""(module, function) of calls that decode; wrapped where the module is loaded."""

READERS = (("numpy", "load"), ("numpy", "fromfile"), ("torch", "load"), ("mmap", "mmap"))
CHUNKED = (("h5py", "Dataset"), ("zarr", "Array"))
"""Arrays that lie in storage; asking one for a part reads, and decompresses whole chunks."""

TRANSFORM_NAMES = ("transform", "transforms", "target_transform", "augment", "augmentation")
DEEP = 4


class Stages:
    """Own wall and CPU seconds by stage, and what was opened; ``kinds`` is stage -> its kind."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = {}
        self.cpu: dict[str, float] = {}
        self.kinds: dict[str, str] = {}
        self.opens = 0
        self.chunk_bytes = 0
        self.paths: dict[str, int] = {}
        self._stack: list[list[float]] = []
        self._owner = threading.get_ident()

    def timed(self, name: str, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same call, timed as a stage."""
        self.kinds[name] = kind
        stack, wall, cpu = self._stack, self.wall, self.cpu
        now, thread, ident, owner = (
            time.perf_counter, time.thread_time, threading.get_ident, self._owner,
        )  # fmt: skip

        @functools.wraps(call, updated=())
        def stage(*args: Any, **options: Any) -> Any:
            if ident() != owner:
                return call(*args, **options)
            stack.append([0.0, 0.0])
            begin, spent = now(), thread()
            try:
                return call(*args, **options)
            finally:
                spent, lasted = thread() - spent, now() - begin
                inside = stack.pop()
                wall[name] = wall.get(name, 0.0) + lasted - inside[0]
                cpu[name] = cpu.get(name, 0.0) + spent - inside[1]
                if stack:
                    stack[-1][0] += lasted
                    stack[-1][1] += spent

        return stage

    def opened(self, path: Any) -> None:
        """Note that a file was opened for reading."""
        if threading.get_ident() != self._owner:
            return
        self.opens += 1
        if isinstance(path, str | bytes | os.PathLike):
            name = os.fsdecode(path)
            if len(self.paths) < 10_000 or name in self.paths:
                self.paths[name] = self.paths.get(name, 0) + 1

    @contextmanager
    def around(self, dataset: Any) -> Iterator[None]:
        """While this lasts, all that is known as a stage is timed."""
        undo: list[Undo] = []
        try:
            for wrap in (self._opens, self._reads, self._decoders, self._chunks):
                wrap(undo)
            self._transforms(dataset, undo)
            yield
        finally:
            for back in reversed(undo):
                back()

    def _opens(self, undo: list[Undo]) -> None:
        real, real_os = builtins.open, os.open
        raw_read = self.timed("read", "read", io.FileIO.readinto)
        raw_all = self.timed("read", "read", io.FileIO.readall)
        entered = self.timed("read", "read", io.FileIO.__init__)

        class Raw(io.FileIO):
            """A file whose system calls are timed."""

            def __init__(self, *args: Any, **options: Any) -> None:
                entered(self, *args, **options)

            def readinto(self, buffer: Any) -> Any:
                return raw_read(self, buffer)

            def readall(self) -> Any:
                return raw_all(self)

        other = self.timed("read", "read", real)

        def opening(file: Any, mode: str = "r", buffering: int = -1, *args: Any, **kw: Any) -> Any:
            if isinstance(file, int) or set(mode) - set("rbt"):
                return other(file, mode, buffering, *args, **kw)
            self.opened(file)
            if "b" not in mode or buffering != -1 or args or kw:
                return other(file, mode, buffering, *args, **kw)
            return io.BufferedReader(Raw(file, "rb"))

        def opening_os(path: Any, flags: int, *args: Any, **options: Any) -> int:
            if not flags & (os.O_WRONLY | os.O_RDWR):
                self.opened(path)
            return int(timed_os(path, flags, *args, **options))

        timed_os = self.timed("read", "read", real_os)
        _put(undo, builtins, "open", opening)
        _put(undo, io, "open", opening)
        _put(undo, os, "open", opening_os)

    def _reads(self, undo: list[Undo]) -> None:
        for name in ("read", "pread", "preadv"):
            if hasattr(os, name):
                _put(undo, os, name, self.timed("read", "read", getattr(os, name)))
        for module, name in READERS:
            found = sys.modules.get(module)
            if found is not None and not isinstance(getattr(found, name, None), type):
                self._everywhere(undo, found, name, "read")

    def _decoders(self, undo: list[Undo]) -> None:
        for module, name in DECODERS:
            found = sys.modules.get(module)
            if found is not None and hasattr(found, name):
                self._everywhere(undo, found, name, "decode")
        lazy = getattr(sys.modules.get("PIL.ImageFile"), "ImageFile", None)
        if lazy is not None:
            real = lazy.load
            timed = self.timed("decode", "decode", real)

            def load(image: Any, *args: Any, **options: Any) -> Any:
                todo = getattr(image, "tile", None)
                return (timed if todo else real)(image, *args, **options)

            _put(undo, lazy, "load", load)

    def _everywhere(self, undo: list[Undo], module: Any, name: str, kind: str) -> None:
        """Wrap a function in its module and where the user's modules imported it by name."""
        real = getattr(module, name)
        timed = self.timed(kind, kind, real)
        _put(undo, module, name, timed)
        for other in list(sys.modules.values()):
            if other is None or not is_users(getattr(other, "__file__", None)):
                continue
            for key, value in list(vars(other).items()):
                if value is real:
                    _put(undo, other, key, timed)

    def _chunks(self, undo: list[Undo]) -> None:
        for module, name in CHUNKED:
            kind = getattr(sys.modules.get(module), name, None)
            if kind is None:
                continue
            timed = self.timed("read", "read", kind.__getitem__)

            def part(array: Any, key: Any, *args: Any, _timed: Any = timed, **options: Any) -> Any:
                if threading.get_ident() == self._owner:
                    self.chunk_bytes += chunk_bytes(array, key)
                    with suppress(Exception):
                        self.paths.setdefault(array.file.filename, 0)
                return _timed(array, key, *args, **options)

            with suppress(TypeError):
                _put(undo, kind, "__getitem__", part)

    def _transforms(self, dataset: Any, undo: list[Undo]) -> None:
        names: dict[str, int] = {}
        for owner, attribute, value in composed(dataset):
            if isinstance(value, list | tuple):
                wrapped = [self._transform(one, names) for one in value]
                new: Any = tuple(wrapped) if isinstance(value, tuple) else wrapped
            else:
                new = self._transform(value, names)
            _put(undo, owner, attribute, new)

    def _transform(self, one: Any, names: dict[str, int]) -> Any:
        name = str(getattr(one, "__name__", type(one).__name__))[:60]
        names[name] = names.get(name, 0) + 1
        if names[name] > 1:
            name = f"{name} #{names[name]}"
        return _Stands(one, self.timed(f"transform {name}", "transform", one))


class _Stands:
    """Stands in for a transform: called, it is timed; asked for anything else, it is the same."""

    def __init__(self, real: Any, timed: Callable[..., Any]) -> None:
        self._real, self._timed = real, timed

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._timed(*args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_real"], name)


def composed(dataset: Any, depth: int = 0) -> Iterator[tuple[Any, str, Any]]:
    """(owner, attribute, value) of the transforms in a data set and in those that it wraps.

    A value is a list of callables, or one callable that holds no such list.
    """
    held = getattr(dataset, "__dict__", None)
    if depth > DEEP or not isinstance(held, dict):
        return
    for name, value in list(held.items()):
        if isinstance(value, list | tuple):
            if name == "datasets":
                for one in value[:64]:
                    yield from composed(one, depth + 1)
            elif _callables(value):
                yield dataset, name, value
        elif name in TRANSFORM_NAMES or _holds_transforms(value):
            inner = list(composed(value, depth + 1))
            if inner:
                yield from inner
            elif callable(value) and not isinstance(value, type):
                yield dataset, name, value
        elif name in ("dataset", "data", "source", "base"):
            yield from composed(value, depth + 1)


def _callables(value: Sequence[Any]) -> bool:
    return 0 < len(value) <= 64 and all(callable(v) and not isinstance(v, type) for v in value)


def _holds_transforms(value: Any) -> bool:
    return isinstance(getattr(value, "__dict__", {}).get("transforms"), list | tuple)


def chunk_bytes(array: Any, key: Any) -> int:
    """Bytes of the whole chunks that ``array[key]`` touches; 0 where it is not chunked."""
    try:
        chunks, shape, size = array.chunks, array.shape, array.dtype.itemsize
        if not chunks:
            return 0
        keys = list(key) if isinstance(key, tuple) else [key]
        if any(one is Ellipsis for one in keys):
            at = next(n for n, one in enumerate(keys) if one is Ellipsis)
            keys[at : at + 1] = [slice(None)] * (len(shape) - len(keys) + 1)
        keys += [slice(None)] * (len(shape) - len(keys))
        count = size
        for one, chunk, length in zip(keys, chunks, shape, strict=True):
            count *= chunk * _touched(one, chunk, length)
        return int(count)
    except (AttributeError, TypeError, ValueError, StopIteration, IndexError):
        return 0


def _touched(key: Any, chunk: int, length: int) -> int:
    if isinstance(key, slice):
        asked = range(*key.indices(length))
        if not asked:
            return 0
        return abs(asked[-1] // chunk - asked[0] // chunk) + 1
    if hasattr(key, "__len__"):
        return len({int(one) // chunk for one in key})
    return 1


_OURS = str(Path(__file__).parents[1])
_LIBRARIES = tuple(
    {
        os.path.realpath(sysconfig.get_paths()[name]) + os.sep
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
    }
)


@functools.cache
def is_users(file: str | None) -> bool:
    """Whether a source file is the user's own: neither Python's, nor installed, nor ours."""
    if not file or file.startswith("<") or file.startswith(_OURS + os.sep):
        return False
    real = os.path.realpath(file)
    return not real.startswith(_LIBRARIES) and "site-packages" not in real


def _put(undo: list[Undo], owner: Any, name: str, new: Any) -> None:
    held = vars(owner) if not isinstance(owner, type) else dict(vars(owner))
    had, old = name in held, held.get(name)

    def back() -> None:
        if had:
            setattr(owner, name, old)
        else:
            with suppress(AttributeError):
                delattr(owner, name)

    with suppress(AttributeError, TypeError):
        setattr(owner, name, new)
        undo.append(back)


class Places(threading.Thread):
    """Looks every few milliseconds at which line of the user's own code a thread is."""

    def __init__(self, period_s: float = 0.004) -> None:
        super().__init__(daemon=True, name="whyidle-places")
        self.seen: dict[tuple[str, int], int] = {}
        self.looks = 0
        self._thread = threading.get_ident()
        self._period_s = period_s
        self._end = threading.Event()

    def __enter__(self) -> Places:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self.join(1.0)

    def run(self) -> None:
        """Look until the block is left."""
        while not self._end.wait(self._period_s):
            self.looks += 1
            frame = sys._current_frames().get(self._thread)
            while frame is not None and not is_users(frame.f_code.co_filename):
                frame = frame.f_back
            if frame is not None:
                at = (frame.f_code.co_filename, frame.f_lineno)
                self.seen[at] = self.seen.get(at, 0) + 1

    @property
    def most(self) -> tuple[str, int] | None:
        """The line found most often."""
        return max(self.seen, key=self.seen.__getitem__) if self.seen else None
