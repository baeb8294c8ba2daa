"""The whole run in a few lines: steps, what they waited for, pauses, and how it ended."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import Any

import numpy as np

from whyidle.observe.events import Process, is_count
from whyidle.observe.launch import Outcome
from whyidle.observe.settled import first_counted
from whyidle.render.numerals import count, duration, percent

UNEVEN = 1.2
"""The mean step is told too where it is so many times the median."""

WAITS = 0.05
"""A loader wait of at least this share of a step is told with the loader's settings."""

LEAST_WAITED = 0.05
"""Of several loaders those with less of the waiting than this are not told."""

SETTINGS = ("batch_size", "num_workers", "prefetch_factor", "persistent_workers")

OWN_PROFILER = "window: another profiler"

LEAST_PAUSE = 0.01
"""Pauses that take less than this share of the run are not told."""

PAUSES = {
    "checkpoint": "in torch.save",
    "collector": "in Python's garbage collector",
    "loader_start": "starting data loaders",
    "evaluation": "evaluating the model",
}


@dataclass(frozen=True)
class Rank:
    """One training process. Seconds; ``wait_share`` and ``hook_share`` are shares of its steps."""

    process: Process
    steps: int
    step_s: float
    mean_s: float
    wait_share: float
    hook_share: float
    start_up_s: float


def trainers(found: list[Process]) -> list[Rank]:
    """The processes that made steps, by rank where ranks are known."""
    made = [_rank(process) for process in found if process.rows]
    return sorted(made, key=lambda rank: rank.process.about.get("rank") or 0)


def _rank(process: Process) -> Rank:
    rows = process.steps
    settled = rows[first_counted(len(rows)) :]
    lasted = settled[:, 2] - settled[:, 1]
    stated = process.about.get("started_ns")
    begun: int = stated if is_count(stated) else rows[0, 1]  # type: ignore[assignment]
    whole = max(int(lasted.sum()), 1)
    return Rank(
        process,
        len(rows),
        float(np.median(lasted)) / 1e9,
        float(np.mean(lasted)) / 1e9,
        int(settled[:, 3].sum()) / whole,
        int(settled[:, 4].sum()) / whole,
        (int(rows[0, 2]) - int(begun)) / 1e9,
    )


def told(found: list[Process], outcome: Outcome) -> list[str]:
    """Lines for stderr: what the hook saw of the whole run."""
    lines = [f"The job {ended(outcome)}.", *_stalled(found)]
    ranks = trainers(found)
    if not ranks:
        return [*lines, *_no_steps(found)]
    slowest = max(ranks, key=lambda rank: rank.mean_s)
    several = f" on each of {len(ranks)} ranks" if len(ranks) > 1 else ""
    uneven = slowest.mean_s > UNEVEN * slowest.step_s
    mean = f" and the mean one {duration(slowest.mean_s)}" if uneven else ""
    of = ", on the slowest rank" if several else ""
    lines.append(
        f"{count(slowest.steps, 'step')}{several}; the median step took "
        f"{duration(slowest.step_s)}{mean}{of}; the first one ended after "
        f"{duration(slowest.start_up_s)}."
    )
    lines += _waiting(slowest)
    lines += _pauses(slowest)
    lines += _cut(ranks, outcome)
    lines.append(f"The observer took {percent(slowest.hook_share)} of a step outside profiles.")
    problems = sorted({problem for process in found for problem in process.problems})
    problems = [problem for problem in problems if not problem.startswith(OWN_PROFILER)]
    return lines + [f"Not observed: {problem}" for problem in problems[:4]]


def _cut(ranks: list[Rank], outcome: Outcome) -> list[str]:
    """Which process said no more although the job was not killed."""
    cut = [rank for rank in ranks if rank.process.end is None]
    if not cut or outcome.signal is not None:
        return []
    pid = cut[0].process.about.get("pid", "?")
    return [
        f"Process {pid} stopped telling after step {cut[0].steps - 1}: it left by os._exit or was "
        "killed, or the bundle's disk is full."
    ]


def ended(outcome: Outcome) -> str:
    """How the job ended, as a clause."""
    took = f"after {duration(outcome.wall_s)}"
    if outcome.signal is not None:
        try:
            name = signal.Signals(outcome.signal).name
        except ValueError:
            name = f"signal {outcome.signal}"
        return f"was ended by {name} {took}"
    return f"ended with exit code {outcome.code} {took}"


def _no_steps(found: list[Process]) -> list[str]:
    if not found:
        return [
            "None of its processes imported torch in a Python that reads PYTHONPATH, so there is "
            "nothing to judge.",
            "Check that the command trains, and that it does not start Python with -I, -E or -S, "
            "in a container, or on another machine.",
        ]
    return [
        "torch was imported, but no optimizer made a step, so there is nothing to judge.",
        "Where the job does not step a torch.optim optimizer, call whyidle.step() at the end of "
        "each step.",
    ]


def _stalled(found: list[Process]) -> list[str]:
    """Where processes stood that made no step for long."""
    lines = []
    for process in found:
        for stacks in process.stacks[:1]:
            rows = [p for p in process.pauses if p[0] == "stalled"]
            lasted_s = (rows[0][2] - rows[0][1]) / 1e9 if rows else float(stacks["limit_s"])
            least = "" if rows else "at least "
            done = stacks["steps"]
            after = f" after step {done - 1}" if done else ", not even a first one,"
            rank = process.about.get("rank")
            who = f"Rank {rank}" if rank is not None else "It"
            lines.append(
                f"No step ended for {least}{duration(lasted_s)}{after} in process "
                f"{process.about.get('pid', '?')}. {who} stood at {_stood(stacks)}; the stacks "
                f"of all threads are in processes/{process.path.name}."
            )
    return lines[:4]


def _stood(stacks: dict[str, Any]) -> str:
    """The line that the thread which makes the steps was at, and what it had called from there."""
    threads = [thread for thread in stacks["threads"] if thread.get("steps")]
    frames = threads[0]["frames"] if threads else []
    if not frames:
        return "an unknown line"
    inner = f"{frames[0][2]} ({os.path.basename(frames[0][0])}:{frames[0][1]})"
    if stacks["file"] is None:
        return inner
    own = f"{os.path.basename(stacks['file'])}:{stacks['line']}"
    return own if frames[0][:2] == [stacks["file"], stacks["line"]] else f"{own}, in {inner}"


def _waiting(rank: Rank) -> list[str]:
    if rank.wait_share < WAITS:
        return [f"Steps waited for the data loader {percent(rank.wait_share)} of their time."]
    lines = [f"Steps waited for the data loader {percent(rank.wait_share)} of their time:"]
    for loader, share in _waited_for(rank.process)[:3]:
        place = _place(loader, "made_") or _place(loader, "") or "an unknown line"
        told = "" if share is None or share > 0.995 else f" ({percent(share)} of the waiting)"
        known = ", ".join(
            f"{name}={loader[name]}"
            for name in SETTINGS
            if name in loader and not (name == "batch_size" and loader[name] is None)
        )
        lines.append(f" - {loader.get('dataset', '?')} at {place}{told}: {known}")
    return lines


def _waited_for(process: Process) -> list[tuple[dict[str, Any], float | None]]:
    """Loaders with their share of what steps waited; all, without shares, where none is known."""
    whole = sum(process.waits.values())
    if not whole:
        return [(loader, None) for loader in process.loaders]
    told = {loader.get("loader"): loader for loader in process.loaders}
    ranked = sorted(process.waits.items(), key=lambda wait: -wait[1])
    shares = [(told[number], wait / whole) for number, wait in ranked if number in told]
    return [(loader, share) for loader, share in shares if share >= LEAST_WAITED]


def _place(loader: dict[str, Any], which: str) -> str | None:
    file = loader.get(f"{which}file")
    return f"{os.path.basename(file)}:{loader.get(f'{which}line')}" if file else None


def _pauses(rank: Rank) -> list[str]:
    rows = rank.process.steps
    own = [p for p in rank.process.pauses if p[0] == "profiler"]
    profiled = sum(p[2] - p[1] for p in own)
    whole = max(int(rows[-1, 2] - rows[0, 2]) - profiled, 1)
    lines = []
    if profiled:
        lines.append(
            f"Starting and ending the profiler took {duration(profiled / 1e9)} in all, which is in "
            "no step."
        )
    for kind, words in PAUSES.items():
        mine = [
            p
            for p in rank.process.pauses
            if p[0] == kind and p[1] >= rows[0, 2] and not any(o[1] <= p[1] < o[2] for o in own)
        ]
        took = sum(p[2] - p[1] for p in mine)
        if took >= LEAST_PAUSE * whole:
            line = next((f", {os.path.basename(p[3])}:{p[4]}" for p in mine if p[3]), "")
            lines.append(
                f"{percent(took / whole)} of the time after the first step went by {words} "
                f"({count(len(mine), 'time')}{line})."
            )
    return lines


def without_profile(found: list[Process], options: dict[str, object]) -> list[str]:
    """Why there is no profile of a job, and how to get one; nothing where steps were not seen."""
    made = max((len(process.rows) for process in found), default=0)
    if not made or not options.get("profile"):
        return []
    if any(problem.startswith(OWN_PROFILER) for p in found for problem in p.problems):
        return [
            "No step was profiled: the job ran a profiler of its own, which was left alone.",
            "Diagnose the trace that it writes, or turn it off.",
        ]
    failed = next((p for one in found for p in one.problems if p.startswith("window:")), None)
    if failed:
        return [
            f"No step was profiled, since that failed: {failed.removeprefix('window:').strip()}"
        ]
    return [
        f"No step was profiled: the job made {count(made, 'step')}, and a profile begins after "
        "those that warm up.",
        "Let it run longer, or choose steps: whyidle run --steps 2:6 -- ...",
    ]
