"""Two commands run in turn, pair by pair, in an order that favours neither."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from whyidle.observe.settled import WARM_UP
from whyidle.trial import child, measured
from whyidle.trial.child import Ended
from whyidle.trial.measured import Measured
from whyidle.trial.trees import Tree, stray_of

Side = Literal["before", "after"]

Watch = Callable[[int, int, Side], None]
"""Called with (run from 0, runs in all, side) before a run starts."""


@dataclass(frozen=True)
class Plan:
    """What to run: ``steps`` after which the hook ends a job, None for all of them.

    ``trees`` are where before and after run, None for the current folder.
    """

    before: Sequence[str]
    after: Sequence[str]
    pairs: int
    steps: int | None = None
    warm_up: int = WARM_UP
    timeout_s: float | None = None
    trees: tuple[Tree, Tree] | None = None

    def command(self, side: Side) -> Sequence[str]:
        """The command of one side."""
        return self.before if side == "before" else self.after

    def tree(self, side: Side) -> Tree | None:
        """Where one side runs; None for the current folder."""
        return None if self.trees is None else self.trees[side == "after"]


@dataclass(frozen=True)
class Run:
    """One run of one side; ``output`` holds its stdout and stderr.

    ``stray`` is a file outside its tree that it stepped in, None where there is none.
    """

    side: Side
    ended: Ended
    measured: Measured
    output: Path
    stray: str | None = None


def order(pairs: int) -> list[Side]:
    """before, after, after, before, ...: every other pair is turned round."""
    forth: list[Side] = ["before", "after"]
    return [side for i in range(pairs) for side in (forth if i % 2 == 0 else forth[::-1])]


def other_seeds(plan: Plan, folder: Path, count: int, watch: Watch) -> list[Run]:
    """More runs of before, each with other random numbers; stops after one that failed."""
    found: list[Run] = []
    for number in range(1, count + 1):
        watch(number - 1, count, "before")
        place = folder / f"seed-{number:02d}"
        found.append(_once(plan, "before", place, {"reseed": number}))
        if not found[-1].ended.well:
            break
    return found


def run_all(plan: Plan, folder: Path, runs: list[Run], watch: Watch) -> None:
    """Append every run to ``runs`` as it ends; stops after the first that failed.

    Event files and outputs are kept below ``folder``.
    """
    sides = order(plan.pairs)
    for number, side in enumerate(sides):
        watch(number, len(sides), side)
        runs.append(_once(plan, side, folder / f"run-{number + 1:02d}-{side}"))
        if not runs[-1].ended.well:
            return


def _once(plan: Plan, side: Side, place: Path, remedies: dict[str, int] | None = None) -> Run:
    """One run of one side, its events and output below ``place``."""
    bundle = place / "bundle"
    (bundle / "processes").mkdir(parents=True)
    output = place / "output.txt"
    tree = plan.tree(side)
    environment = _environment(bundle, plan.steps, remedies)
    if tree is not None:
        environment = tree.environment(environment)
    folder = None if tree is None else tree.folder
    ended = child.run(plan.command(side), environment, output, plan.timeout_s, folder)
    stray = None if tree is None else stray_of(bundle, tree)
    return Run(side, ended, measured.read(bundle, plan.warm_up), output, stray)


def _environment(
    bundle: Path, steps: int | None, remedies: dict[str, int] | None
) -> dict[str, str]:
    """The child's environment: the hook writes events to ``bundle``, and no profiler runs."""
    from whyidle.observe.launch import environment

    options = {"profile": False, "loss": True, "stop_after": steps, "remedies": remedies or {}}
    return environment(bundle, options)
