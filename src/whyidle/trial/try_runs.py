"""One run of the job with remedies applied, and what its processes said of it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whyidle.observe.events import events_of
from whyidle.observe.launch import environment
from whyidle.observe.settled import WARM_UP
from whyidle.trial import child, measured
from whyidle.trial.child import Ended
from whyidle.trial.measured import Measured
from whyidle.trial.try_table import Place, Value


@dataclass(frozen=True)
class Job:
    """What runs, and for how long: ``steps`` None for all of them; ``seed`` None for the job's."""

    command: Sequence[str]
    steps: int | None
    warm_up: int
    timeout_s: float | None
    seed: int | None


@dataclass
class Said:
    """What the processes that train said of one remedy."""

    applied: bool = False
    could: bool = False
    took: list[str] = field(default_factory=list)
    why_not: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Facts:
    """What a run showed of the job. ``wait_share``: of its steps, waiting for the loader."""

    place: Place
    ranks: int
    wait_share: float | None
    batches: int | None


@dataclass(frozen=True)
class TryRun:
    """One run; ``said`` is by the name of a remedy."""

    ended: Ended
    measured: Measured
    said: Mapping[str, Said]
    facts: Facts
    output: Path


def run_once(
    job: Job,
    folder: Path,
    remedies: Mapping[str, Value],
    *,
    dry: bool = False,
) -> TryRun:
    """Run the job once below ``folder``; ``dry`` only asks which remedies could act."""
    bundle = folder / "bundle"
    (bundle / "processes").mkdir(parents=True)
    output = folder / "output.txt"
    asked: dict[str, Value] = {} if job.seed is None else {"seed": job.seed}
    variables = environment(
        bundle,
        {
            "profile": False,
            "loss": True,
            "stop_after": job.steps,
            "remedies": {**asked, **remedies},
            "dry": dry,
        },
    )
    if job.seed is not None:
        variables.setdefault("PYTHONHASHSEED", str(job.seed))
    ended = child.run(job.command, variables, output, job.timeout_s)
    processes = _processes(bundle)
    return TryRun(
        ended, measured.read(bundle, job.warm_up), _said(processes), _facts(processes), output
    )


def _processes(bundle: Path) -> list[list[dict[str, Any]]]:
    """The events of each process that trains; of all but loader workers, where none made a step."""
    files = [list(events_of(path)) for path in sorted((bundle / "processes").glob("*.jsonl"))]
    files = [events for events in files if not any(e.get("role") == "worker" for e in events)]
    return [e for e in files if any(one.get("event") == "steps" for one in e)] or files


def _said(processes: Sequence[Sequence[dict[str, Any]]]) -> dict[str, Said]:
    found: dict[str, Said] = {}
    for events in processes:
        for event in events:
            if event.get("event") != "remedy" or not isinstance(event.get("name"), str):
                continue
            said = found.setdefault(event["name"], Said())
            said.applied |= event.get("applied") is True
            said.could |= event.get("could") is True
            why = event.get("why")
            where = said.took if event.get("could") is True else said.why_not
            if isinstance(why, str) and why not in where:
                where.append(why)
    return found


def _facts(processes: Sequence[Sequence[dict[str, Any]]]) -> Facts:
    """Of the processes that train; the CPUs are shared out among the ranks of this machine."""
    first = processes[0] if processes else []
    about = _first(first, "process")
    torch = _first(first, "torch")
    ranks = max(len(processes), 1)
    cpus = about.get("cpus")
    quota = about.get("cpu_quota")
    may_use = cpus if type(cpus) is int and cpus > 0 else child_cpus()
    if isinstance(quota, int | float) and quota > 0:
        may_use = min(may_use, max(1, round(quota)))
    threads = torch.get("threads")
    built = torch.get("cuda") is not None or torch.get("hip") is not None
    on_gpu = built and not any("no GPU" in str(e.get("why")) for e in first)
    rows = [row for e in first if e.get("event") == "steps" for row in _rows(e)]
    loaders = [e for e in first if e.get("event") == "loader"]
    lengths = [e["length"] for e in loaders if type(e.get("length")) is int and e["length"] > 0]
    return Facts(
        Place(max(1, may_use // ranks), threads if type(threads) is int else None, on_gpu),
        ranks,
        _wait_share(rows),
        statistics.median_low(lengths) if lengths else None,
    )


def child_cpus() -> int:
    """CPUs that this process may use, which a child inherits."""
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _first(events: Sequence[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next((event for event in events if event.get("event") == kind), {})


def _rows(event: dict[str, Any]) -> list[list[int]]:
    rows = event.get("rows")
    return [
        row
        for row in (rows if isinstance(rows, list) else [])
        if isinstance(row, list) and len(row) >= 4 and all(type(v) is int for v in row[:4])
    ]


def _wait_share(rows: Sequence[Sequence[int]]) -> float | None:
    settled = rows[WARM_UP:] or rows
    whole = sum(end - start for _, start, end, *_ in settled)
    return sum(row[3] for row in settled) / whole if whole > 0 else None
