"""What one step asks of a device: arithmetic and bytes, from the shapes that a profile recorded.

Counted are matrix products, convolutions and attention, and what every other operator reads and
writes. Convolutions are counted by their backward pass, which alone tells the size of the output;
it stands for the forward pass too.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from whyidle.model import Evidence

Shape = Sequence[int]

LOADER = "enumerate(DataLoader)"
"""The profiler's mark around a data loader's ``__next__`` begins so; its work stays on the CPU."""

_UNCOUNTED = ("aten::mkldnn_rnn_layer", "aten::_cudnn_rnn", "aten::miopen_rnn")
_FREE = re.compile(
    r"aten::(empty\w*|as_strided_?|_?(unsafe_)?view(_as)?|_?reshape\w*|t|transpose|permute|expand"
    r"(_as)?|detach_?|resolve_\w+|set_|resize_|slice|select|squeeze|unsqueeze|to|_to_copy|alias"
    r"|unbind|split\w*|chunk|narrow|item|_local_scalar_dense|lift_fresh|flatten|unflatten|contiguous"
    r"|conj|is_\w+|result_type|requires_grad_)"
)
"""Operators that move no data themselves."""

_BYTES = {"double": 8, "long int": 8, "long": 8, "c10::Half": 2, "c10::BFloat16": 2, "bool": 1,
          "unsigned char": 1, "signed char": 1, "short": 2}  # fmt: skip
_HALF = ("c10::Half", "c10::BFloat16")


@dataclass(frozen=True)
class Piece:
    """One kind of operator call in a step; FLOP and bytes are of all its calls in it."""

    calls: float
    flop: float
    bytes: float
    half: bool


@dataclass(frozen=True)
class StepWork:
    """The work of one step of one rank; ``uncounted`` are operators whose FLOP are not known."""

    pieces: Sequence[Piece]
    steps: int
    uncounted: Sequence[str]

    @property
    def flop(self) -> float:
        """Floating-point operations of a step, two for a multiply-add."""
        return math.fsum(piece.flop for piece in self.pieces)

    def seconds(self, single: float, half: float, bandwidth: float, least_s: float) -> float:
        """Seconds of a step in which every call takes as long as its arithmetic or its bytes.

        No call takes less than ``least_s``. The others are FLOP/s in float32 and in half
        precision, and bytes/s.
        """
        return math.fsum(
            max(
                piece.flop / (half if piece.half else single),
                piece.bytes / bandwidth,
                piece.calls * least_s,
            )
            for piece in self.pieces
        )


def step_work(evidence: Evidence) -> StepWork | None:
    """The work of a profiled step of the first rank; None without a profile that tells shapes."""
    spans = evidence.tables.get("spans")
    if spans is None:
        return None
    name = pl.col("name").cast(pl.String)
    marks = spans.filter(name.str.starts_with("ProfilerStep#"), pl.col("thread").is_not_null())
    if not marks.height:
        return None
    source = marks.sort(pl.col("rank").fill_null(0), "source")["source"][0]
    marks = marks.filter(pl.col("source") == source)
    steps = marks["name"].cast(pl.String).n_unique()
    ops = spans.filter(
        pl.col("source") == source,
        pl.col("thread").is_not_null(),
        pl.col("start_ns") >= marks["start_ns"].min(),
        pl.col("end_ns") <= marks["end_ns"].max(),
        ((pl.col("kind") == "op") & name.str.starts_with("aten::")) | name.str.starts_with(LOADER),
    ).with_columns(name)
    if not ops["shapes"].is_not_null().any():
        return None
    calls = _outermost(ops).group_by("name", "shapes", "types").len()
    pieces = [
        _piece(name, shapes, types, count / steps)
        for name, shapes, types, count in calls.select(
            "name", pl.col("shapes").cast(pl.String), pl.col("types").cast(pl.String), "len"
        ).iter_rows()
    ]
    uncounted = sorted({name for name in ops["name"].unique() if name.startswith(_UNCOUNTED)})
    return StepWork([piece for piece in pieces if piece is not None], steps, uncounted)


def _outermost(ops: pl.DataFrame) -> pl.DataFrame:
    """Counted operators that lie in no other, and operators beside them that hold no operator."""
    counts = pl.col("name").is_in([*_FLOP, *_COVERS]) | pl.col("name").str.contains(_ATTENTION)
    loader = pl.col("name").str.starts_with(LOADER)
    cover = pl.when(counts | loader).then("end_ns").otherwise(0)
    found = ops.sort("thread", "start_ns", pl.col("end_ns"), descending=[False, False, True])
    found = found.with_columns(
        covered=cover.cum_max().shift(1, fill_value=0).over("thread") > pl.col("start_ns"),
        holds=(pl.col("start_ns").shift(-1) < pl.col("end_ns")).over("thread").fill_null(False),
    )
    return found.filter(~pl.col("covered"), ~loader, counts | ~pl.col("holds"))


def _piece(name: str, shapes: str | None, types: str | None, calls: float) -> Piece | None:
    sizes, kinds = _read(shapes), _read(types)
    tensors = [
        (shape, kind if isinstance(kind, str) else "float")
        for i, given in enumerate(sizes)
        for kind in [kinds[i] if i < len(kinds) else "float"]
        if kind not in ("Scalar", "ScalarList", "")
        for shape in _shapes(given)
    ]
    if not tensors or _FREE.fullmatch(name):
        return None
    moved = [math.prod(shape) * _BYTES.get(kind, 4) for shape, kind in tensors]
    flop = _flop(name, [shape for shape, _ in tensors])
    return Piece(
        calls=calls,
        flop=flop * calls,
        bytes=float(sum(moved) + max(moved)) * calls,
        half=tensors[-1][1] in _HALF or tensors[0][1] in _HALF,
    )


def _flop(name: str, shapes: Sequence[Shape]) -> float:
    formula: Callable[[Sequence[Shape]], float] | None = _FLOP.get(name)
    if formula is None and "attention" in name:
        formula = _attention_backward if name.endswith("_backward") else _attention
    try:
        return float(formula(shapes)) if formula is not None else 0.0
    except (IndexError, ZeroDivisionError, ValueError):
        return 0.0


def _read(text: str | None) -> list[Any]:
    try:
        found = json.loads(text or "[]")
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) else []


def _shapes(given: Any) -> list[Shape]:
    """The shapes in one argument: a tensor has one, a list of tensors several."""
    if not isinstance(given, list):
        return []
    if all(isinstance(size, int) and 0 <= size < 2**40 for size in given):
        return [given]
    return [shape for part in given if isinstance(part, list) for shape in _shapes(part)]


def _product(one: Shape, other: Shape) -> float:
    """[..., m, k] times [..., k, n]."""
    return 2.0 * math.prod(one) * other[-1]


def _linear(shapes: Sequence[Shape]) -> float:
    return 2.0 * math.prod(shapes[0]) * shapes[1][0]


def _convolution_backward(shapes: Sequence[Shape]) -> float:
    """Forward, and the gradients of input and weight, cost alike."""
    output, given, weight = shapes[:3]
    larger = output if weight[0] == output[1] else given  # else it is transposed
    return 3 * 2.0 * math.prod(larger) * math.prod(weight) / weight[0]


def _attention(shapes: Sequence[Shape]) -> float:
    query, key, value = shapes[:3]
    return 2.0 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _attention_backward(shapes: Sequence[Shape]) -> float:
    _, query, key, value = shapes[:4]
    return 2.0 * math.prod(query[:-1]) * key[-2] * (3 * query[-1] + 2 * value[-1])


_FLOP: dict[str, Callable[[Sequence[Shape]], float]] = {
    "aten::mm": lambda shapes: _product(shapes[0], shapes[1]),
    "aten::bmm": lambda shapes: _product(shapes[0], shapes[1]),
    "aten::addmm": lambda shapes: _product(shapes[1], shapes[2]),
    "aten::addmm_": lambda shapes: _product(shapes[1], shapes[2]),
    "aten::baddbmm": lambda shapes: _product(shapes[1], shapes[2]),
    "aten::linear": _linear,
    "aten::convolution_backward": _convolution_backward,
}
_COVERS = ("aten::convolution", "aten::conv1d", "aten::conv2d", "aten::conv3d")
_ATTENTION = r"^aten::_?scaled_dot_product_.*attention"
