"""The user's own ``torch`` Dataset: each element of a sample becomes a field, without loss.

Arrays and tensors are stored as ``npy``, whole numbers as ``cls``, text as ``txt``, bytes as
``bin``, Pillow pictures as ``png``, anything else that JSON can hold as ``json``.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import re
import sys
from typing import Any

import numpy as np

from whyidle.data import spec as specs
from whyidle.data.records import BadSample
from whyidle.data.sources.arrays import npy
from whyidle.errors import DataError, WhyidleError


class UserDataset:
    """A map-style data set, made anew in each process from the name of its factory.

    The generators of random, NumPy and torch are seeded with the sample's number before each
    sample, so that one with random augmentation still gives the same bytes in every run.
    """

    def __init__(self, spec: str) -> None:
        """Make the data set once, to see that it is one and how long it is."""
        self.name, self._spec = spec, spec
        self._dataset: Any = None
        made = self._made()
        if not specs.indexed(made):
            raise DataError(
                f"{spec}: gives a {type(made).__name__}, which has no length or no numbers.\n"
                "Packing goes on after a kill only where samples can be asked for by number."
            )
        self._count = len(made)
        names = getattr(made, "classes", None)
        listed = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
        self.classes = list(names) if listed and names else None
        self.digest = "blake2b-256:" + hashlib.blake2b(self._identity(), digest_size=32).hexdigest()

    def _identity(self) -> bytes:
        parsed = specs.parse(self._spec)
        told = f"{self._spec} {self._count}".encode()
        if os.path.isfile(parsed.where):
            with open(parsed.where, "rb") as file:
                told += file.read()
        return told

    def _made(self) -> Any:
        if self._dataset is None:
            try:
                self._dataset = specs.load(specs.parse(self._spec), None).dataset
            except WhyidleError:
                raise
            except Exception as error:
                told = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                raise DataError(f"{self._spec}: failed while it was made: {told}.") from error
        return self._dataset

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_dataset": None}

    def __len__(self) -> int:
        return self._count

    def key(self, i: int) -> str:
        """The number of the sample."""
        return f"{i:09d}"

    def read(self, i: int) -> dict[str, bytes]:
        """The elements of sample ``i`` as fields."""
        dataset = self._made()
        random.seed(i)
        np.random.seed(i % 2**32)
        if "torch" in sys.modules:
            sys.modules["torch"].manual_seed(i)
        return fields_of(self.key(i), dataset[i])


def fields_of(key: str, sample: Any) -> dict[str, bytes]:
    """What a data set gave, as fields: named where it is a mapping, else numbered if need be."""
    if isinstance(sample, dict):
        named = [(re.sub(r"[^a-z0-9_]", "_", str(name).lower()), v) for name, v in sample.items()]
    elif isinstance(sample, tuple | list):
        named = [(str(number), value) for number, value in enumerate(sample)]
    else:
        named = [("", sample)]
    stored = [(name, *_stored(key, value)) for name, value in named]
    kinds = [kind for _, kind, _ in stored]
    fields: dict[str, bytes] = {}
    for name, kind, content in stored:
        alone = not isinstance(sample, dict) and kinds.count(kind) == 1
        field = kind if alone or name == kind else f"{name}.{kind}"
        if field in fields:
            raise BadSample(key, f"two elements would both be called {field}")
        fields[field] = content
    return fields


def _stored(key: str, value: Any) -> tuple[str, bytes]:
    if isinstance(value, bytes | bytearray):
        return "bin", bytes(value)
    if isinstance(value, str):
        return "txt", value.encode()
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return "cls", str(int(value)).encode()
    if hasattr(value, "detach") and hasattr(value, "numpy"):
        try:
            value = value.detach().cpu().numpy()
        except (TypeError, RuntimeError) as error:
            raise BadSample(key, f"NumPy has no such numbers ({error})") from error
    if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        return "npy", npy(np.asarray(value))
    if hasattr(value, "save") and hasattr(value, "getbands"):
        out = io.BytesIO()
        value.save(out, "PNG")
        return "png", out.getvalue()
    try:
        return "json", json.dumps(value, sort_keys=True).encode()
    except (TypeError, ValueError) as error:
        raise BadSample(key, f"a {type(value).__name__} cannot be stored") from error


def knows(spec: str) -> bool:
    """Whether it is module:factory or file.py:factory."""
    where, colon, attribute = spec.rpartition(":")
    named = attribute.replace(".", "").isidentifier() and not os.path.lexists(spec)
    return bool(where and colon) and named and os.sep not in attribute


def opened(spec: str, wishes: dict[str, Any]) -> UserDataset:
    """The data set."""
    return UserDataset(spec)
