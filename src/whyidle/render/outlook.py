"""The wording for what a change would bring, what it cost the job, and what was seen besides."""

from __future__ import annotations

from whyidle.diagnosis import Device, Diagnosis, Finding, Observation, Place, Remedy
from whyidle.render.numerals import count, duration, percent, speedup
from whyidle.render.phrases import device_name, distinct, on_cpu
from whyidle.render.plain import SHORTEST, clean, elide

CROWD = 16
"""Devices beyond which only the worst are listed one by one."""

_LONGEST_SPOT = 200

HOW_PREDICTED = (
    "Predicted by replaying the recorded step with the change. Gains of several changes do not "
    "add up: what one takes away may be all that another one could have saved."
)
"""What a predicted gain rests on."""


def gain(remedy: Remedy) -> str | None:
    """The predicted step and speed-up with their intervals; None when none was predicted."""
    found = remedy.gain
    if found is None:
        return None
    low, high = sorted((found.step_s_low, found.step_s_high))
    now, then = duration(found.step_s_mid * found.speedup_mid), duration(found.step_s_mid)
    between = f"{duration(low)} to {duration(high)}"
    faster = speedup(found.speedup_low, found.speedup_high)
    return f"step {now} → {then} ({between}), {found.speedup_mid:.2f}x ({faster})"


def replay_error(diagnosis: Diagnosis) -> str | None:
    """How far the replay without a change is off, for beside a gain; None without a replay."""
    if diagnosis.replay is None:
        return None
    return f"replay {percent(abs(diagnosis.replay.error))} off"


def replay(diagnosis: Diagnosis) -> str | None:
    """How well the replay of no change meets the measured step, and what it cannot explain."""
    found = diagnosis.replay
    if found is None:
        return None
    measured, replayed = duration(found.measured_step_s), duration(found.replayed_step_s)
    said = f"Replayed without a change: {replayed}; measured: {measured}"
    if found.constants_s > 0:
        said += f"; carried along unexplained: {duration(found.constants_s)}"
    return said + "."


def no_gain(diagnosis: Diagnosis) -> str | None:
    """Why nothing is predicted; None where something is, or where nothing was found."""
    if not diagnosis.no_gain or not diagnosis.devices or not diagnosis.findings:
        return None
    return elide(clean(diagnosis.no_gain), 400)


def plan(diagnosis: Diagnosis) -> str | None:
    """What all changes together bring; None without a plan."""
    found = diagnosis.plan
    if found is None or not found.remedies:
        return None
    low, high = sorted((found.predicted.low, found.predicted.high))
    said = (
        f"step {duration(found.step_s)} → {duration(found.predicted.mid)} "
        f"({duration(low)} to {duration(high)})"
    )
    if min(low, found.predicted.mid) <= 0:
        return said
    faster = speedup(found.step_s / high, found.step_s / low)
    return f"{said}, {found.step_s / found.predicted.mid:.2f}x ({faster})"


def plan_title(diagnosis: Diagnosis) -> str:
    """The heading of the plan."""
    many = len(diagnosis.plan.remedies) if diagnosis.plan else 0
    return "All together" if many > 1 else "With this change"


def job_cost(finding: Finding, diagnosis: Diagnosis) -> str | None:
    """What a finding cost the job once, however many devices waited; None when not known."""
    if finding.job_cost_s is None:
        return None
    said = f"costs the job {duration(finding.job_cost_s)} once"
    many = len(distinct(diagnosis.devices))
    if many > 1:
        said += f"; {many:,} devices lose {duration(finding.lost_s)} by it together"
    return said


def signs_title(diagnosis: Diagnosis) -> str:
    """The heading of the observations."""
    return "Seen besides" if diagnosis.findings else "What was seen"


def spot(place: Place) -> str:
    """Where something was observed, in words; empty when nothing is known."""
    parts = []
    if place.host:
        parts.append(clean(place.host))
    if place.rank is not None:
        parts.append(f"rank {place.rank}")
    if place.device is not None:
        parts.append(device_name(None, place.device))
    elif place.gpu:
        parts.append(f"GPU {elide(clean(place.gpu), SHORTEST)}")
    if place.file:
        parts.append(clean(place.file) + (f":{place.line}" if place.line is not None else ""))
    if place.op:
        parts.append(clean(place.op))
    return elide(", ".join(parts), _LONGEST_SPOT)


def spots(found: Observation, most: int) -> str:
    """The places of an observation, the first few by name."""
    names = list(dict.fromkeys(name for name in map(spot, found.where) if name))
    left = len(names) - most
    more = f" and {count(left, 'more place')}" if left > 0 else ""
    return "; ".join(names[:most]) + more


def certainty(found: Finding | Observation) -> str:
    """Level and, for a new rule, that it is one."""
    return found.level + (", preview" if found.status == "preview" else "")


def worst(diagnosis: Diagnosis, most: int) -> list[Device]:
    """The devices that lost the largest share, largest first."""
    return sorted(diagnosis.devices, key=lambda d: -_share(d.lost_s, d))[:most]


def crowd(diagnosis: Diagnosis) -> str | None:
    """Several devices in one sentence: the median and the two ends; None for a single one."""
    judged = [d for d in diagnosis.devices if d.wall_s > 0]
    if len(judged) < 2:
        return None
    ranked = sorted(judged, key=lambda d: _share(d.useful_s, d))
    least, middle, most = ranked[0], ranked[len(ranked) // 2], ranked[-1]
    one, many = ("CPU process", "CPU processes") if on_cpu(diagnosis) else ("device", "devices")
    said = (
        f"{count(len(distinct(judged)), one, many)}: useful {_useful(middle)} in the median, "
        f"{_useful(least)} at the least ({device_name(least.rank, least.device)}), "
        f"{_useful(most)} at the most ({device_name(most.rank, most.device)})"
    )
    steps = sorted((d for d in judged if d.step_s is not None), key=lambda d: d.step_s or 0.0)
    if steps:
        middle_s, slowest = steps[len(steps) // 2].step_s, steps[-1]
        said += f"; a step takes {duration(middle_s or 0.0)} in the median"
        if slowest.step_s is not None and duration(slowest.step_s) != duration(middle_s or 0.0):
            name = device_name(slowest.rank, slowest.device)
            said += f" and {duration(slowest.step_s)} at the most ({name})"
    return said + "."


def _useful(device: Device) -> str:
    return percent(_share(device.useful_s, device))


def _share(part_s: float, device: Device) -> float:
    return part_s / device.wall_s if device.wall_s > 0 else 0.0
