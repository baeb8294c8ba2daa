"""What was seen of a watched job, as one diagnosis: seconds, findings, signs, and blind spots."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from whyidle import __version__
from whyidle.causes import Cause, all_causes
from whyidle.diagnosis import (
    Crashed,
    Diagnosis,
    Environment,
    EvidenceRow,
    Finding,
    NotJudged,
    Source,
    Where,
    Window,
)
from whyidle.job_records import JobLedger
from whyidle.model import Facts
from whyidle.observe.attach_doing import CAUSES, STALLS, WORDS
from whyidle.observe.attach_gpus import Gpu, gpu_of_each, holds_gpu
from whyidle.observe.attach_job import Watched, Worker
from whyidle.observe.attach_late import LATE
from whyidle.observe.attach_ledger import Account, Place, accounts_of, ledger_of
from whyidle.observe.attach_shares import share_of
from whyidle.observe.attach_signs import signs
from whyidle.observe.attach_words import notes
from whyidle.render.numerals import percent

MOST_PLACES = 8
MOST_ROWS = 5
LEAST_SHARE = 0.003
"""A stall that took less of the time than this is left to the JSON's ledger."""

RECORD = "whyidle run -- python train.py (starts the job anew, with hooks and a profile)"


def judged(watched: Watched, gpus: Sequence[Gpu], on: dict[int, set[str]]) -> Diagnosis:
    """The diagnosis; its ``job`` is None where neither stacks nor GPUs could be read."""
    pids = [trainer.pid for trainer in watched.trainers]
    accounts = accounts_of(watched.trainers, gpu_of_each(pids, gpus, on))
    with_gpu = bool(on.keys() & set(pids)) or any(holds_gpu(pid) for pid in pids)
    ledger = ledger_of(accounts, watched.stacks.rate)
    findings, crashed = _findings(accounts, ledger, watched)
    seen = sum(1 for trainer in watched.trainers if trainer.pieces)
    observed = signs(watched)
    told = {f.cause for f in findings} | {o.cause for o in observed}
    return Diagnosis(
        whyidle=__version__,
        sources=[
            Source(
                path=f"process {watched.root.pid} ({watched.root.name})",
                reader="attach",
                rank=None,
                events=watched.stacks.samples or len(watched.usages),
            )
        ],
        window=Window(
            origin_ns=str(watched.start_ns),
            start_ns=0,
            end_ns=watched.end_ns - watched.start_ns,
            steps=None,
        ),
        devices=[],
        ledger=[],
        job=ledger,
        findings=findings,
        observations=observed,
        environment=Environment(
            world_size=len(watched.trainers) or None, backend=None, versions={}, flags={}
        ),
        not_judged=_not_judged(told | (set(CAUSES.values()) if seen else set())),
        crashed=crashed,
        notes=notes(watched, with_gpu=with_gpu, metered=any(a.gpu for a in accounts)),
    )


def _not_judged(judged: set[str]) -> list[NotJudged]:
    """Every cause that nothing seen from outside can show."""
    missing = ["profiled steps: from outside neither kernels nor steps can be seen"]
    return [
        NotJudged(cause=cause, missing=missing, record_with=RECORD)
        for cause in all_causes()
        if cause not in judged
    ]


def _findings(
    accounts: Sequence[Account], ledger: JobLedger | None, watched: Watched
) -> tuple[list[Finding], list[Crashed]]:
    found: list[Finding] = []
    crashed: list[Crashed] = []
    causes = all_causes()
    for activity in STALLS:
        lost_s = sum(account.lost_to(activity) for account in accounts) / 1e9
        cause = causes.get(CAUSES[activity])
        if ledger is None or cause is None or lost_s < LEAST_SHARE * ledger.wall_s:
            continue
        finding = _finding(cause, activity, lost_s, accounts, ledger, watched)
        try:
            remedies = cause.remedies(finding, Facts())
            finding = msgspec.structs.replace(finding, remedies=remedies)
        except Exception as error:  # noqa: BLE001  a cause that breaks must not cost the report
            text = " ".join(str(error).split())
            crashed.append(Crashed(cause=cause.id, error=f"{type(error).__name__}: {text}"[:300]))
        found.append(finding)
    return sorted(found, key=lambda f: (-f.lost_s, f.cause)), crashed


def _finding(
    cause: Cause, activity: str, lost_s: float, accounts: Sequence[Account], ledger: JobLedger,
    watched: Watched,
) -> Finding:  # fmt: skip
    places = sorted(
        (
            (ns, place, account)
            for account in accounts
            for place, ns in account.lost.items()
            if place[0] == activity
        ),
        key=lambda row: -row[0],
    )
    where = [_where(ns, place, account) for ns, place, account in places]
    if activity == "loader":
        where = sorted(_by_workers(where, accounts) or where, key=lambda w: -w.lost_s)
    return Finding(
        cause=cause.id,
        reason=cause.reason,
        title=cause.title,
        ledger="job",
        lost_s=lost_s,
        share=lost_s / ledger.wall_s if ledger.wall_s > 0 else 0.0,
        job_cost_s=None,
        contested_s=0.0,
        level="deduced",
        status=cause.status,
        where=where[:MOST_PLACES],
        evidence=_evidence(activity, accounts, watched),
        remedies=[],
    )


def _where(ns: float, place: Place, account: Account) -> Where:
    activity, file, line, op = place
    late = re.match(r"rank (\d+) ", op) if activity == LATE else None
    return Where(
        file=file,
        line=line,
        op=op,
        thread=f"main thread of process {account.trainer.pid}",
        rank=int(late[1]) if late else account.trainer.rank,
        device=account.gpu.index if account.gpu else None,
        lost_s=ns / 1e9,
        gpu=account.gpu.uuid if account.gpu else None,
    )


def _by_workers(where: list[Where], accounts: Sequence[Account]) -> list[Where]:
    """Where loader workers spent their time while a rank waited for them, if their stacks tell."""
    found = []
    for account in accounts:
        waited = account.lost_to("loader") / 1e9
        sums: dict[tuple[str, int], float] = {}
        for worker in account.trainer.workers:
            for doing, ns in worker.lines.items():
                if doing.file is not None and doing.line is not None:
                    key = (doing.file, doing.line)
                    sums[key] = sums.get(key, 0.0) + ns
        whole = sum(sums.values())
        if not whole or not _worked(account.trainer.workers):
            found += [w for w in where if w.rank == account.trainer.rank and _of(w, account)]
            continue
        found += [
            Where(
                file=file,
                line=line,
                op=None,
                thread=f"loader workers of process {account.trainer.pid}",
                rank=account.trainer.rank,
                device=account.gpu.index if account.gpu else None,
                lost_s=waited * ns / whole,
                gpu=account.gpu.uuid if account.gpu else None,
            )
            for (file, line), ns in sums.items()
        ]
    return found


def _of(where: Where, account: Account) -> bool:
    return where.thread == f"main thread of process {account.trainer.pid}"


def _worked(workers: Sequence[Worker]) -> bool:
    """Whether workers made batches for most of the time: then they are what is waited for."""
    seen = sum(worker.seen_ns for worker in workers)
    return seen > 0 and sum(worker.working_ns for worker in workers) >= 0.5 * seen


def _evidence(activity: str, accounts: Sequence[Account], watched: Watched) -> list[EvidenceRow]:
    rows = []
    for account in sorted(accounts, key=lambda a: -a.lost_to(activity))[:MOST_ROWS]:
        trainer, rate = account.trainer, watched.stacks.rate
        share = share_of(trainer.pieces, activity, rate)
        if share.mid == 0:
            continue
        who = f"rank {trainer.rank}" if trainer.rank is not None else f"process {trainer.pid}"
        rows.append(
            EvidenceRow(
                source=f"stacks of process {trainer.pid}",
                row=None,
                what=f"{who}: {WORDS[activity]} for {percent(share.mid)} of its time "
                f"({percent(share.low)} to {percent(share.high)}, 95% interval) in "
                f"{round(trainer.seen_ns / 1e9 * rate):,} samples of its main thread",
            )
        )
    return rows
