"""Sizes of operator inputs, from the JSON text in which they were recorded."""

from __future__ import annotations

import json
import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import polars as pl

Dims = tuple[tuple[int, ...], ...]


@lru_cache(maxsize=65536)
def dims(text: str | None) -> Dims:
    """The dimensions of every tensor among the inputs, in order; () when there are none.

    Scalars and inputs that are no tensors are left out; lists of tensors are flattened.
    """
    if not text:
        return ()
    try:
        return tuple(_tensors(json.loads(text)))
    except ValueError:
        return ()


def _tensors(value: object) -> list[tuple[int, ...]]:
    if not isinstance(value, list) or not value:
        return []
    if all(isinstance(side, int) for side in value):
        return [tuple(value)]
    return [found for inner in value for found in _tensors(inner)]


def largest(shapes: pl.Series) -> npt.NDArray[np.int64]:
    """Elements of the largest input, one per row; 0 when no shape was recorded."""
    distinct = shapes.unique().to_list()
    found = {text: max((math.prod(d) for d in dims(text)), default=0) for text in distinct}
    return np.array([found[text] for text in shapes.to_list()], dtype=np.int64)
