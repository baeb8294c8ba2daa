"""A GPU runs slower than it could: its clock is held down while it works.

Looks like: the same work takes longer on one GPU, or longer than last week; the SM clock is low
under load; the driver names heat or a power brake as the reason.

How we tell: for at least a minute and six readings the GPU is busy (50 % or more) while its SM
clock stays at or below 75 % of the highest it can run at and its power is below 85 % of its limit:
a GPU at its power limit lowers its clock by design. Work loses 1 - clock / highest clock. That is
*suspected*, since a clock may be locked on purpose, and *deduced* where the driver names heat, a
hardware slowdown or a power brake. Such a reason alone, without a series, is told as *seen*.
With traces of all ranks: where the others wait in a collective for a rank on which most kernels
take longer than the same ones elsewhere (same name, same grid, by more than 5 %), what its slower
kernels explain of the wait counts as well (*deduced*).

Change: cooling (fans, dust, airflow, room), power supply and cabling; a clock that somebody locked
(``nvidia-smi -rgc`` takes it back); another node while it is looked into.

May be wrong: work that waits for memory does not run slower with the SM clock, so the loss is an
upper bound. Laptops and clocks locked for measurement look the same.

Sources: NVML reference, clocks throttle reasons; report of 512 against 1481 GFLOPS on one of two
equal cards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from whyidle.diagnosis import EvidenceRow, Finding, Place, Remedy, Sign
from whyidle.model import Evidence
from whyidle.sampled_stories import Sampling
from whyidle.stories import Story
from whyidle.views.sampled_clocks import held_down, held_down_in_windows, reasons
from whyidle.views.sampled_telling import job_claims_of

if TYPE_CHECKING:
    from whyidle.model import Facts
    from whyidle.views import Views

TITLE = "GPU clock held down under load"
STATUS = "preview"
NEEDS = ("device", "sampled_clocks")
JOB_NEEDS = ("sampled_clocks",)
OBSERVES = ("settings",)
WAITS = ("slower",)


def claims(views: Views) -> pl.DataFrame:
    """The compute of traced windows that a held-down clock slowed."""
    return held_down_in_windows(views)


def job_claims(views: Views) -> pl.DataFrame:
    """The busy part of every stretch of work at a low clock."""
    found = held_down(views.sampled)
    words = [_words(row) for row in found.iter_rows(named=True)]
    level = pl.when(pl.col("why").is_null()).then(pl.lit("suspected")).otherwise(pl.lit("deduced"))
    weight = 1 - pl.col("clock") / pl.col("most")
    return job_claims_of(found, "busy", words, level=level, weight=weight)


def _words(row: dict[str, float]) -> str:
    why = f"; the driver names {row['why']}" if row["why"] else ""
    return f"SM clock at {row['clock'] / 1e6:.0f} of {row['most'] / 1e6:.0f} MHz under load{why}"


def observations(views: Views) -> list[Sign]:
    """GPUs for which the driver named heat, a hardware slowdown or a power brake."""
    sampled = views.sampled
    labels = sampled.labels()
    hosts = dict(sampled.members.select("number", "host").iter_rows())
    devices = dict(sampled.members.drop_nulls("device").select("number", "device").iter_rows())
    paths = [source.path for source in views.evidence.sources]
    first = dict(
        sampled.settings.filter(pl.col("key").str.starts_with("throttle."))
        .group_by("number").agg(pl.col("source").min()).iter_rows()
    )  # fmt: skip
    return [
        Sign(
            level="seen",
            what=f"{labels[number]}: the driver holds the clock down because of {why}.",
            where=[Place(host=hosts.get(number), device=devices.get(number))],
            evidence=[EvidenceRow(source=paths[first[number]], row=None, what=f"active: {why}")],
            remedies=_remedies(),
        )
        for number, why in reasons(sampled).iter_rows()
    ]


def remedies(finding: Finding, facts: Facts) -> list[Remedy]:
    """Find the reason, then let the clock go."""
    return _remedies()


def _remedies() -> list[Remedy]:
    prove = (
        "nvidia-smi -q -d CLOCK,PERFORMANCE under load: SM clock above 75 % of its maximum and no "
        "slowdown reason active."
    )
    return [
        Remedy(
            what="Find what holds the clock down",
            how="nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER under load names the reason. Heat: "
            "fans, dust, airflow. Power brake: supply and cables. None: nvidia-smi -rgc -rac takes "
            "back clocks that somebody locked.",
            safe=True,
            why_safe="It only looks; taking back locked clocks changes speed, not results.",
            effect={"kind": "kernels_scaled", "only": "claimed"},
            prove=prove,
        ),
        Remedy(
            what="Run on another node meanwhile",
            how="sbatch --exclude=NODE, or cordon the node; dcgmi diag -r 2 tests the GPU.",
            safe=True,
            why_safe="The same job on other hardware of the same model.",
            effect={"kind": "kernels_scaled", "only": "claimed"},
            prove=prove,
        ),
    ]


def job_example() -> tuple[Evidence, float]:
    """Ten minutes at 100 % and 990 of 1980 MHz, half the power limit: half is lost, 300 s."""
    story = Sampling(period_s=10)
    story.runs(
        600, gpu_utilization=1.0, sm_clock=0.99e9, sm_clock_max=1.98e9, power=350.0,
        power_limit=700.0,
    )  # fmt: skip
    return story.evidence(), 300.0


def example() -> tuple[Evidence, float]:
    """Four traced seconds of work inside ten minutes at half the clock: 2 s are lost."""
    origin = 1_700_000_000_000_000_000
    story = Story(origin_ns=origin + 300 * 10**9, name=None)
    for number in range(4):
        at = number * 1_000_000
        story.step(number, at, at + 1_000_000)
        story.op("aten::mm", at, at + 20)
        run = (at + 10 if number == 0 else at, at + 1_000_000)
        story.launch("ampere_bf16_s16816gemm_bf16_128x128_tn", (max(at - 100, 1), at + 5), run)
    samples, _ = job_example()
    traced = story.evidence()
    sources = (*traced.sources, *samples.sources)
    told = samples.table("samples").with_columns(pl.lit(1, pl.UInt16).alias("source"))
    tables = {**traced.tables, "samples": told}
    return Evidence(tables, traced.facts, sources), 0.5 * 4.0


def observed_example() -> tuple[Evidence, str]:
    """A driver that names heat."""
    story = Sampling().setting("throttle.sw_thermal_slowdown", "Active")
    story.setting("throttle.gpu_idle", "Not Active")
    return story.evidence(), "because of heat"
