"""Builders of records for the made-up diagnoses; they keep the law of the ledger."""

from __future__ import annotations

from whyidle.diagnosis import (
    REASONS,
    Device,
    Diagnosis,
    Finding,
    LedgerRow,
    Level,
    Remedy,
    Source,
    Step,
    Where,
    Window,
)
from whyidle.job_records import JobDevice, JobLedger, JobRow

MS = 1_000_000
ORIGIN_NS = "1623142623461234567"

Loss = tuple[str, str, float]  # cause, state, seconds


def where(lost_s: float, **known: object) -> Where:
    blank: dict[str, object] = dict.fromkeys(("file", "line", "op", "thread", "rank", "device"))
    return Where(**{**blank, **known}, lost_s=lost_s)  # type: ignore[arg-type]


def remedy(what: str, how: str, **more: object) -> Remedy:
    rest: dict[str, object] = {
        "safe": True,
        "why_safe": "The batches and their order stay the same.",
        "effect": {"shrink": "loader"},
        "prove": "whyidle compare before.json after.json",
    }
    return Remedy(what=what, how=how, **{**rest, **more})  # type: ignore[arg-type]


def device(
    losses: list[Loss],
    *,
    compute_s: float,
    communication_s: float = 0.0,
    copy_s: float = 0.0,
    empty_s: float,
    unrecorded_s: float = 0.0,
    steps: int,
    rank: int | None = None,
    index: int | str = 0,
    name: str | None = "Tesla V100-DGXS-32GB",
) -> Device:
    wall_s = compute_s + communication_s + copy_s + empty_s
    in_compute = sum(s for _, state, s in losses if state == "compute")
    lost_s = sum(s for _, _, s in losses)
    end_ns = round(wall_s * 1e9)
    each = end_ns // steps if steps else 0
    return Device(
        rank=rank,
        device=index,
        name=name,
        sms=80 if name else None,
        start_ns=0,
        end_ns=end_ns,
        wall_s=wall_s,
        compute_s=compute_s,
        communication_s=communication_s,
        copy_s=copy_s,
        empty_s=empty_s,
        useful_s=compute_s - in_compute,
        lost_s=lost_s,
        unexplained_s=communication_s + copy_s + empty_s - (lost_s - in_compute),
        unrecorded_s=unrecorded_s,
        steps=[Step(number=i, start_ns=i * each, end_ns=(i + 1) * each) for i in range(steps)],
        step_s=each / 1e9 if steps else None,
    )


def rows(judged: Device, losses: list[Loss]) -> list[LedgerRow]:
    return [
        LedgerRow(
            rank=judged.rank,
            device=judged.device,
            cause=cause,
            state=state,  # type: ignore[arg-type]
            lost_s=lost_s,
            share=lost_s / judged.wall_s,
        )
        for cause, state, lost_s in losses
    ]


def finding(
    cause: str, title: str, lost_s: float, wall_s: float, level: Level, **more: object
) -> Finding:
    rest: dict[str, object] = {
        "ledger": "window",
        "job_cost_s": None,
        "contested_s": 0.0,
        "status": "stable",
        "where": [],
        "evidence": [],
        "remedies": [],
        "reason": REASONS.get(cause.partition(".")[0], 7),
    }
    return Finding(
        cause=cause,
        title=title,
        lost_s=lost_s,
        share=lost_s / wall_s,
        level=level,
        **{**rest, **more},  # type: ignore[arg-type]
    )


def diagnosis(devices: list[Device], ledger: list[LedgerRow], **more: object) -> Diagnosis:
    steps = max((len(d.steps) for d in devices), default=0)
    rest: dict[str, object] = {
        "sources": [],
        "findings": [],
        "window": Window(
            origin_ns=ORIGIN_NS,
            start_ns=0,
            end_ns=max((d.end_ns for d in devices), default=0),
            steps=steps or None,
        ),
    }
    return Diagnosis(whyidle="0.1.0", devices=devices, ledger=ledger, **{**rest, **more})


def job_of(
    gpus: list[tuple[float, float, float]],
    cause: str,
    *,
    shares: list[float | None],
    host: str = "node7",
) -> JobLedger:
    """A job ledger of GPUs given as (wall seconds, busy share, seconds lost)."""
    devices, ledger = [], []
    for index, (wall_s, busy, lost_s) in enumerate(gpus):
        idle_s = wall_s * (1 - busy) * 0.9
        busy_s, unknown_s = wall_s * busy, wall_s - wall_s * busy - idle_s
        unexplained_s = max(0.0, idle_s - lost_s)
        devices.append(
            JobDevice(
                host=host, gpu=f"GPU-3f1c2d4e-{index}", device=index, rank=None, matched=None,
                name="NVIDIA A100-SXM4-80GB", meter="gpu_utilization", start_ns=None, end_ns=None,
                wall_s=wall_s, busy_s=busy_s, idle_s=idle_s, unknown_s=unknown_s,
                useful_s=wall_s - unknown_s - lost_s - unexplained_s, lost_s=lost_s,
                unexplained_s=unexplained_s, samples=int(wall_s), period_s=1.0, shares=shares,
            )
        )  # fmt: skip
        if lost_s:
            ledger.append(
                JobRow(
                    host=host, gpu=f"GPU-3f1c2d4e-{index}", device=index, rank=None, cause=cause,
                    state="idle", lost_s=lost_s, share=lost_s / wall_s,
                )
            )  # fmt: skip
    names = ("wall_s", "busy_s", "idle_s", "unknown_s", "useful_s", "lost_s", "unexplained_s")
    sums = {name: sum(getattr(d, name) for d in devices) for name in names}
    return JobLedger(devices=devices, ledger=ledger, **sums)


def one_source(name: str, *notes: str, rank: int | None = None, events: int = 75_000) -> Source:
    return Source(
        path=f"runs/{name}", reader="torch_trace", rank=rank, events=events, notes=[*notes]
    )
