"""Reads PyTorch execution traces (ExecutionTraceObserver, JSON, schemas 1.0.x and 1.1.x-chakra).

An execution trace holds the shapes and types of every operator and no times, so it is read beside
the profiler's trace of the same run and fills in what that one did not record. The two are joined
by the number that both give an operator (``rf_id`` and ``External id``), and only when the names
agree too. What is read here never reaches a diagnosis as a table of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from whyidle.errors import UnknownEvidence, UnreadableEvidence
from whyidle.model import Evidence, SourceInfo
from whyidle.readers.json_text import diagnose_json
from whyidle.readers.source_bytes import SourceBytes

NAME = "execution_trace"
TABLE = "operators"
OPERATORS: dict[str, Any] = {
    "external": pl.Int64,  # rf_id
    "name": pl.Categorical,
    "shapes_": pl.Categorical,  # JSON text, as the profiler writes them
    "types_": pl.Categorical,
}
LARGEST = 2 << 30
"""Bytes, unpacked, of the largest execution trace that is read."""

AGREE = 0.9
"""At least this part of the numbers that both have must stand for operators of one name."""

_BESIDE = (
    "Give the profiler's trace of the same run beside it: whyidle diagnose TRACE.json {name}; it "
    "is recorded by torch.profiler.profile(execution_trace_observer=...)."
)


class _Attribute(msgspec.Struct):
    name: str = ""
    value: Any = None


class _Node(msgspec.Struct):
    name: str = ""
    rf_id: Any = None
    input_shapes: msgspec.Raw = msgspec.Raw(b"")
    input_types: Any = None
    inputs: Any = None  # a list of values, or in Chakra's schema an object with shapes and types
    attrs: list[_Attribute] = []


class _File(msgspec.Struct):
    nodes: list[_Node]
    schema: str = ""


def sniff(path: Path, head: bytes) -> bool:
    """Whether the first bytes, decompressed, look like an execution trace."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not text.startswith(b"{") or b'"traceEvents"' in text:
        return False
    return b'"nodes"' in text and b'"schema"' in text and b'"rf_id"' in text


def read(path: Path, progress: Callable[[int, int], None] | None = None) -> Evidence:
    """The operators of one execution trace; the rank is the one in the file's name."""
    text, digest = _unpacked(path, progress)
    try:
        found = msgspec.json.decode(text, type=_File, strict=False)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        at, what, next_step = diagnose_json(error, bytes(text))
        where = f" near byte {at}" if at is not None else ""
        raise UnreadableEvidence(
            str(path), f"an execution trace that is not valid{where}: {what}", next_step
        ) from error
    rows = [_row(node) for node in found.nodes]
    table = pl.DataFrame([row for row in rows if row is not None], OPERATORS, orient="row")
    table = table.unique("external", keep="first", maintain_order=True)
    info = SourceInfo(str(path), NAME, None, len(found.nodes), digest)
    return Evidence({TABLE: table}, sources=(info,))


def _unpacked(
    path: Path, progress: Callable[[int, int], None] | None
) -> tuple[bytearray, str]:  # fmt: skip
    whole, buffer = bytearray(), bytearray(1 << 20)
    view = memoryview(buffer)
    with SourceBytes(path) as source:
        while count := source.read_into(view):
            whole += view[:count]
            if len(whole) > LARGEST:
                raise UnreadableEvidence(
                    str(path),
                    f"an execution trace of more than {LARGEST >> 30} GiB",
                    "Record fewer steps.",
                )
            if progress is not None:
                progress(source.at, source.size)
        return whole, source.digest()


def _row(node: _Node) -> tuple[int, str, str, str] | None:
    number, shapes, types = node.rf_id, node.input_shapes, node.input_types
    if number is None:
        number = next((a.value for a in node.attrs if a.name == "rf_id"), None)
    written = bytes(shapes)
    if not written and isinstance(node.inputs, dict):
        written = msgspec.json.encode(node.inputs.get("shapes"))
        types = node.inputs.get("types")
    sound = isinstance(number, int) and 0 < number < 1 << 62 and isinstance(types, list)
    if not sound or not written.startswith(b"[") or not types:
        return None
    told = msgspec.json.encode([_type(kind) for kind in types]).decode()
    return number, node.name, written.decode("utf-8", errors="replace"), told


def _type(kind: object) -> str:
    """A type as the profiler writes it: the element's for a tensor, "Scalar", "" for others."""
    if not isinstance(kind, str):
        return ""
    if kind.startswith("Tensor(") and kind.endswith(")"):
        return kind[len("Tensor(") : -1]
    if kind.startswith("GenericList[Tensor"):
        return "TensorList"
    return "Scalar" if kind in ("Int", "Double", "Bool", "Float", "Complex") else ""


def filled(parts: Sequence[Evidence], rank_in_name: re.Pattern[str]) -> list[Evidence]:
    """The parts without execution traces, whose shapes and types went into the traces.

    An execution trace is for the trace of the same rank, by its name, or for the only one.
    Raises UnknownEvidence when no trace was given at all.
    """
    given = [part for part in parts if TABLE in part.tables]
    others = [part for part in parts if TABLE not in part.tables]
    if not given:
        return others
    traces = [at for at, part in enumerate(others) if part.has("spans")]
    if not traces:
        path = given[0].sources[0].path
        raise UnknownEvidence(
            path,
            "an execution trace, which has no times",
            _BESIDE.format(name=Path(path).name),
        )
    for part in given:
        source = part.sources[0]
        rank = _rank(source, rank_in_name)
        mine = [at for at in traces if _rank(others[at].sources[0], rank_in_name) == rank]
        mine = traces if len(traces) == 1 else mine
        for at in mine:
            others[at] = _joined(others[at], part)
        if not mine:
            note = f"{Path(source.path).name} names no rank of a trace, so it was not used"
            others[traces[0]] = _noted(others[traces[0]], note)
    return others


def _rank(source: SourceInfo, rank_in_name: re.Pattern[str]) -> int | None:
    found = rank_in_name.search(Path(source.path).name)
    return source.rank if source.rank is not None else int(found.group(1)) if found else None


def _joined(trace: Evidence, given: Evidence) -> Evidence:
    """The trace with shapes and types where it had none, and a note that says so."""
    spans, source = trace.table("spans"), given.sources[0]
    known = given.tables[TABLE].rename({"name": "name_"})
    ops = (pl.col("kind") == "op") & pl.col("external").is_not_null()
    both = spans.filter(ops).select("external", "name").join(known, on="external", how="inner")
    agreed = (both["name"] == both["name_"]).sum()
    label = Path(source.path).name
    if not both.height or agreed < AGREE * both.height:
        note = f"{label} does not number operators as this trace does, so it was not used"
        return _noted(trace, note)
    whole = spans.join(known, on="external", how="left", maintain_order="left")
    mine = ops & (pl.col("name") == pl.col("name_")) & pl.col("shapes").is_null()
    count = int(whole.select(mine.fill_null(value=False).sum()).item())
    whole = whole.with_columns(
        pl.when(mine).then(pl.col("shapes_")).otherwise("shapes").alias("shapes"),
        pl.when(mine).then(pl.col("types_")).otherwise("types").alias("types"),
    ).select(spans.columns)
    note = f"shapes and types of {count} operators come from {label}"
    return _noted(replace(trace, tables={**trace.tables, "spans": whole}), note)


def _noted(trace: Evidence, note: str) -> Evidence:
    first, *rest = trace.sources
    return replace(trace, sources=(replace(first, notes=(*first.notes, note)), *rest))
