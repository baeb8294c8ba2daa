"""Exact lines for places: a profiler knows a function's first line, a hook the line of the call.

The hook of ``whyidle run`` says on which line of the user's source a loader was made, a switch was
set, a checkpoint was written. Where exactly one line of a rank can be meant, it takes the place of
the line of the function around it. Of several loaders it is the one that the
profiled steps waited for most.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import polars as pl

from whyidle.model import CLAIMS, frame
from whyidle.views.host import is_user_frame, split_frame

if TYPE_CHECKING:
    from whyidle.model import Evidence

SCHEMA = {"rank": pl.Int32, "what": pl.String, "file": pl.String, "line": pl.Int32}
"""One row: one line of one rank's source; ``file`` is spelled as the profiler does, if it does."""

CALLS = (
    ("backward", r"run_backward|^autograd::engine::|torch/_tensor\.py\(\d+\): backward$"),
    ("optimizer_stepped", r"^Optimizer\.step#"),
    ("checkpoint", r"torch/serialization\.py\(\d+\): save$"),
    ("gc.collect", r"^<built-in function collect>$"),
    ("empty_cache", r"\): empty_cache$"),
)
"""What a site is of -> the operators and frames of a claim that are of that call."""


def sites(evidence: Evidence) -> pl.DataFrame:
    """Every line that hooks told of, each once; see SCHEMA."""
    made = evidence.table("sites").select(
        "rank", pl.col("what").cast(pl.String), pl.col("file").cast(pl.String), "line"
    )
    moments = evidence.table("moments").select(
        "rank",
        pl.when(pl.col("kind") == "collector")
        .then(pl.col("what"))
        .otherwise(pl.col("kind").cast(pl.String))
        .alias("what"),
        pl.col("file").cast(pl.String),
        "line",
    )
    both = pl.concat([made, moments, _waited_for(evidence)]).drop_nulls(["what", "file", "line"])
    both = both.unique(maintain_order=True)
    if not both.height:
        return pl.DataFrame(schema=SCHEMA)
    ranks = evidence.table("spans")["rank"].unique().to_list()
    if both["rank"].null_count() == both.height and len(ranks) == 1:
        both = both.with_columns(pl.lit(ranks[0], pl.Int32).alias("rank"))
    spelled = _spelled(both["file"].unique().to_list(), evidence)
    both = both.with_columns(pl.col("file").replace(spelled))
    return both.select(list(SCHEMA)).unique(maintain_order=True)


def _waited_for(evidence: Evidence) -> pl.DataFrame:
    """Per process the line of the loader that its steps waited for most, as ``loader_waited``.

    The profiled ones count first, since those are what the claims are of.
    """
    loaders = evidence.table("sites").filter(
        pl.col("what").cast(pl.String).is_in(["loader_made", "loader_iterated"])
    )
    waited = [_waited_ns(detail) for detail in loaders["detail"].to_list()]
    schema = {"profiled_ns": pl.Int64, "waited_ns": pl.Int64}
    loaders = loaders.select(
        "source", "rank", "process", pl.lit("loader_waited").alias("what"),
        pl.col("file").cast(pl.String), "line",
        (pl.col("what").cast(pl.String) == "loader_made").alias("made"),
    ).hstack(pl.DataFrame(waited, schema, orient="row"))  # fmt: skip
    order = loaders.filter(pl.col("waited_ns") > 0).sort(
        "profiled_ns", "waited_ns", "made", descending=True, maintain_order=True
    )
    keys = ["source", "rank", "process"]
    most = order.unique(keys, keep="first", maintain_order=True)
    return most.select("rank", "what", "file", "line")


def _waited_ns(detail: str | None) -> tuple[int, int]:
    """What profiled steps and all steps waited for a loader, 0 where that is not known."""
    try:
        told = msgspec.json.decode(detail or "{}")
        cells = [told.get(name) for name in ("profiled_ns", "waited_ns")]
    except (msgspec.DecodeError, AttributeError):
        return 0, 0
    profiled, waited = (
        cell if isinstance(cell, int) and 0 <= cell < 1 << 63 else 0 for cell in cells
    )
    return profiled, waited


def _spelled(files: Sequence[str], evidence: Evidence) -> dict[str, str]:
    """The file as the profiler wrote it: relative to a folder of ``sys.path``."""
    spans = evidence.table("spans")
    names = spans.filter(pl.col("kind") == "python")["name"].unique().cast(pl.String).to_list()
    frames = (split_frame(name) for name in names if is_user_frame(name))
    written = {found[0] for found in frames if found}
    return {
        file: max(ends, key=len)
        for file in files
        if (ends := [one for one in written if _ends(file, one)])
    }


def _ends(file: str, end: str) -> bool:
    return file == end or file.replace("\\", "/").endswith("/" + end.replace("\\", "/"))


def at_sites(claims: pl.DataFrame, known: pl.DataFrame, wanted: Sequence[str]) -> pl.DataFrame:
    """The claims with exact lines, where they are known.

    ``wanted``: kinds of site at which a cause lies as a whole, the first that is known counts;
    other claims get the line of the call that their operator is of, in the same file.
    """
    if not known.height or not claims.height:
        return claims
    for what in wanted:
        one = _single(known.filter(pl.col("what") == what), ["rank"])
        if what == "loader":
            waited = _single(known.filter(pl.col("what") == "loader_waited"), ["rank"])
            one = pl.concat([waited, one]).unique("rank", keep="first", maintain_order=True)
        if one.height:
            return _moved(claims, one, ["rank"])
    rows = claims.with_columns(_call(claims["op"]), pl.col("file").cast(pl.String).alias("_in"))
    calls = known.filter(pl.col("what").is_in([what for what, _ in CALLS]))
    one = _single(calls.rename({"what": "_what"}), ["rank", "_what"])
    one = one.with_columns(pl.col("file").alias("_in"))
    return _moved(rows, one, ["rank", "_what", "_in"])


def _single(sites: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """The rows that are the only ones of their keys."""
    return sites.filter(pl.len().over(keys) == 1).select(*keys, "file", "line")


def _moved(claims: pl.DataFrame, one: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    told = one.rename({"file": "_file", "line": "_line"})
    joined = claims.join(told, on=keys, how="left", nulls_equal=True, maintain_order="left")
    placed = joined.with_columns(
        pl.coalesce("_file", pl.col("file").cast(pl.String)).alias("file"),
        pl.coalesce("_line", "line").alias("line"),
    )
    return frame(CLAIMS, placed)


def _call(op: pl.Series) -> pl.Series:
    """The kind of site that each operator is of, null for none; looked up once per name."""
    names = op.cast(pl.String)
    distinct = names.drop_nulls().unique().to_list()
    told = {
        name: next((what for what, rule in CALLS if re.search(rule, name)), None)
        for name in distinct
    }
    return names.replace_strict(told, default=None, return_dtype=pl.String).alias("_what")
