"""The job ledger: seconds of the whole run, settled by the same rule as those of a window.

Its devices are sampled GPUs, and training processes whose steps a hook timed. A reading says how
much of its time a GPU was busy, not when. So a claim speaks of the *busy* or of the *idle* part of
an interval, and takes that share of each reading it covers. At each instant at most one claim wins
each part. All sums are integer nanoseconds:

    wall = busy + idle + unknown          useful = busy - lost in busy
    unexplained = idle - lost in idle     wall = useful + lost + unexplained + unknown

These seconds stand apart from those of a traced window: they are of a longer time, coarser, and
never added to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from whyidle.causes import Cause, all_causes
from whyidle.diagnosis import Crashed, EvidenceRow, Finding, NotJudged, Where
from whyidle.errors import Bug
from whyidle.intervals import Axis, Index, Ints, pairs
from whyidle.job_records import JobDevice, JobLedger, JobRow
from whyidle.ledger import winners
from whyidle.model import JOB_CLAIMS, frame
from whyidle.views import Views
from whyidle.views.needs import missing
from whyidle.views.sampled_matches import on_trace_clock

PARTS = ("busy", "idle")
MOST_PLACES = 8
MOST_ROWS = 5
SLICES = 120
"""Equal slices of a GPU's time for which the report gets a busy share."""


@dataclass(frozen=True)
class JobJudged:
    """What is known of the whole run: the ledger, None without a meter, and its findings."""

    ledger: JobLedger | None
    findings: tuple[Finding, ...]
    judged: tuple[str, ...]
    not_judged: tuple[NotJudged, ...]
    crashed: tuple[Crashed, ...]


class Metered(Protocol):
    """Devices whose whole time is known from a meter: sampled GPUs, and training processes.

    ``gpus`` has number, start_ns and end_ns of each, in order of number; ``pieces`` is as
    views.sampled.PIECES.
    """

    @property
    def gpus(self) -> pl.DataFrame:
        """One row per device."""

    @property
    def pieces(self) -> pl.DataFrame:
        """The time of each device, end to end."""


@dataclass(frozen=True)
class _Devices:
    """All devices of the job ledger."""

    gpus: pl.DataFrame
    pieces: pl.DataFrame


@dataclass(frozen=True)
class Won:
    """What claims won: number, cause, part, start_ns, end_ns, lost_ns, level, what, file, line.

    One row per won interval; ``wanted_ns`` is per cause what all its claims asked for.
    """

    rows: pl.DataFrame
    wanted_ns: dict[str, int]


def judged_job(views: Views) -> JobJudged:
    """Ask every cause about the devices of the whole run and settle what they claim."""
    claims, not_judged, crashed = _claims(views)
    if not views.moments.devices.height:
        return JobJudged(None, (), (), tuple(not_judged), tuple(crashed))
    won = settled(claims, _Devices(views.moments.devices, views.moments.pieces))
    ledger = _ledger(won, views)
    findings, failed = _findings(won, ledger, views)
    return JobJudged(
        ledger, tuple(findings), tuple(claims), tuple(not_judged), (*crashed, *failed)
    )  # fmt: skip


def moved_job(job: JobJudged | None, by_ns: int) -> JobJudged | None:
    """The same with instants that count from an origin ``by_ns`` earlier."""
    if job is None or job.ledger is None or by_ns == 0:
        return job
    devices = [
        msgspec.structs.replace(
            d,
            start_ns=None if d.start_ns is None else d.start_ns + by_ns,
            end_ns=None if d.end_ns is None else d.end_ns + by_ns,
        )
        for d in job.ledger.devices
    ]
    return replace(job, ledger=msgspec.structs.replace(job.ledger, devices=devices))


def jobs_together(jobs: Sequence[JobJudged | None]) -> JobJudged | None:
    """What several batches said of their samples, as one."""
    said = [job for job in jobs if job is not None]
    ledgers = [job.ledger for job in said if job.ledger is not None]
    if len(said) < 2 or not ledgers:
        return said[0] if said else None
    sums = {name: sum(getattr(one, name) for one in ledgers) for name in _SUMS}
    devices = [device for one in ledgers for device in one.devices]
    rows = [row for one in ledgers for row in one.ledger]
    judged = {name for job in said for name in job.judged}
    by_cause: dict[str, list[Finding]] = {}
    for finding in (finding for job in said for finding in job.findings):
        by_cause.setdefault(finding.cause, []).append(finding)
    findings = [_one(mine, sums["wall_s"]) for mine in by_cause.values()]
    unfed = {n.cause: n for job in said for n in job.not_judged if n.cause not in judged}
    return JobJudged(
        JobLedger(**sums, devices=devices, ledger=rows),
        tuple(sorted(findings, key=lambda f: (-f.lost_s, f.cause))),
        tuple(sorted(judged)),
        tuple(unfed.values()),
        tuple(dict.fromkeys(crash for job in said for crash in job.crashed)),
    )


_SUMS = (
    "wall_s", "busy_s", "idle_s", "unknown_s", "useful_s", "lost_s", "unexplained_s",
)  # fmt: skip


def _one(findings: list[Finding], wall_s: float) -> Finding:
    """Findings of one cause in several batches as one; its remedies are those of the largest."""
    largest = max(findings, key=lambda f: f.lost_s)
    lost_s = sum(f.lost_s for f in findings)
    where = sorted((w for f in findings for w in f.where), key=lambda w: -w.lost_s)
    return msgspec.structs.replace(
        largest,
        lost_s=lost_s,
        share=lost_s / wall_s,
        contested_s=sum(f.contested_s for f in findings),
        where=where[:MOST_PLACES],
        evidence=[row for f in findings for row in f.evidence][:MOST_ROWS],
    )


def _claims(views: Views) -> tuple[dict[str, pl.DataFrame], list[NotJudged], list[Crashed]]:
    """A cause that has other ways to be seen says what it lacks there, and not here."""
    claims: dict[str, pl.DataFrame] = {}
    not_judged: list[NotJudged] = []
    crashed: list[Crashed] = []
    for cause in (c for c in all_causes().values() if c.can_claim_job):
        try:
            lacking = missing(views, cause.job_needs)
            if not lacking:
                claims[cause.id] = frame(JOB_CLAIMS, cause.job_claims(views))
            elif not cause.counts_seconds and not cause.can_observe:
                what = [need.missing for need in lacking]
                not_judged.append(
                    NotJudged(cause=cause.id, missing=what, record_with=lacking[0].record_with)
                )
        except Exception as error:  # noqa: BLE001  a cause that breaks must not cost the report
            crashed.append(_crash(cause, error))
    return claims, not_judged, crashed


def _crash(cause: Cause, error: Exception) -> Crashed:
    text = " ".join(str(error).split())
    return Crashed(cause=cause.id, error=f"{type(error).__name__}: {text}"[:300])


def settled(claims: dict[str, pl.DataFrame], metered: Metered) -> Won:
    """Decide every claim of every cause: weight, then level, then the shorter, then the id."""
    kinds = pl.Enum(sorted(claims))
    told = [f.with_columns(pl.lit(cause, kinds).alias("cause")) for cause, f in claims.items()]
    known = metered.gpus.select("number", pl.col("start_ns").alias("low"),
                                pl.col("end_ns").alias("high"))  # fmt: skip
    asked = (pl.concat(told) if told else frame({**JOB_CLAIMS, "cause": kinds})).join(
        known, on="number", how="inner", maintain_order="left"
    )
    asked = asked.with_columns(
        pl.max_horizontal("start_ns", "low").alias("start_ns"),
        pl.min_horizontal("end_ns", "high").alias("end_ns"),
        pl.col("weight").clip(0.0, 1.0),
    ).filter((pl.col("end_ns") > pl.col("start_ns")) & (pl.col("weight") > 0))
    parts = [_settled_part(asked.filter(pl.col("part") == part), part, metered) for part in PARTS]
    wanted: dict[str, int] = {}
    for part in parts:
        for cause, ns in part.wanted_ns.items():
            wanted[cause] = wanted.get(cause, 0) + ns
    return Won(pl.concat([part.rows for part in parts]), wanted)


def _settled_part(asked: pl.DataFrame, part: str, metered: Metered) -> Won:
    pieces = _Pieces(metered, part)
    level = asked["level"].to_physical().to_numpy()
    cause = asked["cause"].to_physical().to_numpy()
    weight = asked["weight"].to_numpy()
    group = pieces.group_of(asked["number"])
    start = pieces.axis.put(group, asked["start_ns"].to_numpy())
    end = pieces.axis.put(group, asked["end_ns"].to_numpy())
    best = np.lexsort((start, cause, end - start, level, -weight))
    of, took = pieces.taken(start[best], end[best])
    wanted = np.zeros(best.size, np.int64)
    np.add.at(wanted, of, _weighed(took, weight[best][of]))
    names = asked["cause"].cast(pl.String)[best]
    sums = pl.DataFrame({"cause": names, "ns": wanted}).group_by("cause").agg(pl.col("ns").sum())
    claim, low, high = winners(start[best], end[best])
    won = best[claim]
    of, took = pieces.taken(low, high)
    lost = np.zeros(won.size, np.int64)
    np.add.at(lost, of, _weighed(took, weight[won][of]))
    rows = asked[won].select(
        "number", pl.col("cause").cast(pl.String), pl.col("part").cast(pl.String), "level", "what",
        "file", "line",
    ).with_columns(
        pl.Series("start_ns", pieces.axis.take(low, group[won]), pl.Int64),
        pl.Series("end_ns", pieces.axis.take(high, group[won]), pl.Int64),
        pl.Series("lost_ns", lost, pl.Int64),
    )  # fmt: skip
    return Won(rows.filter(pl.col("lost_ns") > 0), dict(sums.rows()))


def _weighed(took: Ints, weight: npt.NDArray[np.float64]) -> Ints:
    """Whole nanoseconds, rounded down, so that no sum exceeds what there is."""
    return np.floor(took * weight).astype(np.int64)


class _Pieces:
    """The pieces of all GPUs side by side, and how much of one part of them is where."""

    def __init__(self, metered: Metered, part: str) -> None:
        gpus, pieces = metered.gpus, metered.pieces
        self.axis = Axis(gpus["start_ns"].to_numpy(), gpus["end_ns"].to_numpy())
        self._numbers = gpus["number"].to_numpy()
        group = self.group_of(pieces["number"])
        self._start = self.axis.put(group, pieces["start_ns"].to_numpy())
        self._end = self.axis.put(group, pieces["end_ns"].to_numpy())
        busy = pl.col("busy_ns")
        idle = pl.col("end_ns") - pl.col("start_ns") - busy
        amount = pieces.select((busy if part == "busy" else idle).fill_null(0)).to_series()
        self._amount = amount.to_numpy()

    def group_of(self, numbers: pl.Series) -> Index:
        """The row of gpus of each number."""
        return np.searchsorted(self._numbers, numbers.to_numpy())

    def taken(self, start: Ints, end: Ints) -> tuple[Index, Ints]:
        """(interval, nanoseconds of the part) for each piece that each interval touches.

        Within a piece the part is spread evenly and rounded at each position alike, so that
        intervals that share out a piece get exactly what is in it.
        """
        left, piece = pairs((start, end), (self._start, self._end))
        low = np.maximum(start[left], self._start[piece])
        high = np.minimum(end[left], self._end[piece])
        return left, self._below(high, piece) - self._below(low, piece)

    def _below(self, position: Ints, piece: Index) -> Ints:
        length = self._end[piece] - self._start[piece]
        share = (position - self._start[piece]) / length
        return np.asarray(np.rint(self._amount[piece] * share), np.int64)


def _ledger(won: Won, views: Views) -> JobLedger:
    """The records of the ledger; its law is checked here, in whole nanoseconds."""
    devices = _devices(won, views)
    gpus = {row["number"]: row for row in views.moments.devices.iter_rows(named=True)}
    ranks = views.matches
    sums = won.rows.group_by("number", "cause", "part").agg(pl.col("lost_ns").sum())
    order = sums.sort("number", "lost_ns", "cause", "part", descending=[False, True, False, False])
    rows = [
        JobRow(
            host=gpus[number]["host"],
            gpu=gpus[number]["gpu"],
            device=gpus[number]["device"],
            rank=ranks[number].rank if number in ranks else gpus[number]["rank"],
            process=gpus[number]["process"],
            cause=cause,
            state=part,
            lost_s=lost / 1e9,
            share=lost / (gpus[number]["end_ns"] - gpus[number]["start_ns"]),
        )
        for number, cause, part, lost in order.iter_rows()
    ]
    return JobLedger(
        wall_s=sum(d.wall_s for d in devices),
        busy_s=sum(d.busy_s for d in devices),
        idle_s=sum(d.idle_s for d in devices),
        unknown_s=sum(d.unknown_s for d in devices),
        useful_s=sum(d.useful_s for d in devices),
        lost_s=sum(d.lost_s for d in devices),
        unexplained_s=sum(d.unexplained_s for d in devices),
        devices=devices,
        ledger=rows,
    )


def _devices(won: Won, views: Views) -> list[JobDevice]:
    pieces = views.moments.pieces
    lasted = pl.col("end_ns") - pl.col("start_ns")
    times = pieces.group_by("number").agg(
        lasted.sum().alias("wall"),
        pl.col("busy_ns").sum().alias("busy"),
        lasted.filter(pl.col("busy_ns").is_null()).sum().alias("unknown"),
    )
    lost = won.rows.group_by("number").agg(
        *(pl.col("lost_ns").filter(pl.col("part") == part).sum().alias(f"lost_{part}")
          for part in PARTS)
    )  # fmt: skip
    table = views.moments.devices.join(times, on="number").join(lost, on="number", how="left")
    table = table.with_columns(pl.col("lost_busy", "lost_idle").fill_null(0)).sort("number")
    shares = _shares(pieces)
    return [_device(row, shares[row["number"]], views) for row in table.iter_rows(named=True)]


def _device(row: dict[str, int], shares: list[float | None], views: Views) -> JobDevice:
    wall, busy, unknown = row["wall"], row["busy"], row["unknown"]
    idle = wall - busy - unknown
    useful, unexplained = busy - row["lost_busy"], idle - row["lost_idle"]
    if min(idle, useful, unexplained) < 0 or wall != row["end_ns"] - row["start_ns"]:
        raise Bug(f"the job ledger of device {row['number']} does not add up")
    match = views.matches.get(row["number"])
    placed = on_trace_clock(views, row["source"])
    return JobDevice(
        host=row["host"],  # type: ignore[arg-type]
        gpu=row["gpu"],  # type: ignore[arg-type]
        device=row["device"],
        rank=match.rank if match else row["rank"],
        matched=match.how if match else None,
        process=row["process"],
        name=row["name"],  # type: ignore[arg-type]
        meter=row["meter"],  # type: ignore[arg-type]
        start_ns=row["start_ns"] - views.origin_ns if placed else None,
        end_ns=row["end_ns"] - views.origin_ns if placed else None,
        wall_s=wall / 1e9,
        busy_s=busy / 1e9,
        idle_s=idle / 1e9,
        unknown_s=unknown / 1e9,
        useful_s=useful / 1e9,
        lost_s=(row["lost_busy"] + row["lost_idle"]) / 1e9,
        unexplained_s=unexplained / 1e9,
        samples=row["samples"],
        period_s=row["period_ns"] / 1e9,
        shares=shares,
    )


def _shares(pieces: pl.DataFrame) -> dict[int, list[float | None]]:
    """Busy shares of equal slices of each device's time; None where most of one is unknown."""
    found: dict[int, list[float | None]] = {}
    parts = pieces.partition_by("number", as_dict=True, include_key=False)
    for (number,), mine in parts.items():
        start, end = mine["start_ns"].to_numpy(), mine["end_ns"].to_numpy()
        known = np.where(mine["busy_ns"].is_null().to_numpy(), 0, end - start)
        busy = mine["busy_ns"].fill_null(0).to_numpy()
        at = np.concatenate([start[:1], end]) - start[0]
        edges = np.linspace(0, float(at[-1]), min(SLICES, mine.height) + 1)
        amounts = [
            np.diff(np.interp(edges, at, np.concatenate([[0], np.cumsum(amount)])))
            for amount in (busy, known)
        ]
        width = edges[1] - edges[0]
        found[number] = [
            round(float(b / k), 4) if k >= width / 2 else None
            for b, k in zip(*amounts, strict=True)
        ]
    return found


def _findings(won: Won, ledger: JobLedger, views: Views) -> tuple[list[Finding], list[Crashed]]:
    """One finding per cause that won anything, largest first, with its remedies."""
    found: list[Finding] = []
    crashed: list[Crashed] = []
    causes = all_causes()
    for name in won.rows["cause"].unique().sort().to_list():
        finding = _finding(causes[name], won, ledger, views)
        try:
            remedies = causes[name].remedies(finding, views.facts)
            finding = msgspec.structs.replace(finding, remedies=remedies)
        except Exception as error:  # noqa: BLE001  as above
            crashed.append(_crash(causes[name], error))
        found.append(finding)
    return sorted(found, key=lambda f: (-f.lost_s, f.cause)), crashed


def _finding(cause: Cause, won: Won, ledger: JobLedger, views: Views) -> Finding:
    mine = won.rows.filter(pl.col("cause") == cause.id)
    lost = int(mine["lost_ns"].sum())
    level = mine.group_by("level").agg(pl.col("lost_ns").sum())
    level = level.sort("lost_ns", "level", descending=[True, False])
    return Finding(
        cause=cause.id,
        reason=cause.reason,
        title=cause.title,
        ledger="job",
        lost_s=lost / 1e9,
        share=lost / 1e9 / ledger.wall_s,
        job_cost_s=None,
        contested_s=max(won.wanted_ns[cause.id] - lost, 0) / 1e9,
        level=level["level"][0],
        status=cause.status,
        where=_places(mine, views),
        evidence=_evidence(mine, views),
        remedies=[],
    )


def _places(mine: pl.DataFrame, views: Views) -> list[Where]:
    gpus = views.moments.devices.rename({"start_ns": "low", "end_ns": "high"})
    places = mine.with_columns(pl.col("file").cast(pl.String)).group_by("number", "file", "line")
    sums = places.agg(pl.col("lost_ns").sum()).join(gpus, on="number")
    ranks = views.matches
    order = [-pl.col("lost_ns"), *(pl.col(name) for name in ("number", "file", "line"))]
    top = sums.sort(order).head(MOST_PLACES)
    several = views.moments.devices["host"].n_unique() > 1
    return [
        Where(
            file=row["file"],
            line=row["line"],
            op=None,
            thread=None,
            rank=ranks[row["number"]].rank if row["number"] in ranks else row["rank"],
            device=row["device"],
            lost_s=row["lost_ns"] / 1e9,
            host=row["host"] if several or row["process"] is None else None,
            gpu=row["gpu"],
        )
        for row in top.iter_rows(named=True)
    ]


def _evidence(mine: pl.DataFrame, views: Views) -> list[EvidenceRow]:
    """The largest single losses in words."""
    labels = views.moments.labels()
    sources = dict(views.moments.devices.select("number", "source").iter_rows())
    paths = [s.path.encode("utf-8", "replace").decode() for s in views.evidence.sources]
    top = mine.sort("lost_ns", "number", "start_ns", descending=[True, False, False])
    found = []
    for row in top.head(MOST_ROWS).iter_rows(named=True):
        source = sources[row["number"]]
        said = f": {row['what']}" if row["what"] else ""
        found.append(
            EvidenceRow(
                source=paths[source] if source < len(paths) else "",
                row=None,
                what=f"{labels[row['number']]}{said} ({_seconds(row['lost_ns'])} lost)",
            )
        )
    return found


def _seconds(ns: int) -> str:
    return f"{ns / 1e9:,.1f} s" if ns >= 10**10 else f"{ns / 1e9:.3g} s"
