"""A watched job in sentences: what it did, what the watching cost, what could not be seen."""

from __future__ import annotations

from whyidle.observe.attach_doing import WORDS
from whyidle.observe.attach_job import Trainer, Watched
from whyidle.observe.attach_shares import share_of
from whyidle.observe.attach_tree import program
from whyidle.render.numerals import count, duration, percent

MOST_ACTIVITIES = 5
MOST_TRAINERS = 4
LEAST = 0.01


def told(watched: Watched) -> list[str]:
    """Lines for stderr: processes, what their main threads did, CPU and memory."""
    roles = list(watched.roles.values())
    parts = [
        count(number, role, "loader workers" if role == "loader worker" else many)
        for role, many in (
            ("training", "training"), ("loader worker", ""), ("launcher", "launchers"),
            ("other", "other"),
        )
        if (number := roles.count(role))  # type: ignore[arg-type]
    ]  # fmt: skip
    ended = ", which ended meanwhile" if watched.job_ended else ""
    lines = [
        f"Watched process {watched.root.pid} ({program(watched.root)}){ended} for "
        f"{duration(watched.wall_s)}: {', '.join(parts)}."
    ]
    for trainer in watched.trainers[:MOST_TRAINERS]:
        lines += _about(trainer, watched.stacks.rate)
    if len(watched.trainers) > MOST_TRAINERS:
        lines.append(f"and {len(watched.trainers) - MOST_TRAINERS} more training processes.")
    lines += _without_torch(watched)
    lines.append(cost(watched))
    return lines


def _without_torch(watched: Watched) -> list[str]:
    """Whether any of the processes can be one that trains."""
    known = [watched.before[t.pid].torch for t in watched.trainers if t.pid in watched.before]
    if not known or any(torch is not False for torch in known):
        return []
    which = "The process had not" if len(known) == 1 else "None of these processes had"
    return [f"{which} loaded torch when the watching began. Is it the one that trains?"]


def _about(trainer: Trainer, rate: int) -> list[str]:
    usage = trainer.usage
    who = f"Process {trainer.pid}" + (f", rank {trainer.rank}" if trainer.rank is not None else "")
    shares = {name: share_of(trainer.pieces, name, rate) for name in WORDS}
    most = sorted((n for n in WORDS if shares[n].mid >= LEAST), key=lambda n: -shares[n].mid)
    did = "; ".join(
        f"{percent(shares[n].mid)} {WORDS[n]} ({percent(shares[n].low)} to "
        f"{percent(shares[n].high)})"
        for n in most[:MOST_ACTIVITIES]
    )
    used = f" It used {usage.cpus:.2g} CPUs" if usage.cpus is not None else ""
    used += f" and {usage.resident_bytes / 2**30:.2g} GiB of memory." if used else ""
    lines = [f"{who}: {did or 'stacks unknown'}.{used}"]
    if trainer.workers:
        working = sum(worker.working_ns for worker in trainer.workers)
        seen = sum(worker.seen_ns for worker in trainer.workers)
        cpus = [w.usage.cpus for w in trainer.workers if w.usage.cpus is not None]
        busy = f" made batches for {percent(working / seen)} of the time" if seen else ""
        used = f"{', and' if busy else ''} used {sum(cpus):.2g} CPUs together" if cpus else ""
        lines.append(f" - its {count(len(trainer.workers), 'loader worker')}{busy}{used}.")
    return lines


def cost(watched: Watched) -> str:
    """What the watching cost the job, as far as it can be measured from outside."""
    wall = max(watched.wall_s, 1e-9)
    own = f"Watching took {percent(watched.own_cpu_s / wall)} of one CPU"
    share = watched.stopped_share
    if share is None or watched.stacks.why_not is not None:
        return f"{own}; the job was never stopped."
    seen = sum(trainer.usage.states.total() for trainer in watched.trainers)
    if share == 0:
        return f"{own}; the job was found stopped at none of {seen:,} readings."
    return (
        f"{own}; the job was found stopped at {percent(share)} of {seen:,} readings, which slowed "
        "it by about as much."
    )


def notes(watched: Watched, *, with_gpu: bool, metered: bool) -> list[str]:
    """What a reader must know about the figures; the blind spots first."""
    found = [
        "Not seen from outside: kernels and the gaps between them, operators, memory of tensors, "
        "where steps begin. What shows them: whyidle run, torch.profiler, nsys profile."
    ]
    if not metered:
        found.append(
            "Which GPU belongs to which process could not be told, so the seconds are those of "
            "the training threads: not held up does not mean that the GPU was busy."
            if with_gpu
            else "No process was seen to have an NVIDIA GPU open: it is judged as a run on the "
            "CPU, and the seconds are those of its training threads."
        )
    stacks = watched.stacks
    if stacks.why_not is not None and not stacks.stretches:
        found.append(
            f"No stacks: {stacks.why_not}. Without them nothing tells why the job idles, only how "
            "much CPU its processes use."
        )
    else:
        found.append(
            f"Stacks were read {stacks.rate} times a second; shorter stays are met by chance, and "
            "waits of a thread inside C or CUDA count for the Python line they were called from."
        )
        if stacks.errors:
            lost = stacks.errors / max(stacks.errors + stacks.samples, 1)
            found.append(f"{percent(lost)} of the stacks could not be read.")
    found.append(cost(watched))
    late = [t for t in watched.trainers if not t.pieces and stacks.stretches]
    if late:
        found.append(f"{count(len(late), 'training process', 'training processes')} gave no stack.")
    return found
