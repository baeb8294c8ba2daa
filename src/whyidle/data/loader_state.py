"""Where an epoch of a loader stands, and what it takes to begin there again.

All of it is plain text, numbers, lists and dicts, so it fits in any checkpoint.
"""

from __future__ import annotations

import base64
import hashlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from whyidle.errors import UsageError

SCHEMA = "whyidle.loader/1"


class Position:
    """Which batches of one epoch the user has got.

    ``begun`` holds the generators as they were when the epoch began, for its order to be drawn
    again. ``digest`` is one of all indexes up to ``batches``; of a stream it is empty.
    """

    def __init__(self, epoch: int, seed: int, begun: dict[str, Any]) -> None:
        self.epoch, self.seed, self.begun = epoch, seed, begun
        self.batches = 0
        self.ahead: set[int] = set()
        self.digest = ""
        self.stream: Any = None
        self._running = hashlib.blake2b(digest_size=16)
        self._digests: dict[int, str] = {}

    def drawn(self, number: int, indexes: Any) -> None:
        """Batch ``number`` is of these indexes; called in order."""
        self._running.update(repr(indexes).encode())
        self._digests[number] = self._running.hexdigest()

    def got(self, number: int, stream: Any = None) -> None:
        """The user has got batch ``number``; ``stream`` is the data set's own state by then."""
        self.ahead.add(number)
        while self.batches in self.ahead:
            self.ahead.discard(self.batches)
            self.digest = self._digests.pop(self.batches, self.digest)
            self.batches += 1
        self.stream = stream

    def told(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {
            "schema": SCHEMA,
            "epoch": self.epoch,
            "batches": self.batches,
            "ahead": sorted(self.ahead),
            "digest": self.digest,
            "seed": self.seed,
            "begun": self.begun,
            "stream": self.stream,
        }

    @classmethod
    def fresh(cls, epoch: int) -> dict[str, Any]:
        """For a checkpoint between two epochs."""
        return {"schema": SCHEMA, "epoch": epoch, "batches": 0, "begun": None}


def checked(state: Any) -> dict[str, Any]:
    """The state, if it is one that a loader told."""
    if not isinstance(state, dict) or state.get("schema") != SCHEMA:
        raise UsageError(
            "This is no state of whyidle.data.Loader.\n"
            "Give load_state_dict what state_dict() returned."
        )
    return state


def moved(found: str, wanted: str, batches: int) -> None:
    """Complain where the order of samples is not that of the run that was saved."""
    if wanted and found != wanted:
        raise UsageError(
            f"The loader cannot go on after batch {batches}: its order is not the one that was "
            "saved.\nGive it the same data set, batch size and sampler; a sampler that draws needs "
            "seed= or generator=."
        )


def generators(loader: Any) -> list[Any]:
    """The generators that the order may be drawn from, each once."""
    holders = (loader, loader.sampler, loader.batch_sampler)
    found = [getattr(holder, "generator", None) for holder in holders]
    return list({id(one): one for one in found if one is not None}.values())


def begun(loader: Any) -> dict[str, Any]:
    """The generators as they are now, and the sampler's epoch."""
    import torch

    numpy = sys.modules.get("numpy")
    legacy = numpy.random.get_state() if numpy is not None else None
    return {
        "own": [_text(one.get_state()) for one in generators(loader)],
        "torch": _text(torch.get_rng_state()),
        "python": _listed(random.getstate()),
        "numpy": None if legacy is None else [_plain(part) for part in legacy],
        "sampler_epoch": _epoch(loader),
    }


@contextmanager
def again(loader: Any, saved: dict[str, Any]) -> Iterator[None]:
    """A block in which the global generators are those of ``saved``; the loader's own stay so."""
    import torch

    now = begun(loader)
    own = generators(loader)
    if len(own) != len(saved["own"]):
        raise UsageError(
            "The saved run drew its order from other generators than this loader has.\n"
            "Give generator= where it was given then."
        )
    for one, state in zip(own, saved["own"], strict=True):
        one.set_state(_tensor(state))
    if saved["sampler_epoch"] is not None and hasattr(loader.sampler, "set_epoch"):
        loader.sampler.set_epoch(saved["sampler_epoch"])
    try:
        _put(torch, saved)
        yield
    finally:
        _put(torch, now)


def _put(torch: Any, state: dict[str, Any]) -> None:
    torch.set_rng_state(_tensor(state["torch"]))
    random.setstate(_tupled(state["python"]))
    numpy = sys.modules.get("numpy")
    if numpy is not None and state["numpy"] is not None:
        kind, keys, *rest = state["numpy"]
        numpy.random.set_state((kind, numpy.array(keys, numpy.uint32), *rest))


def _epoch(loader: Any) -> int | None:
    epoch = getattr(loader.sampler, "epoch", None)
    return epoch if isinstance(epoch, int) else None


def _text(state: Any) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode()


def _tensor(text: str) -> Any:
    import torch

    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)


def _plain(part: Any) -> Any:
    return part.tolist() if hasattr(part, "tolist") else part


def _listed(part: Any) -> Any:
    return [_listed(one) for one in part] if isinstance(part, tuple) else part


def _tupled(part: Any) -> Any:
    return tuple(_tupled(one) for one in part) if isinstance(part, list) else part
