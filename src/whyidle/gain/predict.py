"""From changed replays to gains with an interval, and the plan of all of them together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from msgspec import structs

from whyidle.diagnosis import Finding, Gain, Plan, PlanStep, PredictedStep, Remedy, Replay
from whyidle.gain.effects import HIGH, LOW, MID, Change, changes, unchanged
from whyidle.gain.graph import Model
from whyidle.gain.marks import Marks
from whyidle.gain.replay import replayed

Reals = npt.NDArray[np.float64]

AT_ONCE = 24
"""Copies replayed in one pass; bounds memory at about 60 MB."""
LEAST_GAIN = 0.001
"""A remedy below this share of the step is left out of the plan."""
MOST_IN_PLAN = 12
SPORADIC = 0.01
"""A cause is sporadic when without it the mean step gains over twice what the median step does,
and this share more."""
UNTESTED_ERROR = 0.05
"""Error assumed where too few steps were recorded to test the replay."""


@dataclass(frozen=True)
class Replayable:
    """One device ready to be replayed: its model, what causes claimed, exposed communication.

    steps: recorded steps of the device in all; step_s: their median, as Device.step_s; mean_s: the
    mean of all of them.
    """

    model: Model
    marks: Mapping[str, Marks]
    exposed: Reals
    steps: int
    step_s: float
    mean_s: float


@dataclass(frozen=True)
class Predicted:
    """Findings with the gains of their remedies, the plan, and how good the replay is.

    ``reason`` tells why there is no gain at all; None where there is one.
    """

    findings: list[Finding]
    plan: Plan | None = None
    replay: Replay | None = None
    reason: str | None = None


@dataclass
class _Case:
    """One remedy that has a replayable effect."""

    finding: int
    remedy: int
    ends: list[Change]
    most_s: float  # what its cause lost per step: no gain is above it
    seconds: list[float] = field(default_factory=list)  # predicted step at HIGH, MID, LOW
    sporadic: bool = False  # strikes only some steps: told by the mean step


@dataclass(frozen=True)
class _Times:
    """Per copy, ns: the host's median step by its marks; the median and the mean step that last.

    A step lasts for the longer of the host's and the device's; both are for as many samples as
    before the change.
    """

    host: Reals
    median: Reals
    mean: Reals


def predict(
    found: Replayable | None, findings: Sequence[Finding], lost_s: Mapping[str, float]
) -> Predicted:
    """Predict the gain of every remedy of every finding, alone and together.

    ``lost_s``: seconds that each cause lost on the replayed device. Without a replayable device
    the findings come back as they are, with the reason.
    """
    if found is None:
        return Predicted(
            list(findings), reason="no gain is predicted: the evidence marks no training steps"
        )
    cases = _cases(found, findings, lost_s)
    same = unchanged(found.model)
    times = _times(found.model, [same, *(change for c in cases for change in c.ends)])
    carried_s = _constants_s(found.model, float(times.median[0]))
    tested = _tested(found.model, float(times.host[0]) / 1e9, carried_s)
    doubt = UNTESTED_ERROR if tested is None else abs(tested.error)
    if times.median[0] <= 0 or times.mean[0] <= 0:
        return Predicted(list(findings), None, tested)
    doubt += carried_s / (float(times.median[0]) / 1e9)
    median, mean = times.median / times.median[0], times.mean / times.mean[0]
    for number, case in enumerate(cases):
        here = slice(1 + 3 * number, 4 + 3 * number)
        case.sporadic = bool(1 - mean[here.start] > 2 * (1 - median[here.start]) + SPORADIC)
        shares = (mean if case.sporadic else median)[here].tolist()
        case.seconds = bounded(found.step_s, shares, _most(found, case), doubt)
    gains = {(c.finding, c.remedy): _gain(found.step_s, c.seconds) for c in cases}
    told = [_told(f, number, gains) for number, f in enumerate(findings)]
    return Predicted(told, _plan(found, times, cases, findings, doubt), tested)


def _most(found: Replayable, case: _Case) -> float:
    """The most that the step can gain: what was lost per step, in terms of the median step."""
    if not case.sporadic or found.mean_s <= 0:
        return case.most_s
    return case.most_s * min(found.step_s / found.mean_s, 1.0)


def bounded(step_s: float, shares: Sequence[float], most_s: float, doubt: float) -> list[float]:
    """Step seconds at the high, mid and low end of the gain, ordered and within what was lost.

    ``shares``: replayed step over replayed step of no change. The doubt (error of the replay and
    share of constants) widens the gain at both ends in proportion.
    """
    doubt = min(max(doubt, 0.0), 0.9)
    most = min(max(most_s, 0.0), step_s)
    high, mid, low = (min(max(step_s * (1.0 - share), 0.0), most) for share in shares)
    mid, low = min(mid, high), min(low, mid, high)
    high = min(high * (1.0 + doubt), most)
    return [step_s - high, step_s - mid, step_s - low * (1.0 - doubt)]


def _gain(step_s: float, seconds: Sequence[float]) -> Gain:
    """Low is the cautious end: the longest step and the smallest speed-up."""
    least = step_s * 1e-3  # a step never vanishes
    high, mid, low = (max(s, least) for s in seconds)
    return Gain(
        step_s_low=low, step_s_mid=mid, step_s_high=high, speedup_low=step_s / low,
        speedup_mid=step_s / mid, speedup_high=step_s / high,
    )  # fmt: skip


def _told(finding: Finding, number: int, gains: Mapping[tuple[int, int], Gain]) -> Finding:
    remedies = [
        structs.replace(remedy, gain=gains.get((number, place)))
        for place, remedy in enumerate(finding.remedies)
    ]
    return structs.replace(finding, remedies=remedies)


def _cases(
    found: Replayable, findings: Sequence[Finding], lost_s: Mapping[str, float]
) -> list[_Case]:
    cases = []
    for number, finding in enumerate(findings):
        lost = lost_s.get(finding.cause, 0.0)
        if finding.ledger != "window" or lost <= 0:
            continue
        marks = found.marks.get(finding.cause) or _spread(found, lost)
        for place, remedy in enumerate(finding.remedies):
            ends = changes(found.model, marks, remedy.effect)
            if ends is not None:
                cases.append(_Case(number, place, ends, lost / found.steps))
    return cases


def _spread(found: Replayable, lost_s: float) -> Marks:
    """A cause that was named across ranks: its seconds spread over communication alone."""
    exposed = found.exposed
    at = np.flatnonzero(exposed > 0)
    steps = found.model.count / found.steps
    part = min(lost_s * 1e9 * steps / max(float(exposed.sum()), 1.0), 1.0)
    none = np.zeros(0, dtype=np.intp)
    return Marks(none, none, np.zeros(0), at, exposed[at] * part, none, none, frozenset())


def _constants_s(model: Model, base_ns: float) -> float:
    """By how much the step would be shorter without what the graph has no reason for."""
    graph, constant, hosts = model.graph, model.constant, model.hosts
    to = graph.edges.to
    lags = np.where(to >= hosts, graph.edges.lag - constant[to], graph.edges.lag)
    lag = np.where(graph.calls_by >= 0, graph.calls_lag - constant, graph.calls_lag)
    bare = replace(
        graph,
        work=np.concatenate(
            [np.maximum(graph.work - constant, 0)[:hosts], (graph.work - constant)[hosts:]]
        ),
        calls_lag=np.where(graph.device, lag, graph.calls_lag),
        edges=replace(graph.edges, lag=lags),
    )
    without = float(_times(replace(model, graph=bare), [unchanged(model)]).median[0])
    return min(max(base_ns - without, 0.0), base_ns) / 1e9


def _tested(model: Model, seconds: float, constants_s: float) -> Replay | None:
    """The replay of no change; None where no step is left to learn from (fewer than three)."""
    if model.count < 3 or model.measured_s <= 0:
        return None
    return Replay(
        measured_step_s=model.measured_s,
        replayed_step_s=seconds,
        error=seconds / model.measured_s - 1.0,
        constants_s=constants_s,
    )


def begins(model: Model, many: Sequence[Change]) -> Reals:
    """Begin of every node in every copy, ns."""
    graph, hosts = model.graph, model.hosts
    keep = np.stack([c.keep * c.slower for c in many], axis=1)
    scale = np.stack([c.scale for c in many], axis=1)
    sooner = np.stack([c.sooner for c in many], axis=1)
    dropped = np.stack([c.dropped for c in many], axis=1)
    work = np.concatenate([graph.work[:hosts, None] * keep, graph.work[hosts:, None] * sooner])
    length = np.concatenate([np.zeros_like(keep), graph.length[hosts:, None] * scale])
    lag = np.concatenate([np.zeros_like(keep), graph.calls_lag[hosts:, None] * sooner])
    return replayed(graph, model.plan, work, length, lag, dropped)


def _host_ns(model: Model, begin: Reals) -> Reals:
    """Lengths of the interior steps by their marks: copies x steps."""
    took = begin[model.marks[:, 1]] - begin[model.marks[:, 0]]
    return np.asarray(took[model.interior()].T)


def _times(model: Model, many: Sequence[Change]) -> _Times:
    """The steps of every copy."""
    found: list[tuple[Reals, Reals, Reals]] = []
    for first in range(0, len(many), AT_ONCE):
        part = many[first : first + AT_ONCE]
        begin = begins(model, part)
        host, device = _host_ns(model, begin), _device_ns(model, begin, part)
        floors = np.array([c.floor_ns for c in part])
        per = np.array([c.per for c in part])
        usual = np.median(host, axis=1)
        median = np.maximum(np.maximum(usual, np.median(device, axis=1)), floors)
        mean = np.maximum(np.maximum(host.mean(axis=1), device.mean(axis=1)), floors)
        found.append((usual, median / per, mean / per))
    return _Times(*(np.concatenate(column) for column in zip(*found, strict=True)))


def _device_ns(model: Model, begin: Reals, many: Sequence[Change]) -> Reals:
    """From the device being done with one step to being done with the next: copies x steps.

    A host that runs ahead of the device has short steps only until its queue is full.
    """
    work = model.device_work
    if work.start.size == 0 or model.count < 3:
        return np.zeros((len(many), 1))
    scale = np.stack([c.scale for c in many], axis=1)
    end = begin[model.hosts :] + work.length[:, None] * scale
    done = np.full((model.count, len(many)), -np.inf)
    inside = np.flatnonzero((work.step >= 0) & (work.step < model.count))
    np.maximum.at(done, work.step[inside], end[inside])
    known = np.isfinite(done)  # a step without device work is never done
    between = np.diff(np.where(known, done, 0.0), axis=0)
    between[~(known[1:] & known[:-1])] = 0.0
    between = between[: -1 if model.count >= 4 else None]
    return np.asarray(between.T)


def _plan(
    found: Replayable, base: _Times, cases: list[_Case], findings: Sequence[Finding], doubt: float
) -> Plan | None:
    """The best remedy of each cause, safe ones first, replayed together; never added up."""
    chosen = sorted(_best(cases, findings), key=lambda c: (c.seconds[MID], c.finding))
    chosen = [c for c in chosen if found.step_s - c.seconds[MID] > LEAST_GAIN * found.step_s]
    chosen = chosen[:MOST_IN_PLAN]
    if not chosen:
        return None
    many = [_together(chosen[: n + 1], MID) for n in range(len(chosen))]
    many += [_together(chosen, HIGH), _together(chosen, LOW)]
    told = _times(found.model, many)
    by_mean = any(case.sporadic for case in chosen)
    times = told.mean / base.mean[0] if by_mean else told.median / base.median[0]
    raw = [float(t) for t in (times[-2], times[-3], times[-1])]
    most = sum(_most(found, case) for case in chosen)
    seconds = bounded(found.step_s, raw, most, doubt)
    best = [min(case.seconds[end] for case in chosen) for end in (HIGH, MID, LOW)]
    seconds = [min(pair) for pair in zip(seconds, best, strict=True)]  # never below the best alone
    order = _marginal(times[:-2], chosen)
    return Plan(
        remedies=[
            PlanStep(cause=findings[c.finding].cause, what=_remedy(findings, c).what) for c in order
        ],
        step_s=found.step_s,
        predicted=PredictedStep(low=seconds[LOW], mid=seconds[MID], high=seconds[HIGH]),
    )


def _together(cases: Sequence[_Case], end: int) -> Change:
    whole = cases[0].ends[end]
    for case in cases[1:]:
        whole = whole.with_(case.ends[end])
    return whole


def _best(cases: list[_Case], findings: Sequence[Finding]) -> list[_Case]:
    """Per finding one case: the largest mid gain among safe remedies, else among all."""
    best: dict[int, _Case] = {}
    for case in cases:
        if not case.seconds:
            continue
        held = best.get(case.finding)
        if held is None or _rank(case, findings) < _rank(held, findings):
            best[case.finding] = case
    return list(best.values())


def _rank(case: _Case, findings: Sequence[Finding]) -> tuple[bool, float, int]:
    return (not _remedy(findings, case).safe, case.seconds[MID], case.remedy)


def _remedy(findings: Sequence[Finding], case: _Case) -> Remedy:
    return findings[case.finding].remedies[case.remedy]


def _marginal(times: Reals, chosen: list[_Case]) -> list[_Case]:
    """In order of what each adds to those before it; the first stays first."""
    adds = -np.diff(times)
    order = np.argsort(-adds, kind="stable")
    return [chosen[0], *(chosen[1 + i] for i in order.tolist())]
