"""Pauses that come back at regular times, evaluations that the training logged, and swings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from whyidle.diagnosis import Sign
from whyidle.model import JOB_CLAIMS, frame
from whyidle.views.sampled_matches import on_trace_clock
from whyidle.views.sampled_patterns import gib, in_words, recurring, swings
from whyidle.views.sampled_telling import gpu_sign, job_claims_of

if TYPE_CHECKING:
    from whyidle.diagnosis import Remedy
    from whyidle.views import Views

EVALUATION = r"(?i)(^|[/_. -])(val|valid|validation|eval|evaluation|test|dev)([/_. -]|$)"
"""Tags of values that a training script logs at the end of an evaluation."""

LEAST_PAUSE = 2
"""A pause is at least so many readings at exactly zero."""

NEAR_PERIODS = 2
LOW, HIGH = 0.1, 0.7
"""Use swings when 5 % of the readings lie below the one and 5 % above the other of these."""

LEAST_READINGS = 20
FULL_MEMORY = 0.95
"""Part of the memory above which an allocator has no room left to move in."""


def recurring_signs(views: Views, remedies: list[Remedy]) -> list[Sign]:
    """GPUs whose work stops for a while at regular times; readings cannot say what for."""
    sampled = views.sampled
    period = min(sampled.gpus["period_ns"].to_list(), default=0)
    labels = sampled.labels()
    found = recurring(views.plateaus, LEAST_PAUSE * period)
    return [
        gpu_sign(
            views, number, "suspected",
            f"{labels[number]} falls to 0 % for about {in_words(lasts)} every {in_words(every)} "
            f"({count} times): an evaluation, a checkpoint, or loader workers that start again.",
            remedies,
        )
        for number, every, lasts, count in found.iter_rows()
    ]  # fmt: skip


def evaluation_claims(views: Views) -> pl.DataFrame:
    """Pauses during or right after which the training logged a value of an evaluation."""
    sampled = views.sampled
    logged = _logged(views)
    pauses = views.plateaus.filter(
        ~pl.col("leading") & ~pl.col("trailing") & (pl.col("readings") >= LEAST_PAUSE)
    )
    if not logged.height or not pauses.height:
        return frame(JOB_CLAIMS)
    gpus = sampled.gpus.select("number", "source", pl.col("period_ns").alias("usual"))
    shared = [source for source in gpus["source"].unique() if on_trace_clock(views, source)]
    pauses = pauses.join(gpus, on="number").sort("start_ns").with_row_index("at")
    near = logged.join_asof(
        pauses.select("at", "start_ns", "end_ns", "usual", "source"),
        left_on="t_ns", right_on="start_ns", strategy="backward",
    ).filter(
        (pl.col("t_ns") <= pl.col("end_ns") + NEAR_PERIODS * pl.col("usual"))
        & (pl.col("source").is_in(shared) | (pl.col("source") == pl.col("source_right")))
    )  # fmt: skip
    told = near.group_by("at").agg(pl.col("metric").min())
    hits = pauses.join(told, on="at").sort("number", "start_ns")
    moments = [
        f"0 % for {in_words(end - start)} until {tag.removeprefix('user/')!r} was logged"
        for start, end, tag in hits.select("start_ns", "end_ns", "metric").iter_rows()
    ]
    return job_claims_of(hits, "idle", moments, level="deduced")


def _logged(views: Views) -> pl.DataFrame:
    """t_ns, metric, source of what the training logged of evaluations, in order of time."""
    samples = views.evidence.table("samples")
    names = samples["metric"].unique().cast(pl.String)
    own = names.filter(
        names.str.starts_with("user/") & names.str.strip_prefix("user/").str.contains(EVALUATION)
    )
    rows = samples.filter(
        pl.col("t_ns").is_not_null() & pl.col("metric").cast(pl.String).is_in(own.implode())
    )
    return rows.select("t_ns", pl.col("metric").cast(pl.String), "source").sort("t_ns")


def swinging_signs(views: Views, remedies: list[Remedy]) -> list[Sign]:
    """GPUs that go from nearly idle to busy and back all the time."""
    labels = views.sampled.labels()
    wide = swings(views.sampled).filter(
        (pl.col("p5") < LOW) & (pl.col("p95") >= HIGH) & (pl.col("readings") >= LEAST_READINGS)
    )
    return [
        gpu_sign(
            views, number, "suspected",
            f"{labels[number]} swings between {p5:.0%} and {p95:.0%} (5th and 95th percentile, "
            f"mean {mean:.0%}) while the job works: it may wait for batches in between.",
            remedies,
        )
        for number, p5, mean, p95 in wide.select("number", "p5", "mean", "p95").iter_rows()
    ]  # fmt: skip


def full_memory_signs(views: Views, remedies: list[Remedy]) -> list[Sign]:
    """GPUs whose memory is nearly full, as read from outside."""
    sampled = views.sampled
    used = sampled.readings("memory_used").group_by("number").agg(pl.col("value").max())
    total = sampled.readings("memory_total").group_by("number").agg(pl.col("value").max())
    both = used.join(total.rename({"value": "total"}), on="number").drop_nulls().sort("number")
    labels = sampled.labels()
    return [
        gpu_sign(
            views, number, "suspected",
            f"{labels[number]}: up to {gib(most)} of {gib(whole)} of memory in use "
            f"({most / whole:.0%}): little room for the allocator.",
            remedies,
        )
        for number, most, whole in both.iter_rows()
        if whole > 0 and most >= FULL_MEMORY * whole
    ]  # fmt: skip
