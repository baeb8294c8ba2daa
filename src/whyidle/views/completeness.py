"""Whether the evidence holds what it should, and what to tell the reader when it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from whyidle.model import DEVICE_KINDS, Evidence
from whyidle.views import names
from whyidle.views.recorders import said_of
from whyidle.views.step_ranges import said

if TYPE_CHECKING:
    from whyidle.views import Views

THINNED, ENOUGH = 3, 100
"""Operators count upwards by one; this step from one to the next, in the median, is a sample."""


def sampled_ranks(evidence: Evidence) -> list[int | None]:
    """Ranks whose operators were thinned out: their running ids have large holes."""
    spans = evidence.table("spans")
    numbered = spans.filter(
        pl.col("kind").is_in(["op", "annotation"]) & pl.col("external").is_not_null()
    )
    counts = numbered.group_by("source", "rank").agg(
        pl.col("external").sort().diff().median().alias("step"), pl.len()
    )
    thinned = counts.filter((pl.col("step") >= THINNED) & (pl.col("len") >= ENOUGH))
    return thinned["rank"].unique().sort().to_list()


def notes(views: Views) -> list[str]:
    """Sentences for the report, most important first."""
    found: list[str] = []
    if views.windows.height == 0:
        return found
    launched = bool(views.activity["launch"].is_not_null().any())
    theirs = said_of(views.evidence, launched=launched, stepped=views.marks.height > 0)
    if not views.has_device:
        found.append(_without_device(views))
    elif theirs is not None:
        return theirs + said(views.evidence, views.marks)
    elif not launched:
        found.append(
            "No call that launched device work was recorded, so empty time has no cause here. "
            "Record with ProfilerActivity.CPU as well."
        )
    if views.sampled_ranks:
        found.append(
            "Most operators are missing from this trace: it is a sample or was cut. Time between "
            "the recorded operators is therefore left unexplained."
        )
    if views.marks.height == 0:
        found.append(
            "No steps were marked; everything recorded is judged as one stretch. Call "
            "prof.step() after each training step to get figures per step."
        )
    return found + said(views.evidence, views.marks)


def device_is_missing(evidence: Evidence) -> bool:
    """Whether this is a rank of a GPU job whose device activity was not recorded."""
    spans = evidence.table("spans")
    if spans["kind"].is_in(DEVICE_KINDS).any():
        return False
    return (
        (evidence.facts.backend or "") == "nccl"
        or bool((spans["kind"] == "runtime").any())
        or bool(names.matching(spans["name"], lambda n: n.startswith("nccl:")).any())
    )


def host_was_recorded(evidence: Evidence) -> bool:
    """Whether operators or annotations were recorded, not only calls that launch work."""
    return bool(evidence.table("spans")["kind"].is_in(["op", "annotation"]).any())


def _without_device(views: Views) -> str:
    gpu_job = device_is_missing(views.evidence) or bool(views.facts.devices)
    seen = (
        "A GPU was there, but its activity is missing from this recording"
        if gpu_job
        else "No accelerator activity was recorded"
    )
    return (
        f"{seen}, so this judges the CPU run: useful time is time inside operators on the "
        "stepping thread. A trace recorded with ProfilerActivity.CUDA on the GPU would show when "
        "the GPU idles and why."
    )


SIGNS = (
    "samples", "settings", "collectives", "groups", "memory_blocks", "allocations", "links",
    "moments",
)  # fmt: skip
"""Tables that tell something without any recorded work."""

INSTANTS = {
    "samples": ("t_ns",),
    "allocations": ("t_ns",),
    "collectives": ("created_ns", "started_ns", "completed_ns"),
    "moments": ("start_ns", "end_ns"),
}
"""Columns of them that hold instants."""


def holds_signs(evidence: Evidence) -> bool:
    """Whether the evidence tells something though no work was recorded."""
    return any(evidence.has(name) for name in SIGNS)


def recorded_range(evidence: Evidence) -> tuple[int, int]:
    """First and last instant of evidence without recorded work; (0, 0) when it has no clock."""
    found: list[int] = []
    for name, columns in INSTANTS.items():
        for column in columns:
            times = evidence.table(name)[column].drop_nulls()
            found += (
                [int(times.to_numpy().min()), int(times.to_numpy().max())] if len(times) else []
            )
    return (min(found), max(found)) if found else (0, 0)
