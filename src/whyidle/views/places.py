"""From blame to claims: which line, operator or stretch of Python each interval points at."""

from __future__ import annotations

import numpy as np
import polars as pl

from whyidle.intervals import Index
from whyidle.model import CLAIMS, frame
from whyidle.views.host import Host, is_user_frame, split_frame
from whyidle.views.step_ranges import STEP_NAME

PYTHON = ("python", "nothing", "collector")
SCOPED = (
    "loader", "loader_restart", "compile", "empty_cache", "anomaly", "profiler", "checkpoint",
    "evaluation", "logging", "scalar_read", "optimizer",
)  # fmt: skip
"""Activities named by the span that began them; others by the outermost operator."""
_NOBODY = "Python outside any operator"


def claims_of(
    blame: pl.DataFrame, host: Host, level: str | pl.Series, weight: float = 1.0
) -> pl.DataFrame:
    """Claims for these rows of the blame view, each with its place; ``level``: one, or per row."""
    places = place(blame, host)
    sure = level if isinstance(level, pl.Series) else pl.lit(level)
    return frame(
        CLAIMS,
        blame.select("rank", "device", "start_ns", "end_ns", "thread").with_columns(
            pl.lit(weight).alias("weight"), sure.alias("level"), *places
        ),
    )


def place(blame: pl.DataFrame, host: Host) -> list[pl.Series]:
    """Columns file, line, op and row for rows of the blame view."""
    span = blame["span"].to_numpy().astype(np.intp)
    names = host.nest.spans["name"]
    known = span >= 0
    at = np.where(known, span, 0)
    if not len(names):
        return [pl.repeat(None, blame.height, dtype=pl.String, eager=True).alias("op")]
    operator = np.where(known, host.operator[at], -1)
    calls = (host.nest.spans["kind"] == "runtime").to_numpy()[host.scope[at]] & (operator >= 0)
    scoped = known & blame["activity"].is_in(SCOPED).to_numpy() & ~calls
    named = np.where(scoped, host.scope[at], np.where(operator >= 0, operator, span))
    op = _gather(names, named).cast(pl.String)
    loose = blame["activity"].is_in(PYTHON).to_numpy() & (operator < 0)
    if loose.any():
        op = _between(op, blame, host, np.flatnonzero(loose))
    file, line = _lines(host, span, operator)
    row = _gather(host.nest.spans["row"], span)
    return [op.alias("op"), file.alias("file"), line.alias("line"), row.alias("row")]


def _gather(values: pl.Series, index: Index) -> pl.Series:
    """values[index], null where index is -1."""
    found = values.gather(np.maximum(index, 0))
    hide = pl.Series(index < 0)
    return pl.select(pl.when(~hide).then(found)).to_series()


def _between(op: pl.Series, blame: pl.DataFrame, host: Host, rows: Index) -> pl.Series:
    """Name stretches of Python by frame, else by annotation and the operators around them."""
    nest = host.nest
    thread = blame["thread"].cast(pl.Int64).fill_null(-1).to_numpy()[rows]
    span = blame["span"].to_numpy()[rows].astype(np.intp)
    tops = np.flatnonzero(host.operator == np.arange(host.operator.size))
    inside = (thread >= 0) & (thread < host.feeds.size)
    position = nest.axis.put(np.where(inside, thread, 0), blame["start_ns"].to_numpy()[rows])
    after = np.searchsorted(nest.start[tops], position, side="left") if tops.size else position * 0
    before_ = _same_thread(host, tops, after - 1, thread)
    after_ = _same_thread(host, tops, after, thread)
    texts = pl.DataFrame(
        {
            "own": _gather(nest.spans["name"], span).cast(pl.String),
            "kind": _gather(nest.spans["kind"], span).cast(pl.String),
            "before": _gather(nest.spans["name"], before_).cast(pl.String),
            "after": _gather(nest.spans["name"], after_).cast(pl.String),
        }
    )
    scope = pl.when((pl.col("kind") == "annotation") & ~pl.col("own").str.contains(STEP_NAME)).then(
        pl.col("own")
    )
    around = pl.concat_str(
        pl.lit("Python between "), pl.col("before").fill_null("the start"), pl.lit(" and "),
        pl.col("after").fill_null("the end"),
    )  # fmt: skip
    told = texts.select(
        pl.when(pl.col("kind") == "python")
        .then(pl.col("own"))
        .when(scope.is_not_null())
        .then(pl.concat_str(around, pl.lit(" in "), scope))
        .otherwise(around)
    ).to_series()
    told = told.str.replace(r"( of .*)? object at 0x[0-9a-f]+", "")
    return op.scatter(rows, told.fill_null(_NOBODY))


def _same_thread(host: Host, tops: Index, at: Index, thread: Index) -> Index:
    """tops[at] where that operator runs on ``thread``, else -1."""
    inside = (at >= 0) & (at < tops.size)
    found = tops[np.clip(at, 0, max(tops.size - 1, 0))] if tops.size else np.zeros_like(at)
    same = inside & (host.nest.thread[found] == thread) if tops.size else inside
    return np.where(same, found, -1).astype(np.intp)


def _lines(host: Host, span: Index, operator: Index) -> tuple[pl.Series, pl.Series]:
    """Source file and line: the user's innermost frame, else the operator's recorded stack."""
    known = span >= 0
    frames = np.where(known, host.frame[np.maximum(span, 0)], -1)
    keys = np.where(frames >= 0, frames, -1)
    places: dict[int, tuple[str, int] | None] = {-1: None}
    names = host.nest.spans["name"]
    for index in np.unique(keys[keys >= 0]).tolist():
        found = split_frame(names[index])
        places[index] = (found[0], found[1]) if found else None
    stacks = host.nest.spans["stack"]
    if stacks.null_count() < len(stacks):
        tops = np.where((keys < 0) & (operator >= 0), operator, -1)
        keys = np.where(tops >= 0, -2 - tops, keys)
        for index in np.unique(tops[tops >= 0]).tolist():
            places[-2 - index] = _from_stack(stacks[index])
    distinct, at = np.unique(keys, return_inverse=True)
    files = pl.Series([_part(places.get(int(k)), 0) for k in distinct], dtype=pl.String)
    lines = pl.Series([_part(places.get(int(k)), 1) for k in distinct], dtype=pl.Int32)
    if not len(distinct):
        return files, lines
    return files.gather(at), lines.gather(at)


def _part(place: tuple[str, int] | None, index: int) -> str | int | None:
    return place[index] if place else None


def _from_stack(stack: str | None) -> tuple[str, int] | None:
    """The innermost user frame of a recorded call stack (innermost first, ';' between)."""
    for text in (stack or "").split(";"):
        if is_user_frame(text.strip()):
            found = split_frame(text.strip())
            return (found[0], found[1]) if found else None
    return None
