"""Which sampled GPU is which traced device, whether their clocks agree, and what to say of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from whyidle.views.sampled import LEAST_READINGS, LONGEST_PERIOD_NS, METERS
from whyidle.views.sampled_gpus import machines_told_apart

if TYPE_CHECKING:
    from whyidle.views import Views

Traced = tuple[int | None, int]


class Match(NamedTuple):
    """A traced device that is the same GPU as a sampled one, and how that is known."""

    rank: int | None
    device: int
    how: str


def matched(views: Views) -> dict[int, Match]:
    """The traced device of each sampled GPU, by number; GPUs of which that is not clear are out.

    A trace numbers GPUs as the process saw them (after CUDA_VISIBLE_DEVICES), samples as the
    machine does. Where every GPU of one machine was traced under its own index, the two are taken
    to agree; one GPU on both sides is the same GPU unless their models differ.
    """
    gpus = views.sampled.gpus
    traced = _traced(views)
    if not traced or not gpus.height:
        return {}
    same = _by_source(views, gpus, traced)
    if same:
        return same
    if gpus.height == 1 and len(traced) == 1:
        number, name = gpus.select("number", "name").row(0)
        if _other_model(name, views.facts.device(*traced[0]).name):
            return {}
        return {number: Match(*traced[0], "the only GPU sampled and the only one traced")}
    indices = gpus["device"].to_list()
    same_machine = gpus["host"].n_unique() == 1 and None not in indices
    by_index = {device: (rank, device) for rank, device in traced}
    if same_machine and len(by_index) == len(traced) and set(by_index) == set(indices):
        how = "the same index, with every sampled GPU traced"
        return {n: Match(*by_index[d], how) for n, d in gpus.select("number", "device").iter_rows()}
    return _by_rank(gpus, traced)


def _by_source(views: Views, gpus: pl.DataFrame, traced: list[Traced]) -> dict[int, Match]:
    """Samples that a trace brought itself: the same rank and the same number of the device."""
    own = gpus.filter(pl.col("source").is_in(views.windows["source"].unique().implode()))
    return {
        number: Match(rank, device, "recorded by the trace itself")
        for number, rank, device in own.select("number", "rank", "device").iter_rows()
        if (rank, device) in traced
    }


def _by_rank(gpus: pl.DataFrame, traced: list[Traced]) -> dict[int, Match]:
    """By the rank that the samples' source states, where that rank traced one device."""
    of: dict[int | None, list[int]] = {}
    for rank, device in traced:
        of.setdefault(rank, []).append(device)
    found: dict[int, Match] = {}
    stated = gpus.filter(pl.col("rank").is_not_null())
    for number, rank in stated.filter(pl.col("rank").is_unique()).select("number", "rank").rows():
        if len(of.get(rank, [])) == 1:
            found[number] = Match(rank, of[rank][0], "the rank that the samples state")
    return found


def _traced(views: Views) -> list[Traced]:
    """The devices with a traced window; none for a run judged without its device."""
    if not views.has_device:
        return []
    rows = views.windows.select("rank", "device").unique(maintain_order=True).rows()
    return [(rank, device) for rank, device in rows]


def _other_model(one: str | None, other: str | None) -> bool:
    def bare(name: str) -> str:
        return name.lower().replace("nvidia", "").replace("amd", "").strip()

    return bool(one and other) and bare(one or "") != bare(other or "")


def on_trace_clock(views: Views, source: int) -> bool:
    """Whether instants of a source of samples lie on the clock of the diagnosis.

    Without a traced window they make that clock themselves. With one, their source must say what
    its error is; a local time whose zone is unknown has none.
    """
    if not views.windows.height or source in views.windows["source"].to_list():
        return True
    sources = views.evidence.sources
    return source < len(sources) and sources[source].clock_error_ns is not None


def sampled_notes(views: Views) -> list[str]:
    """What a reader should know of the samples as a whole, most important first."""
    sampled = views.sampled
    found: list[str] = []
    if not sampled.gpus.height:
        if sampled.has(METERS[0]) or sampled.has(METERS[1]):
            found.append(
                "The readings of each GPU are snapshots: an account of time needs at least "
                f"{LEAST_READINGS} readings with times, such as nvidia-smi --query-gpu=... -l 1."
            )
        return found
    found += _unknown(views)
    if (sampled.gpus["period_ns"] > LONGEST_PERIOD_NS).any():
        found.append(
            "Some readings are more than ten minutes apart: the time between them is unknown."
        )
    if machines_told_apart(views.evidence):
        found.append(
            "Several files hold readings of the same GPU number at the same time and name no "
            "machine: they are taken to be of different machines."
        )
    if _traced(views) and not views.matches:
        found.append(
            "Which sampled GPU is which traced device is not known: the trace numbers GPUs as the "
            "process sees them. Sampled and traced time are therefore not compared."
        )
    return found


def _unknown(views: Views) -> list[str]:
    """GPUs that no meter told anything of."""
    sampled = views.sampled
    valued = sampled.pieces.filter(pl.col("busy_ns").is_not_null())["number"].unique()
    blind = sampled.gpus.filter(~pl.col("number").is_in(valued.implode()))
    if not blind.height:
        return []
    labels = sampled.labels()
    names = ", ".join(labels[n] for n in blind["number"].head(4).to_list())
    more = f" and {blind.height - 4} more" if blind.height > 4 else ""
    parted = sampled.settings.filter(
        (pl.col("key") == "mig_mode") & (pl.col("value") == "Enabled")
    )["number"]  # fmt: skip
    reasons = [reason for reason in blind["reason"].to_list() if reason]
    why = f" ({reasons[0]})" if reasons else ""
    hint = (
        " A partitioned GPU (MIG) reports no utilisation: sample DCGM_FI_PROF_GR_ENGINE_ACTIVE of "
        "its instances."
        if blind["number"].is_in(parted.implode()).any()
        else ""
    )
    return [
        f"Whether {names}{more} worked is unknown: no utilisation was read{why}. It counts as "
        f"unknown, not as idle.{hint}"
    ]
