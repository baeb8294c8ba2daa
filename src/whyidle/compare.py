"""Two diagnoses side by side: what changed, and whether it is more than noise between steps.

Everything is per step and device where both sides have steps, so that runs of different length
and different numbers of GPUs can be compared; else it is by share of wall time, and then nothing
can be told from noise. The first and last step of a recording are left out, as elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

from whyidle import __version__, noise
from whyidle.compare_kernels import kernel_lines
from whyidle.comparison import (
    Comparison,
    Difference,
    How,
    Line,
    SeenBy,
    Side,
    SignLine,
    StepTime,
    Unit,
    Verdict,
)
from whyidle.diagnosis import REASONS, Diagnosis, Observation, StepCost
from whyidle.job_records import JobLedger

WORTH = 0.001
"""Share of a step, or of wall time, below which a line on both sides is not listed."""

_STATES = {
    "useful": "useful work",
    "compute": "computing",
    "communication": "only communicating",
    "copy": "only copying memory",
    "empty": "nothing to do",
    "unexplained": "not explained by any cause",
}


def compare(before: Diagnosis, after: Diagnosis, names: tuple[str, str]) -> Comparison:
    """The comparison of two diagnoses; ``names`` are what the user calls them."""
    unit: Unit = "step" if _stepped(before) and _stepped(after) else "share"
    step = _step_time(before, after) if unit == "step" else None
    costs = _table(before, unit), _table(after, unit)
    causes = _causes(before, after, costs)
    kernels = kernel_lines(before, after, unit) if before.kernels and after.kernels else None
    differences = list(_differences(before, after))
    return Comparison(
        whyidle=__version__,
        before=_side(before, names[0]),
        after=_side(after, names[1]),
        unit=unit,
        alpha=noise.ALPHA,
        same=_facts(before) == _facts(after),
        step=step,
        causes=causes,
        states=_states(costs),
        kernels=kernels,
        signs=_signs(before, after),
        differences=differences,
        notes=_notes(before, after, unit, step),
    )


def _stepped(diagnosis: Diagnosis) -> bool:
    """Whether there are steps to compare, and they last."""
    steps = interior(diagnosis)
    return bool(steps) and median(steps) > 0


def _timed(diagnosis: Diagnosis) -> bool:
    """Whether any time of a device is known; dumps and snapshots alone have none."""
    return diagnosis.wall_s > 0 or diagnosis.recorded_s > 0


def _facts(diagnosis: Diagnosis) -> tuple[object, ...]:
    return (
        diagnosis.devices, diagnosis.ledger, diagnosis.step_costs, diagnosis.kernels,
        diagnosis.environment, diagnosis.not_judged, diagnosis.job, diagnosis.observations,
    )  # fmt: skip


def interior(diagnosis: Diagnosis) -> list[float]:
    """Seconds of each interior step, as the mean over devices, recording by recording."""
    if diagnosis.step_costs:
        return [cost.step_s for cost in _interior_costs(diagnosis)]
    recorded: dict[tuple[int, int], list[float]] = {}
    seen: dict[tuple[int | None, int | str], int] = {}
    for device in diagnosis.devices:
        recording = seen.get((device.rank, device.device), 0)
        seen[device.rank, device.device] = recording + 1
        kept = device.steps[1:-1] if len(device.steps) >= 4 else device.steps
        for step in kept:
            took = (step.end_ns - step.start_ns) / 1e9
            recorded.setdefault((recording, step.number), []).append(took)
    return [fmean(values) for _, values in sorted(recorded.items())]


def _interior_costs(diagnosis: Diagnosis) -> list[StepCost]:
    groups: dict[int, list[StepCost]] = {}
    for cost in diagnosis.step_costs:
        groups.setdefault(cost.recording, []).append(cost)
    return [c for g in groups.values() for c in (g[1:-1] if len(g) >= 4 else g)]


def _side(diagnosis: Diagnosis, name: str) -> Side:
    steps = interior(diagnosis)
    devices: dict[object, str | None] = {(d.rank, d.device): d.name for d in diagnosis.devices}
    wall_s = diagnosis.wall_s
    seen_by: SeenBy = "trace" if diagnosis.devices else "neither"
    if not devices and diagnosis.job is not None:
        seen_by = "samples"
        devices = {(d.host, d.gpu, d.device): d.name for d in diagnosis.job.devices}
        wall_s = diagnosis.job.wall_s
    hardware: dict[str, int] = {}
    for kind in devices.values():
        if kind:
            hardware[kind] = hardware.get(kind, 0) + 1
    return Side(
        name=name,
        whyidle=diagnosis.whyidle,
        devices=len(devices),
        hardware=hardware,
        wall_s=wall_s,
        steps=len(steps),
        step_s=median(steps) if steps else None,
        shortest_s=min(steps) if steps else None,
        longest_s=max(steps) if steps else None,
        seen_by=seen_by,
    )


def _step_time(before: Diagnosis, after: Diagnosis) -> StepTime:
    a, b = interior(before), interior(after)
    old, new = median(a), median(b)
    bounds = noise.ratio(a, b)
    return StepTime(
        before_s=old,
        after_s=new,
        ratio=new / old,
        ratio_low=bounds.low if bounds else None,
        ratio_high=bounds.high if bounds else None,
        how=how(old, new),
        verdict=settled(noise.verdict(a, b), old, new),
        before=a,
        after=b,
    )


def how(before: float, after: float) -> How:
    """The change in a word."""
    if before == after:
        return "same"
    if before == 0:
        return "appeared"
    if after == 0:
        return "vanished"
    return "grew" if after > before else "shrank"


def settled(verdict: Verdict, before: float, after: float) -> Verdict:
    """The verdict, but for equal figures: no difference is never more than noise."""
    return "within noise" if before == after else verdict


class _Costs:
    """Per line (cause or state) its values: one per interior step, or a single one in all."""

    def __init__(self, base: float) -> None:
        self.base = base
        self.causes: dict[str, list[float]] = {}
        self.states: dict[str, list[float]] = {}
        self.zeros: list[float] = []


def _table(diagnosis: Diagnosis, unit: Unit) -> _Costs:
    """The lines of one side. Without a table of steps there is one value per line: the mean."""
    if unit == "step" and diagnosis.step_costs:
        costs = _interior_costs(diagnosis)
        found = _Costs(fmean(c.step_s for c in costs))
        found.zeros = [0.0] * len(costs)
        for cause in sorted({cause for c in costs for cause in c.lost_s}):
            found.causes[cause] = [c.lost_s.get(cause, 0.0) for c in costs]
        for name in _STATES:
            found.states[name] = [getattr(c, f"{name}_s") for c in costs]
        return found
    if unit == "share" and not diagnosis.devices and diagnosis.job is not None:
        return _sampled(diagnosis.job)
    wall = diagnosis.wall_s
    base = fmean(interior(diagnosis)) if unit == "step" else 1.0
    if not _timed(diagnosis):
        return _Costs(base)
    scale = base / wall if wall > 0 else 0.0
    found = _Costs(base)
    found.zeros = [0.0]
    sums: dict[str, float] = {}
    for row in diagnosis.ledger:
        sums[row.cause] = sums.get(row.cause, 0.0) + row.lost_s
    found.causes = {cause: [lost * scale] for cause, lost in sorted(sums.items())}
    for name in _STATES:
        found.states[name] = [sum(getattr(d, f"{name}_s") for d in diagnosis.devices) * scale]
    return found


def _sampled(job: JobLedger) -> _Costs:
    """The lines of a run that only samples saw, as shares of the time with readings."""
    known = job.wall_s - job.unknown_s
    found = _Costs(1.0)
    found.zeros = [0.0]
    if known <= 0:
        return found
    sums: dict[str, float] = {}
    for row in job.ledger:
        sums[row.cause] = sums.get(row.cause, 0.0) + row.lost_s
    found.causes = {cause: [lost / known] for cause, lost in sorted(sums.items())}
    parts = {"useful": job.useful_s, "empty": job.idle_s, "unexplained": job.unexplained_s}
    found.states = {name: [seconds / known] for name, seconds in parts.items()}
    return found


def _causes(before: Diagnosis, after: Diagnosis, costs: tuple[_Costs, _Costs]) -> list[Line]:
    """One line per cause that lost anything worth telling, largest change first."""
    old, new = costs
    titles = {f.cause: f.title for d in (after, before) for f in d.findings}
    names = [
        cause
        for cause in dict.fromkeys([*old.causes, *new.causes])
        if _worth(old.causes.get(cause, []), old.base)
        or _worth(new.causes.get(cause, []), new.base)
    ]
    blind = [{n.cause for n in d.not_judged} for d in (before, after)]
    blind = [b if _timed(d) else set(names) for b, d in zip(blind, (before, after), strict=True)]
    pairs = [(old.causes.get(c, old.zeros), new.causes.get(c, new.zeros)) for c in names]
    judged = [i for i, c in enumerate(names) if not any(c in side for side in blind)]
    told = dict(zip(judged, noise.verdicts([pairs[i] for i in judged]), strict=True))
    lines = []
    for i, cause in enumerate(names):
        unseen = next((w for w, side in zip(_WHEN, blind, strict=True) if cause in side), None)
        title = titles.get(cause) or cause
        reason = REASONS.get(cause.partition(".")[0])
        if unseen is None:
            lines.append(_line(cause, title, reason, pairs[i], told[i]))
        else:
            lines.append(_half_line(cause, title, reason, pairs[i], unseen))
    return sorted(lines, key=_size)


_WHEN = ("before", "after")


def _worth(values: Sequence[float], base: float) -> bool:
    return bool(values) and fmean(values) >= WORTH * base


def _size(line: Line) -> tuple[bool, float, str]:
    """Sure changes first, then by size."""
    change = line.change if line.change is not None else (line.after or 0) - (line.before or 0)
    return line.verdict != "more than noise", -abs(change), line.what


def _line(
    what: str,
    title: str,
    reason: int | None,
    pair: tuple[Sequence[float], Sequence[float]],
    verdict: Verdict,
) -> Line:
    old, new = fmean(pair[0]), fmean(pair[1])
    bounds = noise.difference(*pair)
    return Line(
        what=what,
        title=title,
        reason=reason,
        before=old,
        after=new,
        change=new - old,
        low=bounds.low if bounds else None,
        high=bounds.high if bounds else None,
        how=how(old, new),
        verdict=settled(verdict, old, new),
        note=None,
    )


def _half_line(
    what: str,
    title: str,
    reason: int | None,
    pair: tuple[Sequence[float], Sequence[float]],
    unseen: str,
) -> Line:
    """A cause that one side could not be judged for: no change can be stated."""
    return Line(
        what=what,
        title=title,
        reason=reason,
        before=None if unseen == "before" else fmean(pair[0]),
        after=None if unseen == "after" else fmean(pair[1]),
        change=None,
        low=None,
        high=None,
        how=None,
        verdict="cannot tell",
        note=f"not judged {unseen}: its recording does not show it",
    )


def _states(costs: tuple[_Costs, _Costs]) -> list[Line]:
    old, new = costs
    names = [name for name in _STATES if name in old.states and name in new.states]
    pairs = [(old.states[name], new.states[name]) for name in names]
    found = noise.verdicts(pairs)
    return [
        _line(name, _STATES[name], None, pair, verdict)
        for name, pair, verdict in zip(names, pairs, found, strict=True)
    ]


def _signs(before: Diagnosis, after: Diagnosis) -> list[SignLine]:
    """What was seen without seconds, cause by cause; those that differ first."""
    sides = [
        {
            cause: " ".join(dict.fromkeys(o.what for o in group))
            for cause, group in _by_cause(d).items()
        }
        for d in (before, after)
    ]
    titles = {o.cause: o.title for d in (before, after) for o in d.observations}
    lines = [
        SignLine(
            cause=cause, title=titles[cause], before=sides[0].get(cause), after=sides[1].get(cause)
        )
        for cause in dict.fromkeys([*sides[0], *sides[1]])
    ]
    return sorted(lines, key=lambda line: line.before == line.after)


def _by_cause(diagnosis: Diagnosis) -> dict[str, list[Observation]]:
    found: dict[str, list[Observation]] = {}
    for observation in diagnosis.observations:
        found.setdefault(observation.cause, []).append(observation)
    return found


def _differences(before: Diagnosis, after: Diagnosis) -> list[Difference]:
    """What differs about the machine, the software and the recording."""
    sides = [_traits(before), _traits(after)]
    return [
        Difference(what=what, before=sides[0].get(what), after=sides[1].get(what))
        for what in dict.fromkeys([*sides[0], *sides[1]])
        if sides[0].get(what) != sides[1].get(what)
    ]


def _traits(diagnosis: Diagnosis) -> dict[str, str]:
    devices = {(d.rank, d.device): d for d in diagnosis.devices}.values()
    found: dict[str, str] = {"devices": str(len(devices))}
    names = sorted({d.name for d in devices if d.name})
    if names:
        found["GPU"] = ", ".join(names)
    sms = sorted({d.sms for d in devices if d.sms})
    if sms:
        found["multiprocessors"] = ", ".join(map(str, sms))
    told = diagnosis.environment
    if told is not None:
        known = {"world size": told.world_size, "backend": told.backend}
        found |= {what: str(value) for what, value in known.items() if value is not None}
        found |= {f"version of {what}": value for what, value in sorted(told.versions.items())}
        found |= {f"flag {what}": value for what, value in sorted(told.flags.items())}
    found["readers"] = ", ".join(sorted({s.reader for s in diagnosis.sources}))
    found["whyidle"] = diagnosis.whyidle
    return found


def _without_steps(before: Diagnosis, after: Diagnosis) -> str:
    told = [bool(d.devices) for d in (before, after)]
    lack = [w for w, d in zip(_WHEN, (before, after), strict=True) if not interior(d)]
    said = f"No steps were marked {' and '.join(lack)}, so shares of wall time are compared, and "
    if told[0] != told[1]:
        traced = _WHEN[told.index(True)]
        return (
            f"Only the run {traced} has a trace; the other one was seen by samples or dumps alone. "
            "Their figures are not alike, so read them apart."
        )
    how = "Record profiler traces of marked steps to tell."
    if all(told):
        how = "Call profiler.step() once per step to mark them."
    return f"{said}noise between steps is not known. {how}"


def _notes(before: Diagnosis, after: Diagnosis, unit: Unit, step: StepTime | None) -> list[str]:
    found = []
    if unit == "share":
        found.append(_without_steps(before, after))
    elif step is not None and step.verdict == "cannot tell":
        found.append(
            f"{len(step.before)} and {len(step.after)} interior steps are too few to tell a change "
            "from noise. Record at least 6 steps of each run: 4 remain without first and last."
        )
    elif not before.step_costs or not after.step_costs:
        found.append(
            "A saved diagnosis holds no table of steps, so causes are compared without noise. "
            "Diagnose its evidence again."
        )
    for when, diagnosis in zip(_WHEN, (before, after), strict=True):
        if diagnosis.wall_s > 0 and diagnosis.unrecorded_s > 0.05 * diagnosis.wall_s:
            share = diagnosis.unrecorded_s / diagnosis.wall_s
            found.append(f"{share:.0%} of the wall time {when} was likely not recorded.")
    counts = [len({(d.rank, d.device) for d in side.devices}) for side in (before, after)]
    if counts[0] != counts[1]:
        found.append(
            f"{counts[0]} against {counts[1]} devices: all figures are means over devices."
        )
    return found
