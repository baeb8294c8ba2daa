"""Each real pair predicted with its own recordings left out of what the model was fitted on.

What a prediction takes from pairs is a pace: how much slower the host runs the rest of its step
once the cause is gone. Here the pace of every pair is read off its second recording, and every
pair is predicted with the paces of the *other* scripts alone: their median, and their lowest and
highest but one. Not among the others: recordings with more busy workers than cores (``crowded`` in
the name), which no remedy advises. ``replay.py`` prints the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from whyidle.diagnosis import Diagnosis, Gain
from whyidle.gain.effects import HIGH, Change, changes, removed_share, unchanged
from whyidle.gain.predict import Replayable, _times

Judged = tuple[Diagnosis, Replayable | None]

LOADER = "data_loading.loader_workers_too_few"
SCRIPTS = {
    "resnet50": LOADER,
    "slow_loader": LOADER,
    "decode_small": LOADER,
    "decode_even": LOADER,
    "decode_heavy": LOADER,
    "cpu_op": "small_work.python_between_ops",
    "empty_cache": "small_work.python_between_ops",
    "histograms": "blind_spots.logging_overhead",
    "checkpoint_every_step": "blind_spots.checkpoint_pause",
    "accumulate_without_no_sync": "communication.sync_every_microstep",
    "unused_parameters": "communication.wrapper_host_overhead",
}
"""Scripts whose second recording has exactly what a remedy removes gone, and that cause."""
PACES = np.linspace(0.4, 3.0, 53)


@dataclass(frozen=True)
class Paced:
    """One pair: steps before and after, seconds; the part removed; the pace that explains it.

    steps_s: the step for each of PACES. told: the gain that whyidle tells.
    """

    name: str
    script: str
    cause: str
    before_s: float
    after_s: float
    removed: float
    pace: float
    steps_s: tuple[float, ...]
    told: Gain


@dataclass(frozen=True)
class LeftOut:
    """One pair predicted from the others: low, mid and high step, seconds."""

    pair: Paced
    others: int
    low_s: float
    mid_s: float
    high_s: float

    @property
    def inside(self) -> bool:
        """Whether the measured step lies in the predicted range."""
        return self.high_s <= self.pair.after_s <= self.low_s


def script_of(path: Path) -> str | None:
    """The script that a recording is of, by its name."""
    return next((script for script in SCRIPTS if script in path.name), None)


def paced(
    before: Path, after: Path, judged: Callable[[Path], Judged | None], name: str
) -> Paced | None:
    """The pace of one pair; None where its cause has no gain or a recording cannot be read."""
    script = None if "simulated" in before.name else script_of(before)
    one, two = judged(before), judged(after)
    if script is None or one is None or two is None or one[1] is None:
        return None
    found, after_s = one[1], two[0].devices[0].step_s
    cause = SCRIPTS[script]
    remedies = [r for f in one[0].findings if f.cause == cause for r in f.remedies if r.gain]
    marks = found.marks.get(cause)
    ends = changes(found.model, marks, remedies[0].effect) if remedies and marks else None
    if ends is None or after_s is None or remedies[0].gain is None:
        return None
    exact = replace(ends[HIGH], floor_ns=0.0)
    steps_s = _at_paces(found, exact)
    pace = float(np.interp(after_s, steps_s, PACES))
    return Paced(
        name, script, cause, found.step_s, after_s, removed_share(found.model, exact), pace,
        tuple(steps_s.tolist()), remedies[0].gain,
    )  # fmt: skip


def _at_paces(found: Replayable, exact: Change) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    many = [unchanged(found.model), *(replace(exact, slower=float(pace)) for pace in PACES)]
    times = _times(found.model, many).median
    return np.asarray(times[1:] / times[0] * found.step_s)


def left_out(pairs: Iterable[Paced]) -> list[LeftOut]:
    """Every pair, predicted by the scripts of its kind (loader or not) without its own."""
    known = list(pairs)
    found = []
    for pair in known:
        loads = pair.cause == LOADER
        others = [
            p
            for p in known
            if (p.cause == LOADER) == loads and p.script != pair.script and "crowded" not in p.name
        ]
        if len({p.script for p in others}) < 2:
            continue
        whole = np.sort([_whole(p) for p in others])
        least, most = (whole[1], whole[-2]) if whole.size > 3 else (whole[0], whole[-1])
        ends = [float(np.median(whole)), float(least), float(most)]
        paces = ends if loads else [1 + (end - 1) * pair.removed for end in ends]
        steps = (float(np.interp(pace, PACES, pair.steps_s)) for pace in paces)
        mid, high, low = (min(step, pair.before_s) for step in steps)
        found.append(LeftOut(pair, len(others), low, mid, high))
    return found


def _whole(pair: Paced) -> float:
    """The pace if the whole step went (``competition.rest_slower``); a loader's as it is."""
    return pair.pace if pair.cause == LOADER else 1 + (pair.pace - 1) / max(pair.removed, 0.05)


def table(rows: Iterable[LeftOut]) -> str:
    """The rows as Markdown, beside what whyidle tells."""
    lines = [
        "| pair | before ms | after ms | pace | left out: low, mid, high | in | mid off | "
        "told: low, mid, high | in | mid off | high / low |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        pair, told = row.pair, row.pair.told
        inside = told.step_s_high <= pair.after_s <= told.step_s_low
        lines.append(
            f"| {pair.name} | {pair.before_s * 1e3:.1f} | {pair.after_s * 1e3:.1f} | "
            f"{pair.pace:.2f} | {_ms(row.low_s, row.mid_s, row.high_s)} | {_yes(row.inside)} | "
            f"{row.mid_s / pair.after_s - 1:+.0%} | "
            f"{_ms(told.step_s_low, told.step_s_mid, told.step_s_high)} | {_yes(inside)} | "
            f"{told.step_s_mid / pair.after_s - 1:+.0%} | "
            f"{told.speedup_high / told.speedup_low:.2f} |"
        )
    return "\n".join(lines)


def _ms(*seconds: float) -> str:
    return ", ".join(f"{s * 1e3:.1f}" for s in seconds)


def _yes(inside: bool) -> str:
    return "yes" if inside else "no"
