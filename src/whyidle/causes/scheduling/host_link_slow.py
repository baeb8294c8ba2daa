"""The link between host and GPU is slower than both ends allow.

Looks like: copies from host to device reach 4 GB/s where the slot allows 24; one GPU of several
loads more slowly; the PCIe link runs at half its width or an older generation.

How we tell: in a reading taken *under load* (the GPU busy for half of the reading or more) the
PCIe generation or width is below the highest that the GPU and the slot can do. *Seen* where at
least half of the loaded readings say so, *suspected* below that. An idle GPU lowers its link to
save power, so readings without load say nothing and are left out.

Change: reseat the card, another slot (one wired to the CPU, not to the chipset), the slot's
settings in the firmware, the riser or cable; then bind the process to the near CPUs.

May be wrong: some GPUs drop the generation in a short pause between two bursts of load. The
highest generation that is reported already counts what the slot can do, so a slow slot shows only
in the width. Whether the link costs time shows in a trace, in copies that are not hidden.

Sources: nvidia-smi manual, PCIe link; reports of 6.5 against 13.2 GB/s and of 4 to 24 GB/s after
reseating.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from whyidle.diagnosis import Remedy, Sign
from whyidle.sampled_stories import Sampling
from whyidle.views.sampled_telling import gpu_sign

if TYPE_CHECKING:
    from whyidle.model import Evidence
    from whyidle.views import Views

TITLE = "PCIe link below what it can do"
STATUS = "preview"
OBSERVES = ("samples",)

LOADED = 0.5
SURE = 0.5


def observations(views: Views) -> list[Sign]:
    """GPUs whose link was narrow or old while they worked."""
    sampled = views.sampled
    needed = [("pcie_gen", "generation"), ("pcie_width", "width")]
    labels = sampled.labels()
    found: dict[int, list[tuple[str, str]]] = {}
    for metric, word in needed:
        for number, now, most, share in _below(views, metric).iter_rows():
            x = "x" if metric == "pcie_width" else ""
            level = "seen" if share >= SURE else "suspected"
            found.setdefault(number, []).append((f"{word} {x}{now:.0f} of {x}{most:.0f}", level))
    return [_sign(views, number, labels[number], said) for number, said in sorted(found.items())]


def _below(views: Views, metric: str) -> pl.DataFrame:
    """number, now, most, share: of the loaded readings, those below the maximum."""
    sampled = views.sampled
    schema = {"number": pl.UInt32, "now": pl.Float64, "most": pl.Float64, "share": pl.Float64}
    if not sampled.has(metric, f"{metric}_max", "gpu_utilization"):
        return pl.DataFrame(schema=schema)
    load = sampled.readings("gpu_utilization").rename({"value": "load"})
    most = sampled.readings(f"{metric}_max").group_by("number").agg(pl.col("value").max())
    beside = sampled.readings(metric).join(
        load.unique(["number", "t_ns"]), on=["number", "t_ns"], nulls_equal=True
    )
    loaded = beside.filter((pl.col("load") >= LOADED) & pl.col("value").is_not_null())
    loaded = loaded.join(most.rename({"value": "most"}), on="number")
    low = pl.col("value") < pl.col("most")
    told = loaded.group_by("number").agg(
        pl.col("value").filter(low).median().alias("now"), pl.col("most").first(),
        low.mean().alias("share"),
    )  # fmt: skip
    return told.filter(pl.col("share") > 0).sort("number").select(list(schema))


def _sign(views: Views, number: int, label: str, said: list[tuple[str, str]]) -> Sign:
    slow = ", ".join(words for words, _ in said)
    return gpu_sign(
        views,
        number,
        "seen" if all(level == "seen" for _, level in said) else "suspected",
        f"{label}: the PCIe link runs at {slow} under load.",
        _remedies(),
        shown=f"PCIe {slow}",
    )


def _remedies() -> list[Remedy]:
    prove = (
        "Under load, nvidia-smi --query-gpu=pcie.link.gen.current,pcie.link.width.current equals "
        "the maximum; pinned copies reach about 12 GB/s (gen 3 x16), 24 (gen 4) or 50 (gen 5)."
    )
    return [
        Remedy(
            what="Let the link run at its full width and generation",
            how="Reseat the card; move it to a slot wired to the CPU; take off risers; set the "
            "slot's generation in the firmware to automatic. lspci -vv -s BUS_ID shows LnkCap and "
            "LnkSta.",
            safe=True,
            why_safe="Hardware and firmware only; results do not change.",
            effect={"kind": "copies_scaled"},
            prove=prove,
        ),
        Remedy(
            what="Keep copies off the critical path meanwhile",
            how="pin_memory=True and .to(device, non_blocking=True) a batch ahead; smaller types "
            "(uint8 images, normalised on the GPU).",
            safe=True,
            why_safe="The same data arrive; conversion on the GPU gives the same values.",
            effect={"kind": "copies_overlapped"},
            prove=prove,
        ),
    ]


def observed_example() -> tuple[Evidence, str]:
    """A GPU at work over a link of generation 4 and width 8 of 16; idle readings do not count."""
    story = Sampling(period_s=10)
    link = {"pcie_gen_max": 4, "pcie_width_max": 16}
    story.runs(60, gpu_utilization=0.0, pcie_gen=1, pcie_width=8, **link)
    story.runs(300, gpu_utilization=0.97, pcie_gen=4, pcie_width=8, **link)
    return story.evidence(), "width x8 of x16 under load"
