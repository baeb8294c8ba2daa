"""Signs of trouble in a watched job that no seconds can be put on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from whyidle.causes import all_causes
from whyidle.diagnosis import EvidenceRow, Level, Observation, Place
from whyidle.observe.attach_doing import Doing
from whyidle.observe.attach_job import Trainer, Watched
from whyidle.observe.attach_shares import share_of
from whyidle.render.numerals import percent

LEAST_STAGE = 0.2
"""Part of the time of loading from which on a stage of it is worth telling."""

LEAST_HELD = 0.05
LEAST_DISK = 0.1
LEAST_WAIT = 0.05
LEAST_PYTHON = 0.2
NEARLY_ALL = 0.9
MOST_SPOTS = 3

STAGES = {
    "storage": ("data_loading.slow_storage", "reading files"),
    "tokens": ("data_loading.tokenise_on_the_fly", "tokenising"),
    "sample": ("data_loading.sample_work_too_heavy", "work on single samples"),
    "handover": ("data_loading.loader_ipc_overhead", "handing batches over"),
}


def signs(watched: Watched) -> list[Observation]:
    """All signs, the most telling first."""
    found = [*_stages(watched), *_cpus(watched), *_disk(watched), *_lines(watched)]
    return [sign for sign in found if sign is not None]


def _sign(
    cause: str, level: Level, what: str, where: Iterable[Place] = (), **source: Any
) -> Observation | None:
    known = all_causes().get(cause)
    if known is None:
        return None
    return Observation(
        cause=cause,
        reason=known.reason,
        title=known.title,
        level=level,
        status=known.status,
        what=what,
        where=list(where),
        evidence=[EvidenceRow(source=source.get("source", "/proc"), row=None, what=what)],
        remedies=[],
    )


def _stages(watched: Watched) -> list[Observation | None]:
    """Stages of loading, in the workers where there are some, else in the training threads."""
    took: dict[tuple[Doing, int | None], int] = {}
    workers = False
    for trainer in watched.trainers:
        for worker in trainer.workers:
            for doing, ns in worker.lines.items():
                workers = True
                took[doing, trainer.rank] = took.get((doing, trainer.rank), 0) + ns
    for trainer in watched.trainers if not workers else ():
        for piece in trainer.pieces:
            if piece.doing.activity == "loader":
                key = (piece.doing, trainer.rank)
                took[key] = took.get(key, 0) + piece.end_ns - piece.start_ns
    whole = sum(took.values())
    found = []
    for stage, (cause, words) in STAGES.items():
        mine = {key: ns for key, ns in took.items() if key[0].stage == stage}
        share = sum(mine.values()) / whole if whole else 0.0
        if share < LEAST_STAGE:
            continue
        who = "of what loader workers did" if workers else "of the wait for the loader"
        top = sorted(mine.items(), key=lambda item: -item[1])
        places = [Place(file=d.file, line=d.line, rank=rank) for (d, rank), _ in top]
        said = f"{percent(share)} {who}, by their sampled stacks, was {words}."
        distinct = list(dict.fromkeys(places))[:MOST_SPOTS]
        found.append(_sign(cause, "deduced", said, distinct, source="stacks"))
    return found


def _cpus(watched: Watched) -> list[Observation | None]:
    cause = "scheduling.cpu_allocation"
    found: list[Observation | None] = []
    held = ran = 0
    for pid, before in watched.before.items():
        after = watched.after.get(pid)
        if after is None or after.held is None or before.held is None:
            continue
        held = max(held, after.held - before.held)
        ran = max(ran, (after.periods or 0) - (before.periods or 0))
    if ran and held >= LEAST_HELD * ran:
        quota = next((lim.quota for lim in watched.before.values() if lim.quota), None)
        said = f" of {quota:g} CPUs" if quota else ""
        found.append(
            _sign(
                cause, "seen",
                f"The CPU quota{said} ran out in {percent(held / ran)} of its periods: the job was "
                "held back until the next one.",
            )
        )  # fmt: skip
    used = sum(usage.cpus or 0.0 for usage in watched.usages.values())
    allowed = [lim.quota or lim.cpus for lim in watched.before.values() if lim.cpus]
    most = max((value for value in allowed if value), default=None)
    if most and used >= NEARLY_ALL * most:
        found.append(
            _sign(cause, "seen", f"The job used {used:.3g} of the {most:g} CPUs that it may use.")
        )
    return found


def _disk(watched: Watched) -> list[Observation | None]:
    """Main threads that the kernel cannot interrupt: they wait for a disk or a network mount."""
    found: list[Observation | None] = []
    for trainer in watched.trainers:
        for who, usages in (
            ("The main thread of the training process", [trainer.usage]),
            ("Loader workers", [worker.usage for worker in trainer.workers]),
        ):
            seen = sum(usage.states.total() for usage in usages)
            waited = sum(usage.states["D"] for usage in usages)
            if seen and waited >= LEAST_DISK * seen:
                said = f"{who} waited for a disk at {percent(waited / seen)} of the readings."
                where = [Place(rank=trainer.rank)]
                found.append(_sign("data_loading.slow_storage", "seen", said, where))
    return found[:2]


def _lines(watched: Watched) -> list[Observation | None]:
    """Lines of the training thread that wait for the device, or keep it waiting."""
    rules = (
        ("scalar_read", "small_work.host_sync_scalar_read", LEAST_WAIT,
         "at lines that read a result of the device; with a GPU that waits for it"),
        ("sync", "small_work.host_sync_implicit", LEAST_WAIT, "waiting for the device"),
        ("python", "small_work.python_between_ops", LEAST_PYTHON,
         "in Python outside the model, the loss and the optimizer"),
    )  # fmt: skip
    found = []
    for activity, cause, least, words in rules:
        best = max(
            watched.trainers,
            key=lambda t: share_of(t.pieces, activity, watched.stacks.rate).mid,
            default=None,
        )
        if best is None or not best.pieces:
            continue
        share = share_of(best.pieces, activity, watched.stacks.rate)
        if share.low < least:
            continue
        said = (
            f"The training thread was {words}, for {percent(share.mid)} of its time "
            f"({percent(share.low)} to {percent(share.high)})."
        )
        found.append(_sign(cause, "suspected", said, _spots(best, activity), source="stacks"))
    return found


def _spots(trainer: Trainer, activity: str) -> list[Place]:
    sums: dict[tuple[str | None, int | None], int] = {}
    for piece in trainer.pieces:
        if piece.doing.activity == activity:
            key = (piece.doing.file, piece.doing.line)
            sums[key] = sums.get(key, 0) + piece.end_ns - piece.start_ns
    top = sorted(sums, key=lambda key: -sums[key])[:MOST_SPOTS]
    return [Place(file=file, line=line, rank=trainer.rank) for file, line in top]
