"""What the user names on the command line: code that makes a data set, a folder, or a bundle."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from whyidle.errors import NotFound, UsageError

Kind = Literal["code", "folder", "packed", "bundle"]

PACKED = "whyidle-pack.json"
BUNDLE_ENDING = "manifest.json"
IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff")
MOST_FILES = 2_000_000

HOW = (
    "Name it as module:factory, file.py:factory (a function without arguments, or a Dataset or "
    "DataLoader itself), a folder of images, or a bundle of `whyidle run`."
)


@dataclass(frozen=True)
class Spec:
    """What a SPEC names, before anything of it is run.

    ``where`` is the module, the file, or the folder; ``attribute`` is what to take from code.
    """

    text: str
    kind: Kind
    where: str
    attribute: str = ""


@dataclass(frozen=True)
class Target:
    """A data set to load from, and how the user loads from it.

    ``batches`` are the indexes of samples by batch, in the user's own order; None for a data set
    that is only iterated. ``workers`` None: nobody chose a number. ``order`` says where the order
    comes from.
    """

    dataset: Any
    batch_size: int
    collate: Callable[[list[Any]], Any] | None
    batches: list[list[int]] | None
    order: str
    workers: int | None = None
    prefetch: int = 2
    worker_init: Callable[[int], None] | None = None
    context: Any = None
    notes: tuple[str, ...] = ()

    def flat(self) -> Iterator[int]:
        """The indexes of single samples, in order; of a data set with indexes."""
        for batch in self.batches or []:
            yield from batch


def parse(text: str) -> Spec:
    """What ``text`` names; UsageError or NotFound where it names nothing."""
    path = Path(text)
    if path.is_dir():
        return _folder(text, path)
    if path.is_file():
        if path.name.endswith(BUNDLE_ENDING):
            return Spec(text, "bundle", text)
        if path.suffix == ".py":
            raise UsageError(
                f"{text}: what in this file makes the data set?\nName it: {text}:FACTORY"
            )
        raise UsageError(f"{text}: a single file is no data set.\n{HOW}")
    where, colon, attribute = text.rpartition(":")
    if not colon:
        raise NotFound(text) if os.sep in text else UsageError(f"{text}: names nothing.\n{HOW}")
    if not where or not all(part.isidentifier() for part in attribute.split(".")):
        raise UsageError(f"{text}: is not module:factory.\n{HOW}")
    if where.endswith(".py") or os.sep in where:
        if not Path(where).is_file():
            raise NotFound(where)
        return Spec(text, "code", where, attribute)
    if not all(part.isidentifier() for part in where.split(".")):
        raise UsageError(f"{text}: {where} is no name of a module.\n{HOW}")
    return Spec(text, "code", where, attribute)


def _folder(text: str, path: Path) -> Spec:
    if (path / PACKED).is_file():
        return Spec(text, "packed", text)
    if any(path.glob(f"*{BUNDLE_ENDING}")):
        return Spec(text, "bundle", text)
    return Spec(text, "folder", text)


def load(spec: Spec, batch_size: int | None) -> Target:
    """Make the data set, which runs the user's code: for a process that may be lost.

    ``batch_size`` replaces the user's own, where given.
    """
    if spec.kind == "packed":
        from whyidle.data import reading

        return _of_dataset(reading.PackedDataset(Path(spec.where)), batch_size)
    if spec.kind == "folder":
        return _of_dataset(_images(spec.where), batch_size, (FOLDER_NOTE,))
    made = _made(_module(spec), spec)
    return _of_loader(made, batch_size) if _is_loader(made) else _of_dataset(made, batch_size)


FOLDER_NOTE = (
    "a folder has no code of its own: measured with Pillow, each image resized to 224x224, as uint8"
)


def _module(spec: Spec) -> ModuleType:
    if not spec.where.endswith(".py"):
        sys.path.insert(0, os.getcwd())
        try:
            return importlib.import_module(spec.where)
        except ModuleNotFoundError as error:
            if error.name == spec.where.split(".")[0]:
                raise UsageError(
                    f"{spec.text}: there is no module {error.name}.\n"
                    "Run it where the module can be imported, or name the file: file.py:factory"
                ) from error
            raise
    path = Path(spec.where).resolve()
    sys.path.insert(0, str(path.parent))
    name = path.stem if path.stem.isidentifier() else "_probed"
    found = importlib.util.spec_from_file_location(name, path)
    if found is None or found.loader is None:
        raise UsageError(f"{spec.where}: is no Python source.\n{HOW}")
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    found.loader.exec_module(module)
    return module


def _made(module: ModuleType, spec: Spec) -> Any:
    """The data set or loader itself: an attribute, or what it returns when called."""
    found: Any = module
    for part in spec.attribute.split("."):
        if not hasattr(found, part):
            names = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
            there = f"It has {', '.join(names[:8])}." if names else "It defines nothing to call."
            raise UsageError(f"{spec.text}: {spec.where} has no {spec.attribute}.\n{there}")
        found = getattr(found, part)
    if not _is_data(found):
        if not callable(found):
            raise UsageError(f"{spec.text}: is a {type(found).__name__}, not a data set.\n{HOW}")
        try:
            found = found()
        except TypeError as error:
            at = error.__traceback__
            if "argument" in str(error) and at is not None and at.tb_next is None:
                raise UsageError(
                    f"{spec.text}: cannot be called without arguments ({error}).\n"
                    "Write a small function around it that needs none."
                ) from error
            raise
    if not _is_data(found):
        raise UsageError(
            f"{spec.text}: gives a {type(found).__name__}, which has neither __getitem__ nor "
            f"__iter__.\n{HOW}"
        )
    return found


def _is_data(found: Any) -> bool:
    return not isinstance(found, type) and (
        _is_loader(found) or hasattr(found, "__getitem__") or hasattr(found, "__iter__")
    )


def _is_loader(found: Any) -> bool:
    return hasattr(found, "dataset") and hasattr(found, "num_workers")


def indexed(dataset: Any) -> bool:
    """Whether samples are asked for by number (map style), and it is known how many there are."""
    iterable = getattr(sys.modules.get("torch.utils.data"), "IterableDataset", ())
    if isinstance(dataset, iterable):
        return False
    return hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")


MOST_INDEXES = 200_000
"""Indexes that are kept: more than any probe asks for."""


def _of_dataset(dataset: Any, batch_size: int | None, notes: tuple[str, ...] = ()) -> Target:
    size = batch_size or 64
    if not indexed(dataset):
        return Target(dataset, size, None, None, "its own", notes=notes)
    import numpy as np

    count = len(dataset)
    if not count:
        raise UsageError("The data set is empty: there is nothing to probe.\nCheck its path.")
    order = np.random.default_rng(0).permutation(count)[:MOST_INDEXES].tolist()
    batches = _split(order, size)
    return Target(dataset, size, None, batches, "shuffled, as in training", notes=notes)


def _split(order: list[int], size: int) -> list[list[int]]:
    whole = [order[at : at + size] for at in range(0, len(order) - size + 1, size)]
    return whole or [order]


def _of_loader(loader: Any, batch_size: int | None) -> Target:
    """A DataLoader's data set, in the order of its own sampler and with its own arguments."""
    dataset, own = loader.dataset, getattr(loader, "batch_size", None)
    size = batch_size or own or 1
    batches: list[list[int]] | None = None
    order = "its own"
    if indexed(dataset):
        sampler = getattr(loader, "batch_sampler", None)
        if sampler is not None and (batch_size is None or own is None):
            batches = _first(list(one) for one in sampler)
            size = max((len(one) for one in batches), default=size)
        else:
            flat = [one[0] for one in _first([index] for index in loader.sampler)]
            batches = _split(flat, size)
        order = f"of its {type(getattr(loader, 'sampler', sampler)).__name__}"
        if not any(batches):
            raise UsageError("The loader gives no batch: its data set or sampler is empty.")
    automatic = getattr(loader, "_auto_collation", own is not None)
    return Target(
        dataset,
        size if automatic else 1,
        loader.collate_fn if automatic else _alone(loader.collate_fn),
        batches,
        order,
        workers=int(loader.num_workers),
        prefetch=int(getattr(loader, "prefetch_factor", None) or 2),
        worker_init=getattr(loader, "worker_init_fn", None),
        context=getattr(loader, "multiprocessing_context", None),
    )


def _first(found: Any) -> list[list[int]]:
    kept: list[list[int]] = []
    count = 0
    for one in found:
        kept.append(one)
        count += len(one)
        if count >= MOST_INDEXES:
            break
    return kept


class _alone:
    """Collates a "batch" of one, which is what the data set already made into a batch."""

    def __init__(self, convert: Callable[[Any], Any]) -> None:
        self._convert = convert

    def __call__(self, data: list[Any]) -> Any:
        return self._convert(data[0])


class ImageFiles:
    """The images below a folder, decoded by Pillow and resized to 224x224; for a probe only."""

    def __init__(self, files: list[str]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        import numpy as np
        from PIL import Image

        with open(self.files[index], "rb") as file, Image.open(file) as image:
            return np.asarray(image.convert("RGB").resize((224, 224), Image.Resampling.BILINEAR))


def _images(folder: str) -> ImageFiles:
    found: list[str] = []
    for base, _, names in os.walk(folder):
        found += [os.path.join(base, n) for n in sorted(names) if n.lower().endswith(IMAGES)]
        if len(found) >= MOST_FILES:
            break
    if not found:
        raise UsageError(
            f"{folder}: no images ({', '.join(IMAGES[:4])}, ...) and no bundle of `whyidle run`.\n"
            "For other data give the code that reads it: file.py:factory"
        )
    if importlib.util.find_spec("PIL") is None:
        raise UsageError("Decoding images needs Pillow.\nInstall it: pip install pillow")
    return ImageFiles(sorted(found))
