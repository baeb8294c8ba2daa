"""What one batch of ranks leaves behind, and how such leavings become one diagnosis.

A job of many ranks is judged in two moves, so that memory does not grow with the spans of all
ranks: ``partial_of`` reads everything out of the evidence of a batch of ranks that the answer can
need and lets the spans go; ``merged`` aligns clocks, finds who waited for whom, and writes the
diagnosis from the small tables alone. ``diagnose`` is the same with one batch.

What may be split: ranks. All files of one rank, and everything that is not a trace (dumps of a
flight recorder, samples, settings, memory snapshots), belong into one batch each, since causes look
at them together. The order of the batches changes nothing but the order of the sources.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import polars as pl

from whyidle import __version__
from whyidle.causes import Cause, all_causes, broken_causes
from whyidle.diagnosis import Crashed, Diagnosis, Finding, LedgerRow, NotJudged, Observation
from whyidle.gain import Predicted, Replayable, lost_on, predict, replayable
from whyidle.harvest import gathered
from whyidle.job import judged_job
from whyidle.leavings import Partial, together
from whyidle.ledger import Ledger, settle
from whyidle.model import CLAIMS, Evidence, frame
from whyidle.peers import Settled, settled_across_ranks
from whyidle.per_step import kernel_costs, losses_alone, step_costs
from whyidle.summary import devices, environment, finding_of, ledger_rows, sources, window
from whyidle.timeline import recoloured, timeline
from whyidle.views import Views
from whyidle.views.needs import PEERS, missing
from whyidle.views.sites import at_sites
from whyidle.views.windows import Steps

__all__ = ["Partial", "merged", "partial_of"]


def partial_of(evidence: Evidence, *, steps: Steps | None = None) -> Partial:
    """Judge a batch of ranks, each on its own; what it says of waiting is said by ``merged``.

    ``steps`` (A, B) narrows the window to recorded steps A up to, not including, B.
    Raises NothingRecorded when there is nothing to judge, UsageError for steps that do not exist.
    """
    views = Views(evidence, steps)
    views.check()
    claims, not_judged, crashed = _claims(views)
    observations, unseen, broken = _observations(views)
    ledger = settle(claims, views.states)
    drawn, worst = timeline(ledger, views)
    model, unfit = _replayable(views, ledger)
    return Partial(
        origin_ns=views.origin_ns,
        end_ns=views.end_ns,
        **gathered(ledger, views),
        wanted_s=ledger.wanted_s,
        judged=tuple(claims),
        not_judged=tuple(not_judged + unseen),
        crashed=tuple(crashed + broken + unfit),
        observations=tuple(observations),
        notes=tuple(views.notes),
        sources=evidence.sources,
        facts=evidence.facts,
        timeline=drawn,
        worst_lost=worst,
        job=judged_job(views),
        replayable=model,
    )


def merged(partials: Sequence[Partial]) -> Diagnosis:
    """One diagnosis of a job from what its batches left behind.

    Raises EvidenceConflict when two batches hold the same device at the same time.
    """
    job = together(partials)
    reasons = {reason: c.id for c in all_causes().values() for reason in c.waits}
    settled = settled_across_ranks(job, reasons)
    job = settled.job
    found, failed = _findings(settled)
    rows = ledger_rows(job)
    gains, unfit = _gains(job, found, rows)
    return Diagnosis(
        whyidle=__version__,
        sources=sources(job),
        window=window(job),
        devices=devices(job),
        ledger=rows,
        job=job.job.ledger if job.job else None,
        findings=[*gains.findings, *(job.job.findings if job.job else ())],
        observations=list(job.observations),
        plan=gains.plan,
        replay=gains.replay,
        no_gain=gains.reason,
        timeline=recoloured(job, settled.alone),
        step_costs=step_costs(
            job.step_states,
            job.step_losses,
            losses_alone(settled.alone, job.step_states, job.windows),
            job.windows,
        ),
        kernels=kernel_costs(job.kernel_steps, job.step_states, job.windows),
        environment=environment(job),
        not_judged=_unseen(job, _alone(settled)),
        crashed=[*job.crashed, *failed, *unfit, *(job.job.crashed if job.job else ())],
        notes=list(job.notes),
    )


def _claims(views: Views) -> tuple[dict[str, pl.DataFrame], list[NotJudged], list[Crashed]]:
    """Ask every cause; one that lacks evidence or raises costs its own line only."""
    claims: dict[str, pl.DataFrame] = {}
    not_judged: list[NotJudged] = []
    crashed = [Crashed(cause=name, error=error) for name, error in broken_causes().items()]
    for cause in (c for c in all_causes().values() if c.can_claim):
        try:
            lacking = missing(views, cause.needs)
            if lacking:
                not_judged.append(
                    _unfed(cause, [n.missing for n in lacking], lacking[0].record_with)
                )
            else:
                told = frame(CLAIMS, cause.claims(views))
                claims[cause.id] = at_sites(told, views.sites, cause.sites)
        except Exception as error:  # noqa: BLE001  a cause that breaks must not cost the report
            crashed.append(Crashed(cause=cause.id, error=_one_line(error)))
    return claims, not_judged, crashed


def _observations(views: Views) -> tuple[list[Observation], list[NotJudged], list[Crashed]]:
    """Signs without seconds. A cause that also claims says what it lacks in _claims only."""
    found: list[Observation] = []
    unseen: list[NotJudged] = []
    crashed: list[Crashed] = []
    for cause in (c for c in all_causes().values() if c.can_observe):
        try:
            lacking = missing(views, cause.observes)
            if not lacking:
                found += cause.observations(views)
            elif not cause.can_claim:
                unseen.append(_unfed(cause, [n.missing for n in lacking], lacking[0].record_with))
        except Exception as error:  # noqa: BLE001  as above
            crashed.append(Crashed(cause=cause.id, error=_one_line(error)))
    return found, unseen, crashed


def _unfed(cause: Cause, what: list[str], record_with: str) -> NotJudged:
    return NotJudged(cause=cause.id, missing=what, record_with=record_with)


def _unseen(job: Partial, more: list[NotJudged]) -> list[NotJudged]:
    """What was judged neither in the window nor in the job."""
    said = job.job
    lines = [*job.not_judged, *more, *(said.not_judged if said else ())]
    return [line for line in lines if said is None or line.cause not in said.judged]


def _alone(settled: Settled) -> list[NotJudged]:
    """The causes that stand for waiting, where no collective was seen on two ranks."""
    if settled.met:
        return []
    return [
        _unfed(cause, [PEERS.missing], PEERS.record_with)
        for cause in all_causes().values()
        if cause.waits and not cause.can_claim
    ]


def _findings(settled: Settled) -> tuple[list[Finding], list[Crashed]]:
    """One finding per cause that won anything, largest first, with its remedies."""
    known = all_causes()
    job = settled.job
    found: list[Finding] = []
    crashed: list[Crashed] = []
    for name in job.losses["cause"].unique().sort().to_list():
        finding = finding_of(known[name], job, settled.job_cost_s.get(name))
        try:
            remedies = known[name].remedies(finding, job.facts)
            finding = msgspec.structs.replace(finding, remedies=remedies)
        except Exception as error:  # noqa: BLE001  as above
            crashed.append(Crashed(cause=name, error=_one_line(error)))
        found.append(finding)
    return sorted(found, key=lambda f: (-f.lost_s, f.cause)), crashed


def _replayable(views: Views, ledger: Ledger) -> tuple[Replayable | None, list[Crashed]]:
    """The device that lost most, laid out for replay."""
    try:
        return replayable(views, ledger), []
    except Exception as error:  # noqa: BLE001  a gain that cannot be told must not cost the report
        return None, [Crashed(cause="gain", error=_one_line(error))]


def _gains(
    job: Partial, found: list[Finding], rows: list[LedgerRow]
) -> tuple[Predicted, list[Crashed]]:
    """The findings with the gain of each remedy on the replayed device, and the plan."""
    try:
        return predict(job.replayable, found, lost_on(job.replayable, rows)), []
    except Exception as error:  # noqa: BLE001  as above
        return Predicted(found), [Crashed(cause="gain", error=_one_line(error))]


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:300]
