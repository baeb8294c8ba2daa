"""From the settled ledger of a job to the records of a diagnosis."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from whyidle.diagnosis import (
    Device,
    Environment,
    EvidenceRow,
    Finding,
    LedgerRow,
    Source,
    Step,
    Where,
    Window,
)
from whyidle.errors import Bug
from whyidle.ledger import PARTS_PER_NS, PARTS_PER_S
from whyidle.model import CPU_DEVICE
from whyidle.views.activity import COMMUNICATION, COMPUTE, COPY, EMPTY, STATE_NAMES

if TYPE_CHECKING:
    from whyidle.causes import Cause
    from whyidle.leavings import Partial

Parts = npt.NDArray[np.int64]
MOST_PLACES = 8
MOST_ROWS = 5


def device_name(device: int | None) -> int | str | None:
    """The device as reports print it: its index, or "cpu"; None when it is not known."""
    return "cpu" if device == CPU_DEVICE else device


def printable(path: str) -> str:
    """The path as text that UTF-8 can hold; bytes that are not UTF-8 show as a mark."""
    return path.encode("utf-8", "replace").decode()


def sources(job: Partial) -> list[Source]:
    """What was read."""
    return [
        Source(
            path=printable(s.path),
            reader=s.reader,
            rank=s.rank,
            events=s.events,
            notes=list(s.notes),
            clock_offset_ns=s.clock_offset_ns,
            clock_error_ns=s.clock_error_ns,
        )
        for s in job.sources
    ]


def environment(job: Partial) -> Environment | None:
    """What is known of the job and its software; None when nothing is."""
    facts = job.facts
    flags = {str(name): str(value) for name, value in facts.flags.items() if value is not None}
    if facts.world_size is None and facts.backend is None and not facts.versions and not flags:
        return None
    return Environment(
        world_size=facts.world_size,
        backend=facts.backend,
        versions={str(name): str(value) for name, value in facts.versions.items()},
        flags=flags,
    )


def window(job: Partial) -> Window:
    """The judged window, widest over devices."""
    return Window(
        origin_ns=str(job.origin_ns),
        start_ns=0,
        end_ns=job.end_ns - job.origin_ns,
        steps=job.steps["number"].n_unique() or None,
    )


def devices(job: Partial) -> list[Device]:
    """One record per device; the law of the ledger is checked here."""
    states = job.windows.select(STATE_NAMES).to_numpy().astype(np.int64) * PARTS_PER_NS
    lost = np.zeros_like(states)
    sums = job.losses.group_by("window", "state").agg(pl.col("lost").sum())
    for number, state, parts in sums.iter_rows():
        lost[number, STATE_NAMES.index(state)] = parts
    steps: dict[tuple[int | None, int], list[tuple[int, int, int]]] = {}
    for rank, source, *step in job.steps.sort("start_ns").iter_rows():
        steps.setdefault((rank, source), []).append((step[0], step[1], step[2]))
    found = []
    for i, row in enumerate(job.windows.iter_rows(named=True)):
        mine = steps.get((row["rank"], row["source"]), [])
        found.append((_place(row), _device(job, row, states[i], lost[i], mine)))
    return [device for _, device in sorted(found, key=lambda pair: pair[0])]


def _place(row: dict[str, int]) -> tuple[int, int, int]:
    """Where a window stands among the others; without a rank first."""
    return (-1 if row["rank"] is None else row["rank"], row["device"], row["start_ns"])


def _device(
    job: Partial,
    row: dict[str, int],
    state: Parts,
    lost: Parts,
    steps: list[tuple[int, int, int]],
) -> Device:
    wall = (row["end_ns"] - row["start_ns"]) * PARTS_PER_NS
    idle = [COMMUNICATION, COPY, EMPTY]
    useful = int(state[COMPUTE] - lost[COMPUTE])
    unexplained = int(state[idle].sum() - lost[idle].sum())
    if useful < 0 or unexplained < 0 or useful + int(lost.sum()) + unexplained != wall:
        raise Bug(f"the ledger of device {row['device']} does not add up")
    unexplained_s = unexplained / PARTS_PER_S
    info = job.facts.device(row["rank"], row["device"])
    name = device_name(row["device"])
    return Device(
        rank=row["rank"],
        device=name if name is not None else 0,
        name=info.name,
        sms=info.sms,
        start_ns=row["start_ns"] - job.origin_ns,
        end_ns=row["end_ns"] - job.origin_ns,
        wall_s=wall / PARTS_PER_S,
        compute_s=int(state[COMPUTE]) / PARTS_PER_S,
        communication_s=int(state[COMMUNICATION]) / PARTS_PER_S,
        copy_s=int(state[COPY]) / PARTS_PER_S,
        empty_s=int(state[EMPTY]) / PARTS_PER_S,
        useful_s=useful / PARTS_PER_S,
        lost_s=int(lost.sum()) / PARTS_PER_S,
        unexplained_s=unexplained_s,
        unrecorded_s=min(row["unrecorded"] / 1e9, unexplained_s, int(state[EMPTY]) / PARTS_PER_S),
        steps=[
            Step(number=n, start_ns=s - job.origin_ns, end_ns=e - job.origin_ns)
            for n, s, e in steps
        ],
        step_s=median_step_s(steps),
    )


def median_step_s(steps: list[tuple[int, int, int]]) -> float | None:
    """Median of the interior steps (all of them when fewer than four); None without steps."""
    if not steps:
        return None
    took = np.array([(end - start) / 1e9 for _, start, end in steps])
    return float(np.median(took[1:-1] if took.size >= 4 else took))


def ledger_rows(job: Partial) -> list[LedgerRow]:
    """Seconds won per device, cause and state, largest first."""
    sums = job.losses.with_columns(pl.col("cause").cast(pl.String)).group_by(
        "window", "cause", "state"
    ).agg(pl.col("lost").sum())  # fmt: skip
    walls = ((job.windows["end_ns"] - job.windows["start_ns"]) / 1e9).to_list()
    places = job.windows.select("rank", "device").rows()
    stands = [_place(row) for row in job.windows.iter_rows(named=True)]
    rows = sums.sort("lost", "cause", "state", descending=[True, False, False]).rows()
    return [
        LedgerRow(
            rank=places[number][0],
            device=device_name(places[number][1]) or 0,
            cause=cause,
            state=state,
            lost_s=lost / PARTS_PER_S,
            share=lost / PARTS_PER_S / walls[number],
        )
        for number, cause, state, lost in sorted(rows, key=lambda row: stands[row[0]])
    ]


def finding_of(cause: Cause, job: Partial, job_cost_s: float | None) -> Finding:
    """What one cause won, where and how sure; its remedies are added by the caller."""
    won = job.losses.filter(pl.col("cause") == cause.id)
    lost = int(won["lost"].sum()) / PARTS_PER_S
    wall = float(((job.windows["end_ns"] - job.windows["start_ns"]) / 1e9).sum())
    level = won.group_by("level").agg(pl.col("lost").sum())
    level = level.sort("lost", "level", descending=[True, False])
    return Finding(
        cause=cause.id,
        reason=cause.reason,
        title=cause.title,
        ledger="window",
        lost_s=lost,
        share=lost / wall if wall else 0.0,
        job_cost_s=job_cost_s,
        contested_s=max(job.wanted_s.get(cause.id, 0.0) - lost, 0.0),
        level=level["level"][0],
        status=cause.status,
        where=_where(won, job),
        evidence=_evidence(cause.id, job),
        remedies=[],
    )


def _where(won: pl.DataFrame, job: Partial) -> list[Where]:
    """The places that lost most; what devices lost to a late peer stands at that peer."""
    places = job.windows.select("rank", "device").with_row_index("window")
    told = won.join(places, on="window", how="left", maintain_order="left")
    late = pl.col("peer").is_not_null()
    told = told.with_columns(
        pl.when(late).then("peer").otherwise("rank").alias("rank"),
        pl.when(~late).then("device").alias("device"),
    )
    keys = ["file", "line", "op", "thread", "rank", "device"]
    sums = told.group_by(keys).agg(pl.col("lost").sum(), pl.col("start_ns").min())
    text = [pl.col("op").cast(pl.String), pl.col("file").cast(pl.String)]
    rest = [pl.col(name) for name in ("line", "rank", "device", "thread")]
    order = [-pl.col("lost"), pl.col("start_ns"), *text, *rest]
    return [
        Where(
            file=row["file"],
            line=row["line"],
            op=row["op"],
            thread=row["thread"],
            rank=row["rank"],
            device=device_name(row["device"]),
            lost_s=row["lost"] / PARTS_PER_S,
        )
        for row in sums.sort(order).head(MOST_PLACES).iter_rows(named=True)
    ]


def _evidence(cause: str, job: Partial) -> list[EvidenceRow]:
    """The largest single losses, as rows of their sources."""
    mine = job.shown.filter(pl.col("cause") == cause)
    sums = mine.group_by("row", "source", "event", "name", "kind").agg(pl.col("lost").sum())
    top = sums.sort("lost", "row", descending=[True, False]).head(MOST_ROWS)
    files = [printable(source.path) for source in job.sources]
    return [
        EvidenceRow(
            source=files[row["source"]] if row["source"] < len(files) else "",
            row=row["event"],
            what=f"{row['name']} ({row['kind']}): {row['lost'] / PARTS_PER_S * 1e3:.3f} ms lost",
        )
        for row in top.iter_rows(named=True)
    ]
