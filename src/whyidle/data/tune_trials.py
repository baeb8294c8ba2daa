"""Runs candidates in turn, each run in a fresh process, until the choice is clear."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whyidle.data.predict import WORTH
from whyidle.data.spec import Spec
from whyidle.data.tune_bounds import Load, Machine, too_much
from whyidle.data.tune_record import Setting, Trial

SECONDS = 2.0
ROUNDS = 3
"""Each candidate runs twice; those that are still too close to tell apart run once more."""

PATIENCE_S = 180.0
SKIP = 997

Run = Callable[[Setting, int], dict[str, Any]]
"""Runs a setting; the number of the run lets each see other samples. Tests plant their own."""


@dataclass
class Course:
    """All runs so far, and what is known of the memory of processes."""

    load: Load
    machine: Machine
    runs: dict[Setting, list[dict[str, Any]]] = field(default_factory=dict)
    refused: dict[Setting, str] = field(default_factory=dict)

    def memory(self) -> tuple[int | None, int | None]:
        """(bytes of the training process, of a worker), the largest that were seen."""
        seen = [one for found in self.runs.values() for one in found]
        return _most(seen, "main_bytes"), _most(seen, "worker_bytes")

    def try_once(self, setting: Setting, run: Run, number: int) -> None:
        """Run a setting, unless it could exhaust the machine."""
        why = too_much(setting, self.load, self.machine, *self.memory())
        if why is not None:
            self.refused[setting] = why
            return
        self.runs.setdefault(setting, []).append(run(setting, number))

    def trial(self, setting: Setting) -> Trial:
        """What is known of a setting."""
        found = self.runs.get(setting, [])
        rates = [one["rate"] for one in found if "rate" in one]
        failed = [str(one["failed"]) for one in found if "failed" in one]
        alone = setting.workers == 0
        return Trial(
            setting=setting, rates=rates, rate=statistics.median(rates) if rates else None,
            first_s=_middle(found, "first_s"),
            batch_s=_middle(found, "batch_s") if alone else None,
            batch_p95_s=_middle(found, "batch_p95_s") if alone else None,
            main_bytes=_most(found, "main_bytes"), worker_bytes=_most(found, "worker_bytes"),
            failed=self.refused.get(setting) or (failed[-1] if failed and not rates else None),
        )  # fmt: skip

    def trials(self) -> list[Trial]:
        """All settings that were run or refused."""
        return [self.trial(one) for one in {**self.runs, **self.refused}]


def tried(
    candidates: Sequence[Setting],
    course: Course,
    run: Run,
    worth: Callable[[Setting, float], float] = lambda _, rate: rate,
    show: Callable[[str], None] = lambda _: None,
) -> None:
    """Run the candidates in turn, then in reverse, then those that are too close once more.

    The least demanding runs first, so that the memory of processes is known before many start.
    ``worth`` is what a rate of samples is worth to the training, in samples/s as well.
    """
    order = sorted(candidates, key=demand)
    number = 0
    for turn in range(ROUNDS):
        left = [one for one in order if not _is_out(course, one)]
        if turn == ROUNDS - 1:
            left = undecided([course.trial(one) for one in left], worth)
        elif turn == 1:
            left = _in_reach([course.trial(one) for one in left], worth)
        for setting in left if turn % 2 == 0 else reversed(left):
            show(f"{named(setting)}, run {turn + 1}")
            course.try_once(setting, run, number)
            number += 1


def named(setting: Setting) -> str:
    """A setting in words."""
    if not setting.workers:
        return "no workers"
    kind = "worker" if setting.loader == "DataLoader" else "thread"
    return f"{setting.workers} {kind}{'' if setting.workers == 1 else 's'}"


def demand(setting: Setting) -> tuple[int, int, int]:
    """Orders settings by what they ask of machine and user: no workers, workers, threads.

    Threads come last although they take less memory, since they change the code by more.
    """
    return (setting.loader == "Loader" and setting.workers > 0, setting.workers, setting.prefetch)


def _is_out(course: Course, setting: Setting) -> bool:
    return setting in course.refused or course.trial(setting).failed is not None


def _in_reach(found: Sequence[Trial], worth: Callable[[Setting, float], float]) -> list[Setting]:
    """Those that a second run could still make the choice."""
    best = max((_worth(one, worth) for one in found), default=0.0)
    return [one.setting for one in found if _worth(one, worth) > 0.75 * best]


def undecided(found: Sequence[Trial], worth: Callable[[Setting, float], float]) -> list[Setting]:
    """The two settings between which more runs would decide; none where the runs lie apart."""
    known = [one for one in found if one.rates]
    if len(known) < 2:
        return []
    best = max(known, key=lambda one: _worth(one, worth))
    less = [one for one in known if demand(one.setting) < demand(best.setting)]
    if not less:
        return []
    second = max(less, key=lambda one: _worth(one, worth))
    gain = _worth(best, worth) / _worth(second, worth) - 1
    spread = min(best.rates) <= max(second.rates)
    return [second.setting, best.setting] if gain > WORTH and spread else []


def chosen(found: Sequence[Trial], worth: Callable[[Setting, float], float]) -> Trial | None:
    """The least demanding setting that no other beats by more than WORTH and its spread."""
    known = sorted((one for one in found if one.rates), key=lambda one: demand(one.setting))
    now: Trial | None = None
    for one in known:
        if now is None or beats(one, now, worth):
            now = one
    return now


def beats(more: Trial, less: Trial, worth: Callable[[Setting, float], float]) -> bool:
    """Whether the more demanding one gains more than WORTH, and its runs all lie above."""
    if _worth(more, worth) <= (1 + WORTH) * _worth(less, worth):
        return False
    return min(more.rates) > max(less.rates) or len(more.rates) + len(less.rates) <= 2


def _worth(one: Trial, worth: Callable[[Setting, float], float]) -> float:
    return worth(one.setting, one.rate) if one.rate else 0.0


def _most(found: Sequence[dict[str, Any]], name: str) -> int | None:
    return max((one[name] for one in found if one.get(name) is not None), default=None)


def _middle(found: Sequence[dict[str, Any]], name: str) -> float | None:
    known = [one[name] for one in found if one.get(name) is not None]
    return statistics.median(known) if known else None


def fresh_process(spec: Spec, batch_size: int | None, seconds: float = SECONDS) -> Run:
    """Runs a setting in a child, which may crash, hang or be killed."""

    def run(setting: Setting, number: int) -> dict[str, Any]:
        request = {
            "spec": {n: getattr(spec, n) for n in ("text", "kind", "where", "attribute")},
            "batch_size": batch_size,
            "seconds": seconds,
            "setting": {n: getattr(setting, n) for n in ("loader", "workers", "prefetch")},
            "skipped": number * SKIP,
        }
        with tempfile.TemporaryDirectory(prefix="whyidle-tune-") as made:
            return _answer(Path(made), request)

    return run


def _answer(folder: Path, request: dict[str, Any]) -> dict[str, Any]:
    asked, result = folder / "request.json", folder / "result.json"
    asked.write_text(json.dumps(request), encoding="utf-8")
    command = [sys.executable, "-m", "whyidle.data.tune_child", str(asked), str(result)]
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        child.wait(PATIENCE_S + 4 * request["seconds"])
    except subprocess.TimeoutExpired:
        return {"failed": "it hung and was ended"}
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    with suppress(OSError, ValueError):
        found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        return found
    return {"failed": f"its process ended with code {child.returncode}"}
