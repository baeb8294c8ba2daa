"""From changed replays to gains with an interval, and the plan of all of them together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from msgspec import structs

from whyidle.diagnosis import Finding, Gain, Plan, PlanStep, PredictedStep, Remedy, Replay
from whyidle.gain.competition import rest_slower
from whyidle.gain.effects import (
    HIGH,
    LOW,
    MID,
    Change,
    changes,
    removed_share,
    suggested_workers,
    unchanged,
)
from whyidle.gain.graph import Model
from whyidle.gain.marks import Marks
from whyidle.gain.replay import replayed
from whyidle.model import CPU_DEVICE

Reals = npt.NDArray[np.float64]

AT_ONCE = 24
"""Copies replayed in one pass; bounds memory at about 60 MB."""
LEAST_GAIN = 0.001
"""A remedy below this share of the step is left out of the plan."""
MOST_IN_PLAN = 12
SPORADIC = 0.01
"""A cause is sporadic when without it the mean step gains over twice what the median step does,
and this share more."""
OPERATORS_ARE_WORK = ("launches_as_graph", "launches_scaled", "kernels_scaled", "batch_scaled")
"""Effects whose gain on a run without a GPU is at most what their cause lost."""
NO_STEPS = "No gain is predicted: the evidence marks no training steps."
NO_TIME = "No gain is predicted: the replayed steps take no time."
NOT_ALONE = "No gain is predicted: no remedy here changes the step in a way that can be replayed."
ELSEWHERE = (
    "No gain is predicted: the device that is replayed, the one that lost most, lost nothing to "
    "these causes within its steps."
)
LEAST_DOUBT = 0.03
"""Error assumed at least: that of no change says little of a step that was never recorded."""
UNTESTED_ERROR = 0.05
"""Error assumed where too few steps were recorded to test the replay."""


@dataclass(frozen=True)
class Replayable:
    """One device ready to be replayed: its model, what causes claimed, exposed communication.

    steps: recorded steps of the device in all; step_s: their median, as Device.step_s; mean_s: the
    mean of all of them. cpus: those that each process of the job may use; None where not known.
    """

    model: Model
    marks: Mapping[str, Marks]
    exposed: Reals
    steps: int
    step_s: float
    mean_s: float
    cpus: float | None = None


@dataclass(frozen=True)
class Predicted:
    """Findings with the gains of their remedies, the plan, and how good the replay is.

    ``reason`` tells, as one sentence, why there is no gain at all; None where there is one, or
    nothing to gain from.
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
    most_s: float  # no gain is above it
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
        return Predicted(list(findings), reason=NO_STEPS)
    findings = [_with_workers(found, finding) for finding in findings]
    cases = _cases(found, findings, lost_s)
    same = unchanged(found.model)
    ends = [_packed(found.model, c.ends[end], end) for c in cases for end in (HIGH, MID, LOW)]
    times = _times(found.model, [same, *ends])
    base_ns, bare = float(times.median[0]), _bare(found.model)
    without_ns = float(_times(bare, [same]).median[0])
    constants_ns = min(max(base_ns - without_ns, 0.0), base_ns)
    tested = _tested(found.model, float(times.host[0]) / 1e9, constants_ns / 1e9)
    error = UNTESTED_ERROR if tested is None else max(abs(tested.error), LEAST_DOUBT)
    doubt = _Doubt(bare, error, base_ns, constants_ns)
    if times.median[0] <= 0 or times.mean[0] <= 0:
        return Predicted(list(findings), None, tested, NO_TIME)
    unsure = doubt.of(ends[::3], times.median[1::3])
    median, mean = times.median / times.median[0], times.mean / times.mean[0]
    for number, case in enumerate(cases):
        here = slice(1 + 3 * number, 4 + 3 * number)
        case.sporadic = bool(1 - mean[here.start] > 2 * (1 - median[here.start]) + SPORADIC)
        shares = (mean if case.sporadic else median)[here].tolist()
        case.seconds = bounded(found.step_s, shares, case.most_s, unsure[number])
    gains = {(c.finding, c.remedy): _gain(found.step_s, c.seconds) for c in cases}
    told = [_told(f, number, gains) for number, f in enumerate(findings)]
    reason = None if cases else _why_none(found, findings, lost_s)
    return Predicted(told, _plan(found, times, cases, findings, doubt), tested, reason)


def _why_none(
    found: Replayable, findings: Sequence[Finding], lost_s: Mapping[str, float]
) -> str | None:
    """Why no remedy of any finding has a gain; None where there is nothing to remedy."""
    timed = [f for f in findings if f.ledger == "window"]
    if not timed:
        return None
    return NOT_ALONE if any(lost_s.get(f.cause, 0.0) > 0 for f in timed) else ELSEWHERE


def _with_workers(found: Replayable, finding: Finding) -> Finding:
    """With the number of loader processes that keep up, in remedies that add some."""
    remedies = [_workers_told(found, remedy) for remedy in finding.remedies]
    return structs.replace(finding, remedies=remedies)


def _workers_told(found: Replayable, remedy: Remedy) -> Remedy:
    effect = remedy.effect
    whole = effect.get("kind") == "loader_wait_removed" and effect.get("share_removed", 1.0) == 1.0
    told = suggested_workers(found.model, found.cpus) if whole and "workers" not in effect else None
    if told is None:
        return remedy
    workers, load_s, rest_s = told
    cpus = {} if found.cpus is None else {"cpus": found.cpus}
    bound = "if there are as many cores" if found.cpus is None else f"of {found.cpus:g} CPUs"
    how = (
        f"{remedy.how} In this recording a batch took {1e3 * load_s:.3g} ms to build and the rest "
        f"of the step {1e3 * rest_s:.3g} ms: {workers} workers, {bound}."
    )
    return structs.replace(remedy, how=how, effect={**effect, "workers": workers, **cpus})


def _packed(model: Model, change: Change, end: int) -> Change:
    """The change, and what it does to the pace of the rest of the host's step."""
    slower = rest_slower(end, removed_share(model, change))
    worst = max(change.slower, slower)  # competing processes are the reason that is known
    return replace(change, slower=slower if change.slower <= 1 else worst)


def bounded(step_s: float, shares: Sequence[float], most_s: float, doubt: float) -> list[float]:
    """Step seconds at the high, mid and low end of the gain, ordered.

    ``shares``: replayed step over replayed step of no change. No end gains more than ``most_s``
    nor is longer than the step now. The doubt (error of the replay and share of the constants that
    the change leaves) widens both ends, in proportion to what is gained or what stays, whichever
    is less.
    """
    doubt = min(max(doubt, 0.0), 0.9)
    most = min(max(most_s, 0.0), step_s)
    high, mid, low = (min(max(step_s * (1.0 - share), 0.0), most) for share in shares)
    mid, low = min(mid, high), min(low, mid, high)
    high = min(high + doubt * min(high, step_s - high), most)
    low = max(low - doubt * min(low, step_s - low), 0.0)
    return [step_s - high, step_s - mid, step_s - low]


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
                most = _most_s(found, str(remedy.effect.get("kind")), lost)
                cases.append(_Case(number, place, ends, most))
    return cases


def _most_s(found: Replayable, kind: str, lost_s: float) -> float:
    """The most that the step can gain.

    On a device the replay itself keeps the work that stays. Without one, operators are both what
    hands work out and the work, so that what makes them fewer or smaller gains what was lost.
    """
    if found.model.device == CPU_DEVICE and kind in OPERATORS_ARE_WORK:
        return lost_s / found.steps
    return found.step_s


def _spread(found: Replayable, lost_s: float) -> Marks:
    """A cause that was named across ranks: its seconds spread over communication alone."""
    exposed = found.exposed
    at = np.flatnonzero(exposed > 0)
    steps = found.model.count / found.steps
    part = min(lost_s * 1e9 * steps / max(float(exposed.sum()), 1.0), 1.0)
    none = np.zeros(0, dtype=np.intp)
    return Marks(none, none, np.zeros(0), at, exposed[at] * part, none, none, frozenset())


def _bare(model: Model) -> Model:
    """The model without what the graph has no reason for."""
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
    return replace(model, graph=bare)


@dataclass(frozen=True)
class _Doubt:
    """How far a predicted step may be off: error of the replay, and constants that still count.

    ``constants_ns``: by how much the step of no change shrinks without them.
    """

    bare: Model
    error: float
    base_ns: float
    constants_ns: float

    def of(self, many: Sequence[Change], times_ns: Reals) -> list[float]:
        """Per change the doubt as a share, where its step takes so long with the constants.

        Constants count as far as they make the changed step longer, too.
        """
        if not many or self.constants_ns <= 0 or self.base_ns <= 0:
            return [self.error] * len(many)
        left_ns = times_ns - _times(self.bare, many).median
        bind = np.clip(left_ns / self.constants_ns, 0.0, 1.0)
        return list((self.error + bind * self.constants_ns / self.base_ns).tolist())


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
    found: Replayable,
    base: _Times,
    cases: list[_Case],
    findings: Sequence[Finding],
    doubt: _Doubt,
) -> Plan | None:
    """The best remedy of each cause, safe ones first, replayed together; never added up."""
    chosen = sorted(_best(cases, findings), key=lambda c: (c.seconds[MID], c.finding))
    chosen = [c for c in chosen if found.step_s - c.seconds[MID] > LEAST_GAIN * found.step_s]
    chosen = chosen[:MOST_IN_PLAN]
    if not chosen:
        return None
    firsts = [chosen[: n + 1] for n in range(len(chosen))]
    sets = [(part, MID) for part in firsts] + [(chosen, HIGH), (chosen, LOW)]
    many = [_packed(found.model, _together(part, end), end) for part, end in sets]
    told = _times(found.model, many)
    by_mean = any(case.sporadic for case in chosen)
    times = told.mean / base.mean[0] if by_mean else told.median / base.median[0]
    raw = [float(t) for t in (times[-2], times[-3], times[-1])]
    most = sum(case.most_s for case in chosen)
    (unsure,) = doubt.of([many[-2]], told.median[-2:-1])
    seconds = bounded(found.step_s, raw, most, unsure)
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
