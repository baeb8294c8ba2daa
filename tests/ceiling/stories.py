"""Steps and batches whose figures are told, so that a ceiling can be worked out by hand."""

from __future__ import annotations

import json
from typing import Any

from whyidle.model import BATCHES, MOMENTS, SETTINGS, SPANS, Evidence, Facts, SourceInfo, frame

MS = 1_000_000

Op = tuple[str, list[Any], list[str]]
"""Name, shapes and types of one operator call."""


def op(name: str, *shapes: list[int], type: str = "float") -> Op:
    return f"aten::{name}", list(shapes), [type] * len(shapes)


def evidence(
    ops: list[Op],
    *,
    steps: int = 4,
    batches: list[dict[str, Any]] | None = None,
    evaluations: list[tuple[int, int]] | None = None,
    settings: dict[str, str] | None = None,
    inside: list[Op] | None = None,
) -> Evidence:
    """``steps`` profiled steps of 1 s that each call ``ops`` one after the other.

    ``inside`` are calls that lie within the first of ``ops`` in every step.
    """
    spans: list[dict[str, Any]] = []
    for step in range(steps):
        at = step * 1000 * MS
        about = {"source": 0, "thread": 0}
        spans.append(about | span(f"ProfilerStep#{step}", "annotation", at, at + 1000 * MS))
        for number, call in enumerate(ops):
            begin = at + (1 + number * 10) * MS
            spans.append(about | span(call[0], "op", begin, begin + 9 * MS, call))
            if not number:
                for nested, inner in enumerate(inside or []):
                    start = begin + (1 + 2 * nested) * MS
                    spans.append(about | span(inner[0], "op", start, start + MS, inner))
    tables = {"spans": frame(SPANS, spans)}
    if batches is not None:
        tables["batches"] = frame(BATCHES, [{"source": 0, **batch} for batch in batches])
    moments = [
        {"source": 0, "kind": "step", "number": n, "start_ns": n * 1000 * MS,
         "end_ns": (n + 1) * 1000 * MS} for n in range(steps)
    ]  # fmt: skip
    moments += [
        {"source": 0, "kind": "evaluation", "start_ns": a * MS, "end_ns": b * MS}
        for a, b in evaluations or []
    ]
    tables["moments"] = frame(MOMENTS, moments)
    if settings:
        rows = [{"source": 0, "key": k, "value": v} for k, v in settings.items()]
        tables["settings"] = frame(SETTINGS, rows)
    return Evidence(tables, Facts(), (SourceInfo("told", "told", None, 1, "x", ()),))


def span(name: str, kind: str, start: int, end: int, call: Op | None = None) -> dict[str, Any]:
    told = {} if call is None else {"shapes": json.dumps(call[1]), "types": json.dumps(call[2])}
    return {"name": name, "kind": kind, "start_ns": start, "end_ns": end, **told}


def batch(
    number: int, worker: int | None, wall_ms: float, items: int | None = 32
) -> dict[str, Any]:
    return {
        "process": 100 if worker is None else 200 + worker,
        "worker": worker,
        "loader": 0,
        "start_ns": number * 1000 * MS,
        "wall_ns": round(wall_ms * MS),
        "cpu_ns": round(wall_ms * MS / 4),
        "items": items,
    }
