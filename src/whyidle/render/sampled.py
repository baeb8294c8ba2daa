"""The wording for the whole run, as samples or a hook saw it: what was busy, and when."""

from __future__ import annotations

from whyidle.diagnosis import Diagnosis
from whyidle.job_records import JobDevice, JobLedger
from whyidle.render.numerals import about, count, duration, percent
from whyidle.render.plain import clean, elide

_LEVELS = "▁▂▃▄▅▆▇█"
_UNKNOWN = "·"
_UUID = 12
_WORTH_SAYING = 0.1

_STEPS = "training_steps"
"""The meter of a training process whose steps a hook timed."""

_THREAD = "training_thread"
"""The meter of a training process whose stacks were sampled from outside."""

_PROCESSES = (_STEPS, _THREAD)


def _timed(job: JobLedger) -> list[JobDevice]:
    """The training processes among the devices; the others are sampled GPUs."""
    return [device for device in job.devices if device.meter in _PROCESSES]


def _from_outside(job: JobLedger) -> bool:
    """Whether the processes were watched from outside, where steps are not seen."""
    return any(device.meter == _THREAD for device in job.devices)


def noun(job: JobLedger) -> str:
    """What the devices of the ledger are."""
    timed = len(_timed(job))
    return "GPU" if not timed else "process" if timed == len(job.devices) else "device"


def title(job: JobLedger) -> str:
    """The heading of the whole run."""
    by = {"GPU": "samples saw", "process": "its hook timed", "device": "samples and its hook saw"}
    if _from_outside(job):
        return "The time it was watched"
    return f"The whole run, as {by[noun(job)]} it"


def name(device: JobDevice) -> str:
    """What to call a device: its machine, its index there, its rank where that is known."""
    parts = [clean(device.host)] if device.host else []
    if device.meter in _PROCESSES and device.rank is None:
        parts.append(
            "the training process" if device.process is None else f"process {device.process}"
        )
    elif device.device is not None:
        parts.append(f"GPU {device.device}")
    elif device.gpu:
        parts.append(elide(clean(device.gpu), _UUID))
    if device.rank is not None:
        parts.append(f"rank {device.rank}")
    return ", ".join(parts) or "a GPU"


def scope(job: JobLedger) -> str:
    """How many devices were watched, for how long, how often."""
    timed = _timed(job)
    gpus = [device for device in job.devices if device.meter not in _PROCESSES]
    found = []
    if gpus or not timed:
        longest = max((d.wall_s for d in gpus), default=job.wall_s)
        said = f"{count(len(gpus), 'GPU')} sampled for {duration(longest)}"
        usual = _usual(gpus)
        found.append(f"{said}, a reading every {duration(usual)}" if usual else said)
    if timed:
        longest = max(d.wall_s for d in timed)
        steps = f"{count(max(d.samples for d in timed), 'step')}"
        usual = _usual(timed)
        who = count(len(timed), "training process", "training processes")
        if _from_outside(job):
            often = f", a stack every {duration(usual)}" if usual else ""
            return "; ".join([*found, f"{who} watched for {duration(longest)}{often}"])
        found.append(
            f"{who} timed for {duration(longest)}, {steps}"
            + (f" of {duration(usual)} (median)" if usual else "")
        )
    return "; ".join(found)


def _usual(devices: list[JobDevice]) -> float | None:
    periods = sorted(d.period_s for d in devices if d.period_s > 0)
    return periods[len(periods) // 2] if periods else None


def _who(job: JobLedger) -> str:
    one, many = {
        "GPU": ("sampled GPU", "sampled GPUs"),
        "process": ("training process", "training processes"),
        "device": ("device", "sampled GPUs and training processes"),
    }[noun(job)]
    count_ = len(job.devices)
    return f"The {count_:,} {many} were" if count_ != 1 else f"The {one} was"


def sentence(job: JobLedger) -> str:
    """How busy the devices were and what was lost; every share is of their time together."""
    many = len(job.devices)
    who = _who(job)
    if job.wall_s <= 0:
        return f"{who} seen for no time at all."
    whole = duration(job.wall_s) + (" together" if many != 1 else "")
    lost = (
        f"{about(job.lost_s / job.wall_s)} was lost" if job.lost_s > 0 else "no rule found a loss"
    )
    said = f"{who} busy for {about(job.busy_s / job.wall_s)} of {whole}; {lost}."
    if job.unexplained_s >= _WORTH_SAYING * job.wall_s:
        idle = "it was idle" if many == 1 else "they were idle"
        said += f" For {about(job.unexplained_s / job.wall_s)} no rule knows why {idle}."
    if job.unknown_s > 0:
        why = "it is not known" if noun(job) == "process" else "there is no reading"
        said += f" For {about(job.unknown_s / job.wall_s)} {why}."
    return said


def meaning(job: JobLedger) -> str:
    """What busy means here."""
    meters = sorted(
        {clean(d.meter).replace("_", " ") for d in job.devices if d.meter not in _PROCESSES}
    )
    told = f" ({', '.join(meters)})" if meters else ""
    steps = "training steps, as the hook timed them, without what they waited for their loader"
    if _from_outside(job):
        steps = "its training thread, by its sampled stacks, was held up by nothing that is known"
    if noun(job) == "process":
        return f"Busy: {steps}. These seconds are apart from those of recorded steps."
    if noun(job) == "device":
        told += f"; of a process, {steps}"
    return (
        f"Busy: a sample saw any work on the GPU{told}; a GPU that is busy may still do little. "
        "Seconds of samples are coarse and apart from those of recorded steps."
    )


def strip(device: JobDevice, width: int) -> str:
    """How busy the GPU was over time, left to right; a dot where nothing is known."""
    shares = device.shares
    if not shares or width < 1:
        return ""
    cells = min(width, len(shares))
    found = []
    for i in range(cells):
        part = shares[i * len(shares) // cells : (i + 1) * len(shares) // cells]
        known = [share for share in part if share is not None]
        mean = sum(known) / len(known) if known else None
        found.append(_UNKNOWN if mean is None else _LEVELS[min(7, max(0, int(mean * 8)))])
    return "".join(found)


def worst(job: JobLedger, most: int) -> list[JobDevice]:
    """The GPUs that lost most of their time, or, where nothing was lost, were idle most."""

    def rank(device: JobDevice) -> tuple[float, float]:
        wall = device.wall_s or 1.0
        return -device.lost_s / wall, -device.idle_s / wall

    return sorted(job.devices, key=rank)[:most]


def shares(device: JobDevice) -> tuple[str, str, str]:
    """Busy, lost and unknown shares of a GPU's time."""
    wall = device.wall_s
    if wall <= 0:
        return "", "", ""
    return (
        percent(device.busy_s / wall),
        percent(device.lost_s / wall),
        percent(device.unknown_s / wall),
    )


def drawn(diagnosis: Diagnosis) -> JobLedger | None:
    """The job ledger, where it has anything to draw."""
    return diagnosis.job if diagnosis.job is not None and diagnosis.job.devices else None
