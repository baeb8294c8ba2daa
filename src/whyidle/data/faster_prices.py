"""What each faster part would bring, from the seconds per stage, before any is tried."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from whyidle.data import faster
from whyidle.errors import DataError

QUICKER = {
    "decode": (0.83, "simplejpeg decodes a JPEG in 0.83 of Pillow's time (measured: 0.81-0.84)"),
    "resize": (0.32, "OpenCV crops and resizes in 0.32 of Pillow's time (measured)"),
}
"""Stage -> what is left of its time, and why; used where the user's own data was not timed."""

EIGHT_BITS_OF_FLOAT = 0.25


@dataclass(frozen=True)
class Price:
    """One change to a chain: ms per sample that it takes away, and the speed-up of all stages.

    ``measured``: the user's own data was timed, else typical figures were used.
    """

    name: str
    what: str
    how: str
    saves_ms: float
    speedup: float
    measured: bool
    same: str
    """What of the samples stays as it is, and what does not."""


def decoders(files: Sequence[bytes], seconds: float = 0.2) -> dict[str, float]:
    """Milliseconds to decode one of these pictures by each decoder that is installed."""
    found: dict[str, float] = {}
    for name in (*faster.DECODERS, "simplejpeg fast"):
        with suppress(DataError):
            found[name] = _timed(_decoder(name), files, seconds) * 1e3
    return found


def _decoder(name: str) -> Callable[[bytes], Any]:
    library, _, fast = name.partition(" ")
    return lambda data: faster.decode(data, decoder=library, fast=bool(fast))


def _timed(read: Callable[[bytes], Any], files: Sequence[bytes], seconds: float) -> float:
    read(files[0])
    begin, count = time.perf_counter(), 0
    while count < len(files) or time.perf_counter() - begin < seconds:
        read(files[count % len(files)])
        count += 1
        if time.perf_counter() - begin > 5 * seconds and count >= 3:
            break
    return (time.perf_counter() - begin) / count


def prices(
    stages: Mapping[str, float],
    *,
    decoding: Mapping[str, float] | None = None,
    threads: float | None = None,
    pixels: tuple[float, float] | None = None,
) -> list[Price]:
    """What could be changed, the largest gain first; nothing that gains less than 3 %.

    ``stages``: ms per sample of ``read``, ``decode``, ``resize``, ``normalise``, ``collate``,
    ``hand-over``, as far as they are known. ``decoding``: of ``decoders``. ``threads``: how many
    times faster threads are than one. ``pixels``: (stored, needed) per picture.
    """
    total = sum(stages.values())
    found = [
        _decode(stages, decoding or {}),
        _resize(stages),
        _on_device(stages),
        _threads(stages, threads),
        _stored(stages, pixels),
    ]
    made = [_price(total, *one) for one in found if one is not None and one[3] > 0]
    return sorted((p for p in made if p.speedup > 1.03), key=lambda p: -p.speedup)


Part = tuple[str, str, str, float, bool, str]


def _price(total: float, name: str, what: str, how: str, ms: float, seen: bool, same: str) -> Price:
    left = max(total - ms, total * 0.01)
    return Price(name, what, how, total - left, total / left, seen, same)


def _decode(stages: Mapping[str, float], decoding: Mapping[str, float]) -> Part | None:
    had = stages.get("decode", 0.0)
    known = {k: v for k, v in decoding.items() if k != "simplejpeg fast"}
    best = min(known, key=known.__getitem__, default="simplejpeg")
    took = known.get(best) if best in known and "PIL" in known else None
    saves = (
        had - took * (had / known["PIL"]) if took is not None else had * (1 - QUICKER["decode"][0])
    )
    return (
        "decoder", f"Decode JPEGs with {best}.", "whyidle.data.faster.decode(data)", saves,
        took is not None, "the same pixels",
    )  # fmt: skip


def _resize(stages: Mapping[str, float]) -> Part | None:
    had = stages.get("resize", 0.0)
    return (
        "resize", "Crop and resize with OpenCV in place of Pillow.",
        "whyidle.data.faster.random_resized_crop(image, 224)", had * (1 - QUICKER["resize"][0]),
        False, "the same crops; pixels differ where a picture is shrunk, since OpenCV does not "
        "smooth then",
    )  # fmt: skip


def _on_device(stages: Mapping[str, float]) -> Part | None:
    if "normalise" not in stages:
        return None
    rest = stages.get("collate", 0.0) + stages.get("hand-over", 0.0)
    return (
        "uint8", "Hand over 8 bits and normalise on the device.",
        "collate_fn=whyidle.data.faster.Collate(), then "
        "whyidle.data.faster.normalise(batch, mean, std, device)",
        stages["normalise"] + rest * (1 - EIGHT_BITS_OF_FLOAT), False,
        "the same numbers, rounded once less",
    )  # fmt: skip


def _threads(stages: Mapping[str, float], threads: float | None) -> Part | None:
    if threads is None or threads < 1.5 or "hand-over" not in stages:
        return None
    return (
        "threads", "Load by threads: the chain drops the GIL, and nothing is handed over.",
        "whyidle.data.Loader in place of DataLoader", stages["hand-over"], True,
        "the same samples; what augmentation draws comes from a seed per sample",
    )  # fmt: skip


def _stored(stages: Mapping[str, float], pixels: tuple[float, float] | None) -> Part | None:
    if pixels is None or pixels[1] >= pixels[0]:
        return None
    stored, needed = pixels
    return (
        "stored size", f"Store pictures once with {needed / stored:.0%} of their pixels.",
        "whyidle data pack SRC DST --to blob --resize N",
        stages.get("decode", 0.0) * (1 - needed / stored), False,
        "crops see the smaller picture, so the finest detail is gone",
    )  # fmt: skip
