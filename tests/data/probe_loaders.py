"""Eight ordinary loaders of tiny data, each a factory that a probe can be given.

The folder of the data is in the environment, since the factories take no arguments.
"""

from __future__ import annotations

import io
import math
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset

FOLDER = "WHYIDLE_TEST_DATA"
SIZE = 224


def make(folder: Path, count: int = 400) -> None:
    """JPEGs of about 400x400, the same as raw arrays, and lines of text."""
    import h5py
    from PIL import Image

    random_ = np.random.default_rng(0)
    (folder / "images").mkdir(parents=True)
    raw = np.lib.format.open_memmap(
        folder / "raw.npy", mode="w+", dtype=np.uint8, shape=(count, 256, 256, 3)
    )
    for number in range(count):
        side = int(random_.integers(340, 461))
        small = Image.fromarray(random_.integers(0, 255, (24, 24, 3), dtype=np.uint8))
        image = np.asarray(small.resize((side, side), Image.Resampling.BICUBIC)).astype(np.int16)
        image = np.clip(image + random_.normal(0, 5, image.shape), 0, 255).astype(np.uint8)
        Image.fromarray(image).save(folder / "images" / f"{number:05d}.jpg", quality=85)
        raw[number] = image[:256, :256]
    raw.flush()
    with h5py.File(folder / "raw.h5", "w") as file:
        file.create_dataset("x", data=raw, chunks=(1, 256, 256, 3))
    words = ["loader", "wait", "gpu", "kernel", "step", "batch", "idle", "share"]
    lines = (" ".join(random_.choice(words, 120)) for _ in range(2000))
    (folder / "lines.txt").write_text("\n".join(lines), encoding="utf-8")


def folder() -> Path:
    return Path(os.environ[FOLDER])


def crop_of(width: int, height: int) -> tuple[int, int, int, int]:
    area = width * height * random.uniform(0.2, 1.0)
    wide = min(width, round(math.sqrt(area * random.uniform(0.75, 1.33))))
    high = min(height, round(area / wide))
    return random.randint(0, width - wide), random.randint(0, height - high), wide, high


class Compose:
    def __init__(self, transforms: list[Any]) -> None:
        self.transforms = transforms

    def __call__(self, found: Any) -> Any:
        for one in self.transforms:
            found = one(found)
        return found


class CropResize:
    def __call__(self, image: Any) -> Any:
        from PIL import Image

        x, y, w, h = crop_of(*image.size)
        return image.crop((x, y, x + w, y + h)).resize((SIZE, SIZE), Image.Resampling.BILINEAR)


class Flip:
    def __call__(self, image: Any) -> Any:
        from PIL import Image

        left = Image.Transpose.FLIP_LEFT_RIGHT
        return image.transpose(left) if random.random() < 0.5 else image


class ToBytes:
    def __call__(self, image: Any) -> torch.Tensor:
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


class ToFloat:
    mean = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
    std = torch.tensor([0.229, 0.224, 0.225])[:, None, None]

    def __call__(self, image: Any) -> torch.Tensor:
        tensor = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
        return (tensor.float().div(255) - self.mean) / self.std


class CropStrided:
    """Crop 112 pixels and double them: a resize in NumPy alone."""

    def __call__(self, array: Any) -> Any:
        y, x = random.randint(0, array.shape[0] - 112), random.randint(0, array.shape[1] - 112)
        return array[y : y + 112, x : x + 112].repeat(2, axis=0).repeat(2, axis=1)


class FlipArray:
    def __call__(self, array: Any) -> torch.Tensor:
        if random.random() < 0.5:
            array = array[:, ::-1]
        return torch.from_numpy(np.ascontiguousarray(array)).permute(2, 0, 1)


class Images(Dataset[Any]):
    def __init__(self, decode: Any, transform: Any) -> None:
        self.files = sorted((folder() / "images").iterdir())
        self.decode, self.transform = decode, transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        with open(self.files[index], "rb") as file:
            found = self.decode(file.read())
        return self.transform(found), index % 10


def by_pillow(data: bytes) -> Any:
    from PIL import Image

    return Image.open(io.BytesIO(data)).convert("RGB")


def by_simplejpeg(data: bytes) -> Any:
    import simplejpeg

    return simplejpeg.decode_jpeg(data, "RGB")


def pillow() -> Any:
    return Images(by_pillow, Compose([CropResize(), Flip(), ToBytes()]))


def simplejpeg() -> Any:
    return Images(by_simplejpeg, Compose([CropStrided(), FlipArray()]))


def pillow_float() -> Any:
    return Images(by_pillow, Compose([CropResize(), Flip(), ToFloat()]))


class Mapped(Dataset[Any]):
    def __init__(self) -> None:
        self.raw = np.load(folder() / "raw.npy", mmap_mode="r")
        self.transform = Compose([CropStrided(), FlipArray()])

    def __len__(self) -> int:
        return len(self.raw)

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.raw[index]), index % 10


def mapped() -> Any:
    return Mapped()


class Sleeping(Dataset[Any]):
    """Waits 4 ms in a read, then works for about 1 ms."""

    def __init__(self) -> None:
        self.images = Images(by_pillow, Compose([CropResize(), Flip(), ToBytes()]))

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.004)
        return self.images[index]


def sleeping() -> Any:
    return Sleeping()


class Python(Dataset[Any]):
    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> Any:
        total = index
        for number in range(6000):
            total = (total * 31 + number) % 65521
        return torch.tensor([total, index]), index % 10


def python() -> Any:
    return Python()


class Chunks(Dataset[Any]):
    """One sample a chunk; the file is opened where it is read."""

    file: Any = None

    def __init__(self) -> None:
        self.transform = Compose([CropStrided(), FlipArray()])

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> Any:
        if self.file is None:
            import h5py

            self.file = h5py.File(folder() / "raw.h5", "r")
        return self.transform(self.file["x"][index]), index % 10


def hdf5() -> Any:
    return Chunks()


class Lines(IterableDataset[Any]):
    """Lines of text to 256 tokens each, split over the workers."""

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        first, every = (0, 1) if info is None else (info.id, info.num_workers)
        known: dict[str, int] = {}
        with open(folder() / "lines.txt", encoding="utf-8") as file:
            for number, line in enumerate(file):
                if number % every != first:
                    continue
                tokens = [known.setdefault(w[:4] + w[4:], len(known)) for w in line.split()]
                pieces = [ord(c) % 97 for c in line][: 256 - len(tokens)]
                yield torch.tensor((tokens + pieces + [0] * 256)[:256])


def lines() -> Any:
    return Lines()


class Ready(Dataset[Any]):
    def __init__(self) -> None:
        self.x = torch.randint(0, 255, (1000, 3, SIZE, SIZE), dtype=torch.uint8)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        return self.x[index], index % 10


def ready() -> Any:
    return Ready()


EIGHT = ("pillow", "simplejpeg", "pillow_float", "mapped", "sleeping", "python", "hdf5", "lines")
"""The factories that predictions are held against; ``ready`` is the trap beside them."""
