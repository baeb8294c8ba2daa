"""Fields as values: pictures as uint8 arrays, ``npy`` as arrays, ``cls`` as int, text as str."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from whyidle.data.pictures import FIELDS, pillow


def decoded(fields: Mapping[str, bytes]) -> dict[str, Any]:
    """Every field by its kind; what has none stays bytes."""
    return {name: value_of(name, content) for name, content in fields.items()}


def value_of(name: str, content: bytes) -> Any:
    """The value of one field; pictures are height x width x RGB, uint8."""
    kind = name.rpartition(".")[2]
    if kind in FIELDS:
        return _picture(kind, content)
    if kind == "npy":
        return np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    if kind == "cls":
        return int(content)
    if kind == "json":
        return json.loads(content)
    return content.decode() if kind == "txt" else content


def _picture(kind: str, content: bytes) -> Any:
    if kind == "jpg":
        try:
            import simplejpeg
        except ImportError:
            pass
        else:
            return simplejpeg.decode_jpeg(content)
    with pillow("Decoding pictures").open(io.BytesIO(content)) as image:
        return np.asarray(image.convert("RGB"))
