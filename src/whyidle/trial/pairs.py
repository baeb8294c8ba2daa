"""Two commands run in turn, pair by pair, in an order that favours neither."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from whyidle.trial import child, measured
from whyidle.trial.child import Ended
from whyidle.trial.measured import Measured

Side = Literal["before", "after"]

Watch = Callable[[int, int, Side], None]
"""Called with (run from 0, runs in all, side) before a run starts."""


@dataclass(frozen=True)
class Plan:
    """What to run: ``steps`` after which the hook ends a job, None for all of them."""

    before: Sequence[str]
    after: Sequence[str]
    pairs: int
    steps: int | None = None
    warm_up: int = measured.WARM_UP
    timeout_s: float | None = None


@dataclass(frozen=True)
class Run:
    """One run of one side; ``output`` holds its stdout and stderr."""

    side: Side
    ended: Ended
    measured: Measured
    output: Path


def order(pairs: int) -> list[Side]:
    """before, after, after, before, ...: every other pair is turned round."""
    forth: list[Side] = ["before", "after"]
    return [side for i in range(pairs) for side in (forth if i % 2 == 0 else forth[::-1])]


def run_all(plan: Plan, folder: Path, runs: list[Run], watch: Watch) -> None:
    """Append every run to ``runs`` as it ends; stops after the first that failed.

    Event files and outputs are kept below ``folder``.
    """
    sides = order(plan.pairs)
    for number, side in enumerate(sides):
        watch(number, len(sides), side)
        place = folder / f"run-{number + 1:02d}-{side}"
        bundle = place / "bundle"
        (bundle / "processes").mkdir(parents=True)
        output = place / "output.txt"
        command = plan.before if side == "before" else plan.after
        ended = child.run(command, _environment(bundle, plan.steps), output, plan.timeout_s)
        runs.append(Run(side, ended, measured.read(bundle, plan.warm_up), output))
        if not ended.well:
            return


def _environment(bundle: Path, steps: int | None) -> dict[str, str]:
    """The child's environment: the hook writes events to ``bundle``, and no profiler runs."""
    from whyidle.observe.launch import environment

    return environment(bundle, {"profile": False, "loss": True, "stop_after": steps})
