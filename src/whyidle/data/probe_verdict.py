"""Which cause comes first: each is priced by the model, and the largest gain leads."""

from __future__ import annotations

from typing import Any

import msgspec

from whyidle.data import predict
from whyidle.data.predict import Costs, Rate
from whyidle.data.probe_causes import LAST, NORMAL, Seen, Suspect, Way, suspects
from whyidle.data.probe_record import Probe
from whyidle.diagnosis import EvidenceRow, Finding, Gain, Remedy, Where

REASON = 2
LEAST_GAIN = 1.05
ENOUGH_BUSY = 0.98


def with_findings(
    made: Probe, costs: Costs | None, place: tuple[str, int] | None, load: dict[str, Any]
) -> Probe:
    """The same record with its findings, first cause first.

    A cause counts when what helps against it gains at least LEAST_GAIN with the workers that the
    loader has, or, where nobody chose a number, with one per CPU. Nothing but what endangers the
    job counts where the loader keeps up with the step.
    """
    if costs is None or not made.rates:
        return made
    workers = made.workers if made.workers is not None else max(round(made.limits.cpus), 1)
    seen = Seen(made, costs, place, int(load.get("prefetch", 2)), workers)
    now = _rate(seen, costs, workers)
    keeps_up = made.step_s is not None and _busy(made, now) >= ENOUGH_BUSY
    ranked: list[tuple[int, float, Finding]] = []
    for suspect in suspects(seen):
        finding, gain = _finding(seen, suspect, now)
        if suspect.rank and (gain < LEAST_GAIN or keeps_up):
            continue
        ranked.append((suspect.rank, -gain, finding))
    if not any(rank == NORMAL for rank, _, _ in ranked):
        ranked = [(min(rank, NORMAL) if rank == LAST else rank, g, f) for rank, g, f in ranked]
    findings = [finding for _, _, finding in sorted(ranked, key=lambda one: one[:2])]
    notes = list(made.notes)
    if keeps_up and made.step_s is not None:
        notes.append(
            f"with {workers} workers the loader keeps up with a step of {made.step_s * 1e3:g} ms: "
            "it is not the limit"
        )
    return msgspec.structs.replace(made, findings=findings, notes=notes)


def _rate(seen: Seen, costs: Costs, workers: int) -> Rate:
    """The rate with so many workers: measured where it was, for the costs that were measured."""
    if costs is seen.costs:
        for one in seen.probe.rates:
            if one.workers == workers:
                return Rate(workers, one.rate, one.low, one.high, one.bound, one.measured)
    return predict.rate(costs, workers)


def _busy(made: Probe, now: Rate) -> float:
    assert made.step_s is not None
    return predict.busy(now, made.batch_size, made.step_s)


def _finding(seen: Seen, suspect: Suspect, now: Rate) -> tuple[Finding, float]:
    """The record of one cause, and the rate with its best remedy over that of now."""
    remedies, gain = [], 1.0
    for way in suspect.ways:
        after = _after(seen, way, now)
        remedies.append(_remedy(seen, way, now, after))
        if after is not None:
            gain = max(gain, after.rate / now.rate)
    batch = seen.probe.batch_size
    lost_s = batch / now.rate * (1 - 1 / gain)
    file, line = suspect.place or (None, None)
    finding = Finding(
        cause=suspect.cause, reason=REASON, title=suspect.title, ledger="window",
        lost_s=lost_s, share=1 - 1 / gain, job_cost_s=None, contested_s=0.0,
        level=suspect.level, status="preview",
        where=[
            Where(
                file=file, line=line, op=suspect.stage, thread=None, rank=None, device=None,
                lost_s=lost_s,
            )
        ] if file or suspect.stage else [],
        evidence=[EvidenceRow(source=seen.probe.spec, row=None, what=one) for one in suspect.told],
        remedies=remedies,
    )  # fmt: skip
    return finding, gain


def _after(seen: Seen, way: Way, now: Rate) -> Rate | None:
    """The rate with a remedy, by what the model says of it over what it says of now."""
    if way.after is None:
        return None
    workers = now.workers if way.workers is None else way.workers
    if way.after is seen.costs:
        return _rate(seen, way.after, workers)
    found = predict.rate(way.after, workers)
    modelled = predict.rate(seen.costs, now.workers)
    scale = now.rate / modelled.rate
    return Rate(workers, found.rate * scale, found.low * scale, found.high * scale, found.bound)


def _remedy(seen: Seen, way: Way, now: Rate, after: Rate | None) -> Remedy:
    effect: dict[str, Any] = {}
    gain = None
    if after is not None:
        effect = {
            "samples_per_s": after.rate, "samples_per_s_low": after.low,
            "samples_per_s_high": after.high, "workers": after.workers,
        }  # fmt: skip
        if seen.probe.step_s is not None:
            effect["busy"] = predict.busy(after, seen.probe.batch_size, seen.probe.step_s)
        batch = seen.probe.batch_size
        gain = Gain(
            step_s_low=batch / after.low, step_s_mid=batch / after.rate,
            step_s_high=batch / after.high, speedup_low=after.low / now.rate,
            speedup_mid=after.rate / now.rate, speedup_high=after.high / now.rate,
        )  # fmt: skip
    return Remedy(
        what=way.what,
        how=way.how,
        safe=way.safe,
        why_safe=way.why_safe,
        effect=effect,
        gain=gain,
        prove=f"whyidle data probe {seen.probe.spec} again; whyidle prove on the training",
    )
