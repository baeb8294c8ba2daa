"""The data pipeline: probe it, tune it, pack it, prove it.

Nothing is loaded before it is used: importing this package imports neither torch nor NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PUBLIC = {
    "DamagedSample": "whyidle.errors",
    "Loader": "whyidle.data.loader",
    "PackedDataset": "whyidle.data.reading",
    "PackedStream": "whyidle.data.reading",
    "open": "whyidle.data.reading",
}
"""Public name -> the module that defines it."""

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)
