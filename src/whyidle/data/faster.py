"""Parts of a faster chain, each a drop-in for what it replaces: decode, crop, resize, normalise.

Pictures are NumPy arrays of 8-bit RGB, height first. They stay 8-bit until they are on the device,
which hands over a quarter of the bytes; ``normalise`` makes floating point of them there.
"""

from __future__ import annotations

import importlib
import io
import math
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

from whyidle.errors import DataError, MissingPackage

DECODERS = ("simplejpeg", "PIL", "cv2")
"""In the order in which they are tried. OpenCV comes last although it is quicker than Pillow: it
returns a picture that was cut short without a word."""

PACKAGES = {"PIL": "pillow", "cv2": "opencv-python-headless", "simplejpeg": "simplejpeg"}


class SlowerThanPossible(UserWarning):
    """A quicker library is not installed, and the slower one was used."""


@cache
def _module(name: str) -> Any:
    try:
        found = importlib.import_module(name if name != "PIL" else "PIL.Image")
    except ImportError:
        return None
    if name == "cv2":
        found.setNumThreads(1)  # its own threads fight the loader's for the CPUs
    return found


def decode(data: bytes, *, decoder: str | None = None, fast: bool = False) -> Any:
    """The picture in ``data`` as an array of height, width, RGB.

    JPEGs by simplejpeg where that is installed; other formats, and JPEGs that it does not take
    (CMYK), by Pillow or OpenCV. ``fast``: quicker and slightly different pixels, of simplejpeg
    only. Damage is a DataError. An orientation noted in the file is not applied, as in Pillow.
    """
    if decoder is not None and decoder not in DECODERS:
        raise ValueError(f"decoder is one of {', '.join(DECODERS)}, not {decoder!r}")
    jpeg = data[:2] == b"\xff\xd8"
    names = (decoder,) if decoder else DECODERS if jpeg else DECODERS[1:]
    wrong = None
    for name in names:
        module = _module(name)
        if module is None:
            continue
        if name == "PIL" and jpeg and decoder is None and _module("simplejpeg") is None:
            _slower("simplejpeg", "decoding JPEGs with Pillow")
        try:
            return _DECODED[name](module, data, fast)
        except (ValueError, OSError, SyntaxError) as error:
            wrong = wrong or error
            if name == "simplejpeg" and "CMYK" not in str(error).upper():
                break
    if wrong is not None:
        told = " ".join(str(wrong).split())[:200]
        raise DataError(
            f"A picture of {len(data):,} bytes cannot be decoded: {told}.\n"
            "Look at the file; `whyidle data pack` lists all that are damaged."
        ) from wrong
    missing = decoder or ("simplejpeg" if jpeg else "PIL")
    raise MissingPackage(PACKAGES[missing], "Decoding pictures")


def _simplejpeg(module: Any, data: bytes, fast: bool) -> Any:
    return module.decode_jpeg(data, "RGB", fastdct=fast, fastupsample=fast)


def _pillow(module: Any, data: bytes, fast: bool) -> Any:
    import numpy as np

    with module.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


def _cv2(module: Any, data: bytes, fast: bool) -> Any:
    import numpy as np

    how = module.IMREAD_COLOR | module.IMREAD_IGNORE_ORIENTATION
    found = module.imdecode(np.frombuffer(data, np.uint8), how) if data else None
    if found is None:
        raise ValueError("OpenCV knows no such format, or the data is damaged")
    return module.cvtColor(found, module.COLOR_BGR2RGB)


_DECODED = {"simplejpeg": _simplejpeg, "PIL": _pillow, "cv2": _cv2}


def resize(image: Any, size: tuple[int, int]) -> Any:
    """The picture in ``size`` (height, width), bilinear, by OpenCV; else by Pillow, slower.

    Neither smooths when it shrinks: where more than every second pixel is left out, store the
    pictures smaller instead.
    """
    height, width = size
    cv2 = _module("cv2")
    if cv2 is not None:
        return cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)
    pillow = _module("PIL")
    if pillow is None:
        raise MissingPackage(PACKAGES["cv2"], "Resizing pictures")
    _slower("cv2", "resizing with Pillow")
    import numpy as np

    made = pillow.fromarray(np.ascontiguousarray(image))
    return np.asarray(made.transform(
        (width, height), pillow.Transform.EXTENT, (0, 0, made.width, made.height),
        pillow.Resampling.BILINEAR,
    ))  # fmt: skip


def random_crop_box(
    height: int,
    width: int,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> tuple[int, int, int, int]:
    """(top, left, height, width) of a random part, as torchvision's RandomResizedCrop draws it.

    Its share of the area is uniform in ``scale`` and the logarithm of width over height uniform in
    ``ratio``; after ten parts that do not fit, the middle. Draws from torch.
    """
    import torch

    low, high = (math.log(one) for one in ratio)
    for _ in range(10):
        area = height * width * torch.empty(1).uniform_(*scale).item()
        shape = math.exp(torch.empty(1).uniform_(low, high).item())
        wide, tall = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < wide <= width and 0 < tall <= height:
            top = int(torch.randint(0, height - tall + 1, (1,)).item())
            left = int(torch.randint(0, width - wide + 1, (1,)).item())
            return top, left, tall, wide
    shape = min(max(width / height, ratio[0]), ratio[1])
    wide, tall = min(width, round(height * shape)), min(height, round(width / shape))
    return (height - tall) // 2, (width - wide) // 2, tall, wide


def random_resized_crop(image: Any, size: int | tuple[int, int] = 224, **box: Any) -> Any:
    """A random part of the picture in ``size``; the part is resized without a copy before it."""
    top, left, tall, wide = random_crop_box(image.shape[0], image.shape[1], **box)
    wanted = (size, size) if isinstance(size, int) else size
    return resize(image[top : top + tall, left : left + wide], wanted)


def random_flip(image: Any, p: float = 0.5) -> Any:
    """The picture, with probability ``p`` mirrored left to right (a view). Draws from torch."""
    import torch

    return image[:, ::-1] if torch.rand(1).item() < p else image


class Collate:
    """A collate_fn that keeps 8-bit pictures: arrays of height, width, channels to one batch.

    Whatever else is in a sample is collated by torch. The batch has its channels second, as models
    want it, and lies in memory as the pictures did (channels_last).
    """

    def __call__(self, samples: Sequence[Any]) -> Any:
        """One batch of samples, which are pictures, or tuples or dicts that hold some."""
        first = samples[0]
        if isinstance(first, dict):
            return {key: self([one[key] for one in samples]) for key in first}
        if isinstance(first, tuple | list):
            return tuple(self(list(part)) for part in zip(*samples, strict=True))
        return _stacked(samples) if _is_picture(first) else _others(samples)


def _is_picture(one: Any) -> bool:
    return getattr(one, "ndim", 0) == 3 and str(getattr(one, "dtype", "")) == "uint8" and (
        not hasattr(one, "numpy") and one.shape[2] in (1, 3, 4)
    )  # fmt: skip


def _stacked(pictures: Sequence[Any]) -> Any:
    import numpy as np
    import torch

    batch = np.empty((len(pictures), *pictures[0].shape), np.uint8)
    for place, picture in enumerate(pictures):
        if picture.shape != pictures[0].shape:
            raise DataError(
                f"Pictures of one batch differ in size: {pictures[0].shape[:2]} and "
                f"{picture.shape[:2]} (height, width).\nCrop or resize each to one size."
            )
        batch[place] = picture
    return torch.from_numpy(batch).permute(0, 3, 1, 2)


def _others(samples: Sequence[Any]) -> Any:
    from torch.utils.data import default_collate

    return default_collate(list(samples))


def normalise(
    batch: Any,
    mean: Sequence[float],
    std: Sequence[float],
    device: Any = None,
    dtype: Any = None,
) -> Any:
    """An 8-bit batch (channels second) on ``device`` as ``(batch / 255 - mean) / std``.

    Goes over as 8 bits, without waiting where the batch is pinned, and becomes ``dtype`` (float32)
    there. ``mean`` and ``std`` are of pictures from 0 to 1, as for torchvision's Normalize.
    """
    import torch

    if batch.dtype != torch.uint8:
        raise DataError(
            f"normalise takes pictures of 8 bits, not {str(batch.dtype).removeprefix('torch.')}.\n"
            "Leave ToTensor and Normalize out of the transforms; whyidle.data.faster.Collate keeps "
            "8 bits."
        )
    there = batch.to(device, non_blocking=True) if device is not None else batch
    dtype = dtype or torch.float32
    shape = (1, -1, *[1] * (batch.dim() - 2))
    wide = torch.tensor(std, device=there.device, dtype=torch.float32).view(shape)
    middle = torch.tensor(mean, device=there.device, dtype=torch.float32).view(shape)
    made = there.to(torch.float32).mul_(1 / (255 * wide)).sub_(middle / wide)
    return made.to(dtype)


def _slower(package: str, doing: str) -> None:
    _once(f"{doing}, which is slower; install the quicker: pip install {PACKAGES[package]}")


@cache
def _once(said: str) -> None:
    warnings.warn(said, SlowerThanPossible, stacklevel=4)
