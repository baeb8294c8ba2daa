"""Kernels with too few blocks for the multiprocessors, and whether the batch is the reason."""

from __future__ import annotations

import polars as pl

from whyidle.views.kernel_names import MATRIX

MOST_FILL = 0.75
"""A kernel whose blocks reach more than this share of the multiprocessors counts as full.
Kernels that stay on the device and fetch their work launch a little below one block each."""
MOSTLY = 0.5
"""When under-filled ones take this share of the time of matrix kernels, the batch is too small."""


def underfilled(kernels: pl.DataFrame) -> pl.DataFrame:
    """Kernels that ran alone with blocks for at most MOST_FILL of the multiprocessors.

    Adds ``weight`` = 1 - blocks / sms, ``level`` and ``batch``: whether a larger batch is what
    fills it. That is so where most matrix time of its device is under-filled, and the optimizer
    did not launch it, whose kernels depend on the parameters and not on the batch.
    """
    few = (pl.col("fill") <= MOST_FILL).fill_null(value=False)
    took = pl.col("end_ns") - pl.col("start_ns")
    matrix = kernels.filter(pl.col("family").is_in(MATRIX)).group_by("rank", "device").agg(
        (took.filter(few).sum() / took.sum()).fill_nan(0.0).alias("share")
    )  # fmt: skip
    rows = kernels.filter(few & pl.col("alone") & (took > 0) & ~_sleeps())
    return (
        rows.join(
            matrix, on=["rank", "device"], how="left", nulls_equal=True, maintain_order="left"
        )
        .with_columns(
            (1.0 - pl.col("fill")).alias("weight"),
            pl.lit("seen").alias("level"),
            ((pl.col("share") >= MOSTLY).fill_null(value=False) & ~pl.col("optimizer")).alias(
                "batch"
            ),
        )
        .drop("share")
    )


def _sleeps() -> pl.Expr:
    """torch.cuda._sleep, which occupies one block on purpose."""
    return pl.col("name").cast(pl.String).str.contains("spin_kernel")
