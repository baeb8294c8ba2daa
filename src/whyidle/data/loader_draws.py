"""Random numbers of a loader's threads: each sample draws from its own seed.

``random``, ``numpy.random`` and torch keep one global state for all threads, so what a sample draws
would depend on which thread came first. While a loader reads, the functions of those modules look
at the calling thread: inside a sample they draw from generators seeded for that sample, anywhere
else from the global state as ever. Each generator is seeded only when a sample first draws from it.

Not reached: generators that a transform keeps in itself, such as those of ``default_rng``, and
functions of the global ones that were put into objects.
"""

from __future__ import annotations

import hashlib
import random
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

BITS = 64

APART = {"python": 0, "numpy": 0x5851F42D4C957F2D, "torch": 0x14057B7EF767814F}
"""Python and NumPy make the same numbers of the same seed, so each kind gets another."""


def seed_of(*parts: int) -> int:
    """A seed of 63 bits from numbers; different numbers give unrelated seeds."""
    packed = b"".join(struct.pack("<Q", part % (1 << BITS)) for part in parts)
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little") >> 1


class _View(threading.local):
    """What the calling thread draws from; ``seed`` None: the global state."""

    seed: int | None = None

    def __init__(self) -> None:
        self.kinds: dict[str, Any] = {}
        self.seeded: dict[str, int] = {}


_view = _View()


def _seeded(kind: str, make: Callable[[], Any], seed: Callable[[Any, int], Any]) -> Any:
    """The generator of one kind that this thread has, seeded for the sample that is read."""
    own = _view.kinds.get(kind)
    if own is None:
        own = _view.kinds[kind] = make()
    now = _view.seed
    assert now is not None
    if _view.seeded.get(kind) != now:
        seed(own, now ^ APART[kind])
        _view.seeded[kind] = now
    return own


def _of_python() -> random.Random:
    found: random.Random = _seeded("python", random.Random, lambda own, seed: own.seed(seed))
    return found


def _of_numpy() -> Any:
    import numpy as np

    def seed(own: Any, now: int) -> None:
        own.seed([now & 0xFFFFFFFF, now >> 32])

    return _seeded("numpy", np.random.RandomState, seed)


def _of_torch() -> Any:
    import torch

    return _seeded("torch", torch.Generator, lambda own, seed: own.manual_seed(seed))


@contextmanager
def drawing_from(seed: int | None) -> Iterator[None]:
    """A block of this thread in which random numbers come from ``seed``."""
    before = _view.seed
    _view.seed = seed
    if seed is not None:
        _view.seeded.clear()
    try:
        yield
    finally:
        _view.seed = before


class Draws:
    """The functions of ``random`` and ``numpy.random`` replaced while any loader reads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers = 0
        self._replaced: list[tuple[dict[str, Any], str, Any, Any]] = []

    def begin(self) -> None:
        """One more loader reads."""
        with self._lock:
            self._readers += 1
            if self._readers == 1:
                self._replace()

    def end(self) -> None:
        """One loader less; the last one puts the modules' own functions back."""
        with self._lock:
            self._readers -= 1
            if self._readers == 0:
                for names, name, old, new in self._replaced:
                    if names.get(name) is new:  # somebody else may have put a function there
                        names[name] = old
                self._replaced.clear()

    def _replace(self) -> None:
        """Replace each name, in any module, that is bound to a function of a global generator."""
        owners: list[tuple[Any, Callable[[], Any]]] = [(_global_random(), _of_python)]
        numpy_random = sys.modules.get("numpy.random")
        if numpy_random is not None:
            owners.append((numpy_random.mtrand._rand, _of_numpy))
        made: dict[tuple[int, str], Callable[..., Any]] = {}
        for module in list(sys.modules.values()):
            if not isinstance(module, ModuleType) or module.__name__ == __name__:
                continue
            names = vars(module)
            for name, value in list(names.items()):
                owner = getattr(value, "__self__", None) if callable(value) else None
                for known, own in owners:
                    if owner is known:
                        method = value.__name__
                        new = made.setdefault((id(known), method), _turned(value, method, own))
                        names[name] = new
                        self._replaced.append((names, name, value, new))


def _global_random() -> Any:
    return random.random.__self__  # type: ignore[attr-defined]


def _turned(old: Callable[..., Any], method: str, own: Callable[[], Any]) -> Callable[..., Any]:
    """A function that draws from the thread's own generator inside a sample."""

    def draw(*args: Any, **kwargs: Any) -> Any:
        if _view.seed is None:
            return old(*args, **kwargs)
        return getattr(own(), method)(*args, **kwargs)

    draw.__name__, draw.__doc__ = method, old.__doc__
    return draw


draws = Draws()
"""The one of this process."""

IN_PLACE = ("uniform_", "normal_", "random_", "bernoulli_", "exponential_", "geometric_",
            "cauchy_", "log_normal_")  # fmt: skip
MADE = ("rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "poisson")
LIKE = {"rand_like": "rand", "randn_like": "randn", "randint_like": "randint"}


def torch_draws() -> Any:
    """A torch function mode that gives this thread's generator to whatever draws on the CPU."""
    import torch
    from torch.overrides import TorchFunctionMode

    takes = {getattr(torch, name) for name in MADE}
    takes |= {getattr(torch.Tensor, n) for n in (*IN_PLACE, "bernoulli", "multinomial")}
    like = {getattr(torch, name): getattr(torch, made) for name, made in LIKE.items()}

    class OwnDraws(TorchFunctionMode):  # type: ignore[misc, unused-ignore]
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = dict(kwargs or {})
            if _view.seed is None or kwargs.get("generator") is not None:
                return func(*args, **kwargs)
            if func in like and _on_cpu(torch, args, kwargs):
                model, rest = args[0], args[1:]
                kwargs.setdefault("dtype", model.dtype)
                kwargs.setdefault("device", model.device)
                kwargs.pop("memory_format", None)
                kwargs["generator"] = _of_torch()
                return like[func](*rest, tuple(model.shape), **kwargs)
            if func in takes and _on_cpu(torch, args, kwargs):
                kwargs["generator"] = _of_torch()
            return func(*args, **kwargs)

    return OwnDraws()


def _on_cpu(torch: Any, args: Any, kwargs: Any) -> bool:
    device = kwargs.get("device")
    if device is not None:
        return bool(torch.device(device).type == "cpu")
    given = (*args, *kwargs.values())
    return all(one.device.type == "cpu" for one in given if isinstance(one, torch.Tensor))
