"""How causes put into claims and signs what they found of sampled GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import polars as pl

from whyidle.diagnosis import EvidenceRow, Level, Place, Remedy, Sign
from whyidle.model import JOB_CLAIMS, frame

if TYPE_CHECKING:
    from whyidle.views import Views


def job_claims_of(
    found: pl.DataFrame,
    part: Literal["busy", "idle"],
    what: Sequence[str],
    *,
    level: Level | pl.Expr = "suspected",
    weight: float | pl.Expr = 1.0,
) -> pl.DataFrame:
    """Claims for the rows of ``found`` (number, start_ns, end_ns), one sentence of ``what`` each.

    ``level`` and ``weight`` are one for all rows, or an expression over the columns of ``found``.
    """
    sure = pl.lit(level) if isinstance(level, str) else level
    heavy = weight if isinstance(weight, pl.Expr) else pl.lit(weight)
    told = found.with_columns(
        pl.lit(part).alias("part"),
        heavy.alias("weight"),
        sure.alias("level"),
        pl.Series("what", what, pl.String),
    )
    return frame(JOB_CLAIMS, told)


def gpu_sign(
    views: Views,
    number: int,
    level: Level,
    what: str,
    remedies: list[Remedy],
    *,
    source: int | None = None,
    shown: str | None = None,
) -> Sign:
    """A sign of one sampled GPU, with the rank whose trace it was matched to, if any.

    The evidence is the file ``source``, by default the GPU's first, and ``shown`` in it, by
    default ``what``.
    """
    row = views.sampled.members.filter(pl.col("number") == number).row(0, named=True)
    match = views.matches.get(number)
    path = views.evidence.sources[row["source"] if source is None else source].path
    place = Place(
        rank=match.rank if match else None, device=row["device"], host=row["host"], gpu=row["gpu"]
    )
    evidence = [EvidenceRow(source=path, row=None, what=what if shown is None else shown)]
    return Sign(level=level, what=what, where=[place], evidence=evidence, remedies=remedies)
