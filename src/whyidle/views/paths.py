"""The call path of device work: the ranges, modules and operators around its launch.

Files, line numbers and addresses are left out, since they change between two runs of one program.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import polars as pl

from whyidle.intervals import Index
from whyidle.views.nest import Nest

_JOINT = "\x1f"
_DEEPEST = 200
MOST_PARTS = 12
"""Parts of a path that are kept: the outermost of deeper ones are given up."""
_MODULE = re.compile(r"^nn\.Module: ")
_LEFT_OUT = re.compile(r"^(autograd::engine::evaluate_function: |ProfilerStep#|## )")
_CHANGING = re.compile(r"0x[0-9a-fA-F]+|(?<=#)\d+")


def call_paths(launches: pl.Series, nest: Nest) -> pl.Series:
    """Per launch call (row of a span, null for none) its path as text; see ``parts_of``."""
    rows = launches.fill_null(2**32 - 1).to_numpy()
    at = np.where(launches.is_null().to_numpy(), -1, nest.index_of(rows))
    distinct, place = np.unique(at, return_inverse=True)
    if not nest.start.size:
        return pl.repeat("", len(launches), dtype=pl.String, eager=True)
    return pl.Series(_told(distinct, nest), dtype=pl.String).gather(place)


def parts_of(path: str) -> list[str]:
    """The parts of a path, outermost first."""
    return path.split(_JOINT) if path else []


def _told(calls: Index, nest: Nest) -> list[str]:
    """The path around each of these spans (-1 for none), climbing all of them at once."""
    around = _around(calls, nest)
    labels, number = _labels(around, nest)
    chains, which = np.unique(number, axis=0, return_inverse=True)
    texts = [
        _JOINT.join([labels[part] for part in chain if part >= 0][:MOST_PARTS][::-1])
        for chain in chains.tolist()
    ]
    return [texts[i] for i in which.ravel().tolist()]


def _around(calls: Index, nest: Nest) -> npt.NDArray[np.intp]:
    """One row per call: the call and the spans around it, innermost first, -1 beyond the top."""
    here = calls.astype(np.intp)
    columns = [here]
    while (here >= 0).any() and len(columns) < _DEEPEST:
        here = np.where(here >= 0, nest.parent[np.maximum(here, 0)], -1)
        columns.append(here)
    return np.stack(columns, axis=1)


def _labels(spans: npt.NDArray[np.intp], nest: Nest) -> tuple[list[str], npt.NDArray[np.intp]]:
    """The distinct names, without what changes from run to run, and the number of each span's.

    -1 for spans that say nothing of the place: runtime calls, Python lines, marks of steps.
    """
    distinct, at = np.unique(spans, return_inverse=True)
    known = nest.spans.select("kind", "name")[np.maximum(distinct, 0)]
    pairs = known.select(pl.struct(pl.col("kind").cast(pl.String), pl.col("name").cast(pl.String)))
    told = [_label(pair["kind"], pair["name"]) for pair in pairs.to_series().to_list()]
    labels: dict[str, int] = {}
    numbers = [-1 if text is None else labels.setdefault(text, len(labels)) for text in told]
    number = np.where(distinct >= 0, np.array(numbers, dtype=np.intp), -1)
    return list(labels), number[at].reshape(spans.shape)


def _label(kind: str, name: str | None) -> str | None:
    """What a span says of the place, None for nothing."""
    telling = kind in ("op", "annotation") or (kind == "python" and _MODULE.match(name or ""))
    if not telling or not name or _LEFT_OUT.match(name):
        return None
    return _CHANGING.sub("*", name)
