"""Loaders with one planted fault each, as factories that a probe can be given."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

FOLDER = "WHYIDLE_TEST_DATA"


def folder() -> Path:
    return Path(os.environ[FOLDER])


class Samples(Dataset[Any]):
    """Calls a function for each sample."""

    def __init__(self, make: Any, count: int = 1000) -> None:
        self.make, self.count = make, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def work(side: int = 150) -> torch.Tensor:
    """About a millisecond of arithmetic that lets other threads run."""
    found = torch.ones(side, side)
    for _ in range(4):
        found = (found @ found).clamp(max=1.0)
    return found[:8, :8].to(torch.uint8)


def _slow_read(index: int) -> Any:
    with open(__file__, "rb") as file:
        time.sleep(0.004)
        file.read(100)
    return work()


def slow_storage() -> Any:
    return Samples(_slow_read)


def _python(index: int) -> Any:
    total = index
    for number in range(20_000):
        total = (total * 31 + number) % 65521
    return torch.tensor([total])


def heavy_python() -> Any:
    return Samples(_python)


class Floats(Dataset[Any]):
    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randint(0, 256, (64, 3, 320, 320), generator=generator, dtype=torch.uint8)

    def __len__(self) -> int:
        return 640

    def __getitem__(self, index: int) -> Any:
        return self.x[index % 64].float().div(255), index


def float_handover() -> Any:
    return Floats()


def make_chunks(path: Path) -> None:
    """Sixty-four samples in each compressed chunk."""
    import h5py

    x = np.random.default_rng(0).integers(0, 40, (512, 48, 48, 3), dtype=np.uint8)
    with h5py.File(path / "chunks.h5", "w") as file:
        file.create_dataset("x", data=x, chunks=(64, 48, 48, 3), compression="lzf")


class Chunks(Dataset[Any]):
    file: Any = None

    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> Any:
        if self.file is None:
            import h5py

            self.file = h5py.File(folder() / "chunks.h5", "r", rdcc_nbytes=0)
        return torch.from_numpy(self.file["x"][index])


def chunks_of_64() -> Any:
    return Chunks()


class _Cv2(types.ModuleType):
    """Like OpenCV in what matters here: a resize that wakes a pool of threads, which spin."""

    def __init__(self) -> None:
        super().__init__("cv2")
        self._threads = 4

    def getNumThreads(self) -> int:
        return self._threads

    def setNumThreads(self, count: int) -> None:
        self._threads = max(count, 1)

    def resize(self, index: int) -> Any:
        def spin() -> None:
            for _ in range(2):
                work(250)

        threads = [threading.Thread(target=spin) for _ in range(self._threads - 1)]
        for one in threads:
            one.start()
        found = work()
        for one in threads:
            one.join()
        return found


def opencv_threads() -> Any:
    cv2 = _Cv2()
    sys.modules["cv2"] = cv2
    return Samples(cv2.resize)


class Compose:
    def __init__(self, transforms: list[Any]) -> None:
        self.transforms = transforms

    def __call__(self, found: Any) -> Any:
        for one in self.transforms:
            found = one(found)
        return found


class Blur:
    def __call__(self, found: Any) -> Any:
        return work()


class Nothing:
    def __call__(self, found: Any) -> Any:
        return found


class Transformed(Dataset[Any]):
    def __init__(self) -> None:
        self.transform = Compose([Nothing(), Blur(), Nothing()])

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> Any:
        return self.transform(index)


def slow_transform() -> Any:
    return Transformed()


def large_batches() -> Any:
    return Samples(lambda index: torch.zeros(100_000, dtype=torch.uint8))


def ordinary() -> Any:
    return Samples(lambda index: work())


def in_memory() -> Any:
    x = torch.zeros(64, 3, 224, 224, dtype=torch.uint8)
    return Samples(lambda index: x[index % 64])


def a_loader() -> Any:
    return DataLoader(Transformed(), batch_size=8, shuffle=True, num_workers=0)


def crashing() -> Any:
    def die(index: int) -> Any:
        os.kill(os.getpid(), signal.SIGSEGV)

    return Samples(die)


def crashing_in_workers() -> Any:
    def die(index: int) -> Any:
        if torch.utils.data.get_worker_info() is not None:
            os.kill(os.getppid(), signal.SIGSEGV)
        return work()

    return Samples(die)


def hanging() -> Any:
    def hang(index: int) -> Any:
        time.sleep(1000)

    return Samples(hang)


def raising() -> Any:
    def fail(index: int) -> Any:
        raise KeyError("no such picture")

    return Samples(fail)


def needs_an_argument(path: str) -> Any:
    return Samples(path)


a_number = 7
