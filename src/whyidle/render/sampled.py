"""The wording for the whole run as samples saw it: which GPUs were busy, and when."""

from __future__ import annotations

from whyidle.diagnosis import Diagnosis
from whyidle.job_records import JobDevice, JobLedger
from whyidle.render.numerals import about, count, duration, percent
from whyidle.render.plain import clean, elide

_LEVELS = "▁▂▃▄▅▆▇█"
_UNKNOWN = "·"
_UUID = 12
_WORTH_SAYING = 0.1


def name(device: JobDevice) -> str:
    """What to call a sampled GPU: its machine, its index there, its rank where that is known."""
    parts = [clean(device.host)] if device.host else []
    if device.device is not None:
        parts.append(f"GPU {device.device}")
    elif device.gpu:
        parts.append(elide(clean(device.gpu), _UUID))
    if device.rank is not None:
        parts.append(f"rank {device.rank}")
    return ", ".join(parts) or "a GPU"


def scope(job: JobLedger) -> str:
    """How many GPUs were sampled, for how long, how often."""
    longest = max((d.wall_s for d in job.devices), default=job.wall_s)
    found = f"{count(len(job.devices), 'GPU')} sampled for {duration(longest)}"
    periods = sorted(d.period_s for d in job.devices if d.period_s > 0)
    if periods:
        found += f", a reading every {duration(periods[len(periods) // 2])}"
    return found


def sentence(job: JobLedger) -> str:
    """How busy the GPUs were and what was lost; every share is of their time together."""
    many = len(job.devices)
    who = f"The {many:,} sampled GPUs were" if many != 1 else "The sampled GPU was"
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
        said += f" For {about(job.unknown_s / job.wall_s)} there is no reading."
    return said


def meaning(job: JobLedger) -> str:
    """What busy means here."""
    meters = sorted({clean(d.meter).replace("_", " ") for d in job.devices})
    told = f" ({', '.join(meters)})" if meters else ""
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
