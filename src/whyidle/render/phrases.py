"""The wording that every report shares, for a reader who knows no profiling jargon.

Text from the evidence (operator names, paths) passes ``plain.clean`` first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath

from whyidle.diagnosis import Crashed, Device, Diagnosis, Finding, Remedy, Where
from whyidle.render import sampled
from whyidle.render.numerals import about, count, duration, percent
from whyidle.render.plain import SHORTEST, clean, clean_block, elide

LEVELS = {
    "seen": "seen: the recording shows it directly",
    "deduced": "deduced: it follows from what was recorded around it",
    "suspected": "suspected: check before you act on it",
}
"""What each level of certainty means."""

MEANINGS = {
    "useful": "the device was computing and no rule found that work wasteful",
    "lost": "a rule names what kept the device from useful work",
    "unexplained": "the device was not computing, and no rule knows why",
    "unrecorded": "likely work that the recorder dropped; not counted as lost",
}
"""What each part of the time means."""

ON_CPU = {
    "useful": "operators were running and no rule found that work wasteful",
    "lost": "a rule names what kept operators from running",
    "unexplained": "no operator was running, and no rule knows why",
}
"""What they mean for a run without a GPU, where that differs."""


def meanings(diagnosis: Diagnosis) -> dict[str, str]:
    """What each part of the time means in this diagnosis."""
    return MEANINGS | ON_CPU if on_cpu(diagnosis) else MEANINGS


_SMALL = 0.05
_WORTH_SAYING = 0.01


def on_cpu(diagnosis: Diagnosis) -> bool:
    """Whether the run used no GPU as far as was recorded."""
    return bool(diagnosis.devices) and all(d.device == "cpu" for d in diagnosis.devices)


def device_name(rank: int | None, device: int | str) -> str:
    """``GPU 0``, ``rank 3, GPU 1`` or ``CPU``."""
    name = "CPU" if device == "cpu" else f"GPU {clean(str(device))}"
    return name if rank is None else f"rank {rank}, {name}"


def distinct(devices: Iterable[Device]) -> list[Device]:
    """One record per device; a device that was recorded several times has several."""
    return list({(d.rank, d.device): d for d in devices}.values())


def hardware(devices: Iterable[Device]) -> str:
    """The kinds of device, with how many: ``8 x NVIDIA H100``; empty when no name is known."""
    names = Counter(clean(d.name) for d in distinct(devices) if d.name)
    return ", ".join(name if n == 1 else f"{n:,} x {name}" for name, n in names.items())


def source_names(diagnosis: Diagnosis) -> str:
    """The file that was read, or the first of them and how many more."""
    names = [clean(PurePath(source.path).name or source.path) for source in diagnosis.sources]
    if not names:
        return "no evidence"
    return names[0] if len(names) == 1 else f"{names[0]} and {count(len(names) - 1, 'more file')}"


def median_step(devices: Iterable[Device]) -> str | None:
    """The median step, as a range when devices differ; None when no step was marked."""
    steps = sorted(d.step_s for d in devices if d.step_s is not None)
    if not steps:
        return None
    low, high = duration(steps[0]), duration(steps[-1])
    return low if low == high else f"{low} to {high}"


def scope(diagnosis: Diagnosis) -> str:
    """What was judged, in a few words: devices, seconds, steps."""
    judged = diagnosis.devices
    if not judged:
        return sampled.scope(diagnosis.job) if diagnosis.job else "no device time recorded"
    parts = [hardware(judged)]
    several = distinct(judged)
    if len(several) > 1 and not all(d.name for d in judged):
        one, many = ("CPU process", "CPU processes") if on_cpu(diagnosis) else ("GPU", "GPUs")
        parts.append(count(len(several), one, many))
    parts.append(f"{duration(recorded_s(diagnosis))} recorded")
    if diagnosis.window.steps:
        step = median_step(judged)
        steps = count(diagnosis.window.steps, "step") + (f" of {step}" if step else "")
        parts.append(steps + (" (median)" if step and diagnosis.window.steps > 1 else ""))
    return " · ".join(part for part in parts if part)


def recorded_s(diagnosis: Diagnosis) -> float:
    """Seconds that were recorded: the widest window, or the sum where one device has several."""
    if len(distinct(diagnosis.devices)) == len(diagnosis.devices):
        return (diagnosis.window.end_ns - diagnosis.window.start_ns) / 1e9
    sums: defaultdict[tuple[int | None, int | str], float] = defaultdict(float)
    for device in diagnosis.devices:
        sums[device.rank, device.device] += device.wall_s
    return max(sums.values())


def headline(diagnosis: Diagnosis) -> str:
    """What a person should take home: how much was useful, and the biggest loss."""
    return " ".join(sentences(diagnosis))


def sentences(diagnosis: Diagnosis) -> list[str]:
    """The headline, sentence by sentence; the first one stands alone."""
    wall = diagnosis.wall_s
    if wall <= 0:
        return _untimed_sentences(diagnosis)
    found = [_useful_sentence(diagnosis)]
    found += _unrecorded_sentence(diagnosis.unrecorded_s / wall)
    found += _biggest_sentence(diagnosis)
    found += _job_sentence(diagnosis)
    rest = (diagnosis.unexplained_s - diagnosis.unrecorded_s) / wall
    if rest >= 2 * _SMALL:
        found.append(f"For {about(rest)} of the time no rule knows the reason.")
    return found


def _untimed_sentences(diagnosis: Diagnosis) -> list[str]:
    """The headline where no device was recorded: the whole run, signs, or that there is nothing."""
    found = [sampled.sentence(diagnosis.job)] if diagnosis.job else []
    found += _job_sentence(diagnosis)
    signs = diagnosis.observations
    if signs:
        was, it = ("was", "it") if len(signs) == 1 else ("were", "they")
        found.append(
            f"{count(len(signs), 'sign')} of trouble {was} seen; no device time was recorded, so "
            f"what {it} cost is not known."
        )
        found.append(f"The first: “{clean(signs[0].title)}”.")
    if not found and any(source.events for source in diagnosis.sources):
        said = "the evidence holds no device time, so no seconds could be judged"
        return [f"No sign of trouble was seen; {said}."]
    return found or ["Nothing could be judged: the evidence holds no device time."]


def _useful_sentence(diagnosis: Diagnosis) -> str:
    wall = diagnosis.wall_s
    useful, lost = about(diagnosis.useful_s / wall), _lost_clause(diagnosis)
    many = len(distinct(diagnosis.devices))
    if on_cpu(diagnosis):
        who = "No GPU was recorded. The CPU" + ("" if many == 1 else " processes")
    else:
        who = "The GPU" if many == 1 else f"The {many:,} GPUs"
    whose = "" if many == 1 else " together"
    return f"{who} did useful work for {useful} of {duration(wall)}{whose}; {lost}."


def _lost_clause(diagnosis: Diagnosis) -> str:
    share = diagnosis.lost_s / diagnosis.wall_s
    unsure = sum(
        finding.share
        for finding in diagnosis.findings
        if finding.ledger == "window" and finding.level == "suspected"
    )
    if share == 0:
        return "no rule found a loss"
    if unsure >= share - 1e-9:
        return f"{about(share)} may be lost"
    doubt = f" ({about(unsure)} only suspected)" if unsure >= _WORTH_SAYING else ""
    return f"{about(share)} was lost{doubt}"


def _unrecorded_sentence(share: float) -> list[str]:
    if share < _WORTH_SAYING:
        return []
    return [
        f"Another {about(share)} looks empty but is likely work that the recorder dropped, "
        "so it does not count as lost."
    ]


def _biggest_sentence(diagnosis: Diagnosis) -> list[str]:
    biggest = next((f for f in diagnosis.findings if f.ledger == "window"), None)
    if biggest is None:
        return []
    name, share = clean(biggest.title), about(biggest.share)
    if biggest.share < _SMALL:
        return [f"No single cause is large; the largest is “{name}” with {share}."]
    each = per_step(biggest, diagnosis)
    cost = f"{share} of the time" + (f", {duration(each)} per step" if each else "")
    start = "The biggest loss may be" if biggest.level == "suspected" else "The biggest loss is"
    return [f"{start} “{name}”: {cost}."]


def _job_sentence(diagnosis: Diagnosis) -> list[str]:
    biggest = next((f for f in diagnosis.findings if f.ledger == "job"), None)
    if biggest is None or biggest.share < _SMALL:
        return []
    return [f"Of the whole run, {about(biggest.share)} went to “{clean(biggest.title)}”."]


def per_step(finding: Finding, diagnosis: Diagnosis) -> float | None:
    """Seconds lost per recorded step of one device, on average; None where steps are unknown."""
    if finding.ledger != "window" or not diagnosis.devices:
        return None
    steps = [len(d.steps) for d in diagnosis.devices]
    known = all(steps) and all(d.step_s is not None for d in diagnosis.devices)
    return finding.lost_s / sum(steps) if known else None


def cost(finding: Finding, diagnosis: Diagnosis) -> str:
    """What a finding cost: ``33.4% · 65 ms per step``; seconds in all where steps are unknown."""
    if finding.ledger == "job":
        whole = f" of {duration(diagnosis.job.wall_s)}" if diagnosis.job else ""
        return f"{percent(finding.share)} of the whole run · {duration(finding.lost_s)}{whole}"
    each = per_step(finding, diagnosis)
    size = duration(finding.lost_s) if each is None else f"{duration(each)} per step"
    return f"{percent(finding.share)} · {size}"


def place(where: Where, *, ranks: bool) -> str:
    """One place in words; ``ranks`` tells whether the run has several, so that naming one helps."""
    file = None
    if where.file:
        file = clean(where.file) + (f":{where.line}" if where.line is not None else "")
    parts = [" in ".join(p for p in (file, clean(where.op) if where.op else None) if p)]
    if where.thread and not parts[0]:
        parts.append(f"thread {clean(where.thread)}")
    if where.host:
        parts.append(clean(where.host))
    if ranks and where.rank is not None:
        parts.append(f"rank {where.rank}")
    if where.gpu and where.device is None:
        parts.append(f"GPU {elide(clean(where.gpu), SHORTEST)}")
    if (ranks or where.host) and where.rank is None and where.device is not None:
        parts.append(device_name(None, where.device))
    return ", ".join(part for part in parts if part)


def places(finding: Finding, diagnosis: Diagnosis) -> list[tuple[str, float]]:
    """The places of a finding with the seconds lost at each, largest first; unnamed ones left."""
    ranks = len(diagnosis.devices) > 1
    found: dict[str, float] = {}
    for where in finding.where:
        name = place(where, ranks=ranks)
        if name:
            found[name] = found.get(name, 0.0) + where.lost_s
    return sorted(found.items(), key=lambda item: -item[1])


def caution(remedy: Remedy) -> str | None:
    """Why a remedy may change results; None for a safe one."""
    return None if remedy.safe else f"not safe for every job: {clean(remedy.why_safe)}"


def lacking(group: Recording, most: int) -> str:
    """What a recording would show, as much of it as fits in ``most`` characters."""
    names = list(group.missing)
    said = "; ".join(names)
    while len(said) > most and len(names) > 1:
        names = names[:-1]
        said = f"{'; '.join(names)} and {len(group.missing) - len(names)} more"
    return elide(said, most) or "a recording"


@dataclass(frozen=True)
class Recording:
    """One recording that would let more causes be judged."""

    missing: tuple[str, ...]
    record_with: str
    causes: tuple[str, ...]


def recordings(diagnosis: Diagnosis) -> list[Recording]:
    """What was not judged, grouped by the command that records it; most causes first."""
    groups: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for entry in diagnosis.not_judged:
        missing, causes = groups.setdefault(clean_block(entry.record_with), ({}, {}))
        missing.update(dict.fromkeys(clean(item) for item in entry.missing))
        causes[clean(entry.cause)] = None
    found = [Recording(tuple(m), how, tuple(c)) for how, (m, c) in groups.items()]
    return sorted(found, key=lambda group: -len(group.causes))


def crash(entry: Crashed) -> str:
    """One line on a cause that failed."""
    return f"{clean(entry.cause)} failed and was left out: {clean(entry.error)}"
