"""Convolution algorithms are searched again and again because shapes keep changing.

Looks like: a batch with a new image size takes 0.6 to 2.3 s instead of 0.02 s; the device is busy
with convolution kernels that do not belong to the step; ``cudaMalloc`` and ``cudaFree`` beside
them.

How we tell: one call of a convolution launches at least eight different kernels (it needs one to
six), in two or more recorded steps: with ``torch.backends.cudnn.benchmark = True`` every new shape
tries all algorithms. All of its kernels but the shortest are charged.

Change: ``torch.backends.cudnn.benchmark = False`` for changing shapes; or pad and bucket the shapes
to a few, after which the search is done once for each.

May be wrong: the opposite fault, the flag off with fixed shapes, costs 1.4 to 2.4x in reports and
leaves no mark in a trace. Searches in a single recorded step are warm-up and not charged.

Sources: torch.backends.cudnn.benchmark in the PyTorch documentation; reports of 0.02 to 0.6 and 2.3
s per batch with it wrongly on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from whyidle.diagnosis import Finding, Remedy
from whyidle.stories import Story
from whyidle.views.kernels import kernel_claims

if TYPE_CHECKING:
    from whyidle.model import Evidence, Facts
    from whyidle.views import Views

TITLE = "Convolution algorithms searched again"
STATUS = "preview"
NEEDS = ("device", "ops", "steps")
FEWEST_KERNELS = 8
FEWEST_STEPS = 2


def claims(views: Views) -> pl.DataFrame:
    """Kernels of convolution operators that try every algorithm, but for the shortest of each."""
    kernels = views.kernels.filter(pl.col("op").str.contains("(?i)conv").fill_null(value=False))
    calls = kernels.group_by("rank", "op", "op_row").agg(
        pl.col("name").n_unique().alias("names"), pl.col("start_ns").min().alias("at_ns")
    )
    searching = calls.filter(pl.col("names") >= FEWEST_KERNELS)
    searching = searching.filter(_in_several_steps(searching, views))
    rows = kernels.filter(pl.col("op_row").is_in(searching["op_row"].implode()))
    rows = rows.sort(pl.col("end_ns") - pl.col("start_ns"), "row")
    rows = rows.filter(pl.int_range(pl.len()).over("op_row") > 0).with_columns(
        pl.lit(1.0).alias("weight"), pl.lit("deduced").alias("level")
    )
    return kernel_claims(rows, views)


def _in_several_steps(searching: pl.DataFrame, views: Views) -> pl.Series:
    """Whether the search's rank searched in several of its steps."""
    marks = views.marks.select("rank", "number", "start_ns").sort("start_ns")
    steps: dict[int | None, int] = {}
    for rank in searching["rank"].unique().to_list():
        mine = pl.col("rank").eq_missing(rank)
        begins = marks.filter(mine)["start_ns"].to_numpy()
        at = np.searchsorted(begins, searching.filter(mine)["at_ns"].to_numpy(), side="right")
        steps[rank] = np.unique(at).size
    held = [steps[rank] >= FEWEST_STEPS for rank in searching["rank"].to_list()]
    return pl.Series(held, dtype=pl.Boolean)


def remedies(finding: Finding, facts: Facts) -> list[Remedy]:
    """Do not search; or search for few shapes."""
    return [
        Remedy(
            what="Stop searching for convolution algorithms",
            how="torch.backends.cudnn.benchmark = False while shapes change from batch to batch; "
            "to keep it, resize or pad inputs to a few fixed sizes.",
            safe=False,
            why_safe="Another algorithm may be chosen for a shape: results differ in the last "
            "digits, and a shape may get a slower kernel than the search would have found.",
            effect={"kind": "kernels_scaled", "factor": 0.0, "only": "claimed"},
            prove="Record the same steps again: each convolution must launch one to three kernels.",
        )
    ]


def example() -> tuple[Evidence, float]:
    """Four steps of a convolution of 1 ms; in two of them ten kernels of 1 ms are tried first."""
    story = Story()
    at = 0
    for number in range(4):
        tried = 10 if number in (1, 3) else 0
        story.step(number, at, at + (tried + 1) * 1000)
        story.op("aten::cudnn_convolution", at, at + 90 + tried)
        for index in range(tried):
            run = (at + index * 1000 + 8, at + (index + 1) * 1000 + 8)
            story.launch(f"cudnn_conv_algorithm_{index}", (at + 2, at + 8), run)
        run = (at + tried * 1000 + 8, at + (tried + 1) * 1000)
        story.launch("cudnn_conv_fast", (at + 10, at + 14), run)
        at += (tried + 1) * 1000
    return story.evidence(), 2 * 10e-3
