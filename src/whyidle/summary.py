"""From the settled ledger to the records of a diagnosis."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from whyidle.diagnosis import Device, EvidenceRow, Finding, LedgerRow, Source, Step, Where, Window
from whyidle.errors import Bug
from whyidle.ledger import PARTS_PER_NS, PARTS_PER_S, Ledger
from whyidle.model import CPU_DEVICE, Evidence
from whyidle.views import Views
from whyidle.views.activity import COMMUNICATION, COMPUTE, COPY, EMPTY, STATE_NAMES

if TYPE_CHECKING:
    from whyidle.causes import Cause

Parts = npt.NDArray[np.int64]
MOST_PLACES = 8
MOST_ROWS = 5


def device_name(device: int) -> int | str:
    """The device as reports print it: its index, or "cpu"."""
    return "cpu" if device == CPU_DEVICE else device


def printable(path: str) -> str:
    """The path as text that UTF-8 can hold; bytes that are not UTF-8 show as a mark."""
    return path.encode("utf-8", "replace").decode()


def sources(evidence: Evidence) -> list[Source]:
    """What was read."""
    return [
        Source(
            path=printable(s.path),
            reader=s.reader,
            rank=s.rank,
            events=s.events,
            notes=list(s.notes),
        )
        for s in evidence.sources
    ]


def window(views: Views) -> Window:
    """The judged window, widest over devices."""
    origin = views.origin_ns
    return Window(
        origin_ns=str(origin),
        start_ns=0,
        end_ns=int(views.windows["end_ns"].to_numpy().max()) - origin,
        steps=views.marks["number"].n_unique() or None,
    )


def devices(views: Views, ledger: Ledger) -> list[Device]:
    """One record per device; the law of the ledger is checked here."""
    states = views.states.nanoseconds() * PARTS_PER_NS
    lost = np.zeros_like(states)
    sums = ledger.won.group_by("window", "state").agg(pl.col("lost").sum())
    for number, state, parts in sums.iter_rows():
        lost[number, STATE_NAMES.index(state)] = parts
    unrecorded = views.unrecorded_s
    rows = views.windows.iter_rows(named=True)
    return [_device(views, row, states[i], lost[i], unrecorded[i]) for i, row in enumerate(rows)]


def _device(
    views: Views, row: dict[str, int], state: Parts, lost: Parts, unrecorded_s: float
) -> Device:
    wall = (row["end_ns"] - row["start_ns"]) * PARTS_PER_NS
    idle = [COMMUNICATION, COPY, EMPTY]
    useful = int(state[COMPUTE] - lost[COMPUTE])
    unexplained = int(state[idle].sum() - lost[idle].sum())
    if useful < 0 or unexplained < 0 or useful + int(lost.sum()) + unexplained != wall:
        raise Bug(f"the ledger of device {row['device']} does not add up")
    unexplained_s = unexplained / PARTS_PER_S
    info = views.facts.device(row["rank"], row["device"])
    steps = views.steps_of(row["rank"], row["source"])
    return Device(
        rank=row["rank"],
        device=device_name(row["device"]),
        name=info.name,
        sms=info.sms,
        start_ns=row["start_ns"] - views.origin_ns,
        end_ns=row["end_ns"] - views.origin_ns,
        wall_s=wall / PARTS_PER_S,
        compute_s=int(state[COMPUTE]) / PARTS_PER_S,
        communication_s=int(state[COMMUNICATION]) / PARTS_PER_S,
        copy_s=int(state[COPY]) / PARTS_PER_S,
        empty_s=int(state[EMPTY]) / PARTS_PER_S,
        useful_s=useful / PARTS_PER_S,
        lost_s=int(lost.sum()) / PARTS_PER_S,
        unexplained_s=unexplained_s,
        unrecorded_s=min(unrecorded_s, unexplained_s, int(state[EMPTY]) / PARTS_PER_S),
        steps=[
            Step(number=n, start_ns=s - views.origin_ns, end_ns=e - views.origin_ns)
            for n, s, e in steps.iter_rows()
        ],
        step_s=median_step_s(steps),
    )


def median_step_s(steps: pl.DataFrame) -> float | None:
    """Median of the interior steps (all of them when fewer than four); None without steps."""
    if steps.height == 0:
        return None
    took = ((steps["end_ns"] - steps["start_ns"]) / 1e9).to_numpy()
    return float(np.median(took[1:-1] if took.size >= 4 else took))


def ledger_rows(ledger: Ledger, views: Views) -> list[LedgerRow]:
    """Seconds won per device, cause and state, largest first."""
    sums = ledger.won.group_by("window", "cause", "state").agg(pl.col("lost").sum())
    walls = ((views.windows["end_ns"] - views.windows["start_ns"]) / 1e9).to_list()
    rows = sums.sort("window", "lost", "cause", "state", descending=[False, True, False, False])
    found = []
    for number, cause, state, lost in rows.iter_rows():
        place = views.windows.row(number, named=True)
        found.append(
            LedgerRow(
                rank=place["rank"],
                device=device_name(place["device"]),
                cause=cause,
                state=state,
                lost_s=lost / PARTS_PER_S,
                share=lost / PARTS_PER_S / walls[number],
            )
        )
    return found


def finding_of(cause: Cause, ledger: Ledger, views: Views) -> Finding:
    """What one cause won, where and how sure; its remedies are added by the caller."""
    won = ledger.won.filter(pl.col("cause") == cause.id)
    lost = int(won["lost"].sum()) / PARTS_PER_S
    wall = float(((views.windows["end_ns"] - views.windows["start_ns"]) / 1e9).sum())
    level = won.group_by("level").agg(pl.col("lost").sum())
    level = level.sort("lost", "level", descending=[True, False])
    return Finding(
        cause=cause.id,
        reason=cause.reason,
        title=cause.title,
        ledger="window",
        lost_s=lost,
        share=lost / wall if wall else 0.0,
        job_cost_s=None,
        contested_s=ledger.contested_s(cause.id),
        level=level["level"][0],
        status=cause.status,
        where=_where(won, views),
        evidence=_evidence(won, views),
        remedies=[],
    )


def _where(won: pl.DataFrame, views: Views) -> list[Where]:
    """The places that lost most."""
    keys = ["file", "line", "op", "thread", "rank", "device", "peer"]
    sums = won.group_by(keys).agg(pl.col("lost").sum(), pl.col("start_ns").min())
    text = [pl.col("op").cast(pl.String), pl.col("file").cast(pl.String)]
    order = [-pl.col("lost"), pl.col("start_ns"), *text, pl.col("line"), pl.col("rank")]
    top = sums.sort(order).head(MOST_PLACES)
    threads = dict(views.evidence.table("threads").select("thread", "name").iter_rows())
    return [
        Where(
            file=row["file"],
            line=row["line"],
            op=row["op"],
            thread=threads.get(row["thread"]),
            rank=row["peer"] if row["peer"] is not None else row["rank"],
            device=device_name(row["device"]),
            lost_s=row["lost"] / PARTS_PER_S,
        )
        for row in top.iter_rows(named=True)
    ]


def _evidence(won: pl.DataFrame, views: Views) -> list[EvidenceRow]:
    """The largest single losses, as rows of their sources."""
    sums = won.filter(pl.col("row").is_not_null()).group_by("row").agg(pl.col("lost").sum())
    top = sums.sort("lost", "row", descending=[True, False]).head(MOST_ROWS)
    spans = views.evidence.table("spans")
    shown = top.join(
        spans.filter(pl.col("row").is_in(top["row"].implode())),
        on="row",
        how="left",
        maintain_order="left",
    )
    files = [printable(source.path) for source in views.evidence.sources]
    return [
        EvidenceRow(
            source=files[row["source"]] if row["source"] < len(files) else "",
            row=row["event"],
            what=f"{row['name']} ({row['kind']}): {row['lost'] / PARTS_PER_S * 1e3:.3f} ms lost",
        )
        for row in shown.iter_rows(named=True)
    ]
