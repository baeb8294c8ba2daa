"""``whyidle data tune``: the best settings of a loader, predicted first and then tried."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from whyidle import __version__
from whyidle.data import probe as probing
from whyidle.data import tune_bounds, tune_choosing, tune_trials
from whyidle.data.probe_record import Prediction, Probe
from whyidle.data.spec import Spec, parse
from whyidle.data.tune_bounds import Machine
from whyidle.data.tune_record import Arguments, Setting, Trial, Tune
from whyidle.data.tune_trials import Course, Run
from whyidle.errors import UsageError

SETTING_CAUSES = ("data_loading.loader_workers_too_few",)
"""Causes that a setting answers; all others are what no setting can help."""


def tune(
    spec: str,
    *,
    step_s: float | None = None,
    batch_size: int | None = None,
    trials: int = tune_choosing.MOST_TRIALS,
    most_workers: int | None = None,
    memory: int | None = None,
    seconds: float = tune_trials.SECONDS,
    show: Callable[[str], None] = lambda _: None,
) -> Tune:
    """Probe what ``spec`` names, try a few settings, and choose. ``memory`` is in bytes."""
    named = parse(spec)
    if named.kind == "bundle":
        raise UsageError(
            f"{spec}: a recorded run can be probed, but not tuned.\n"
            "Name what makes the loader, for example train.py:make_loader."
        )
    begin = time.monotonic()
    probe = probing.probe(spec, step_s=step_s, batch_size=batch_size, show=show)
    run = tune_trials.fresh_process(named, batch_size, seconds)
    found = tuned(named, probe, run, trials, most_workers, memory, show)
    return _with_seconds(found, time.monotonic() - begin)


def tuned(
    spec: Spec,
    probe: Probe,
    run: Run,
    trials: int = tune_choosing.MOST_TRIALS,
    most_workers: int | None = None,
    memory: int | None = None,
    show: Callable[[str], None] = lambda _: None,
) -> Tune:
    """Try what the probe suggests by ``run``, and choose."""
    machine = Machine.of(probe.limits, memory, most_workers)
    load = tune_choosing.load_of(probe)
    course = Course(load, machine)
    worth = tune_choosing.worth_of(probe.batch_size, probe.step_s)
    wanted = tune_choosing.candidates(probe, machine, trials)
    tune_trials.tried(wanted, course, run, worth, show)
    done = course.trials()
    picked = tune_trials.chosen(done, worth)
    if picked is None:
        why = next((one.failed for one in done if one.failed), "nothing was measured")
        raise UsageError(
            f"{spec.text}: no setting could be tried: {why}.\n"
            "Run the loader by itself first: its own error tells more."
        )
    seen = [one for found in course.runs.values() for one in found]
    made, reasons = tune_choosing.arguments(
        picked, done, probe, machine, gpu=any(one.get("gpu") for one in seen),
        start_method=next((one["start_method"] for one in seen if "start_method" in one), None),
    )  # fmt: skip
    notes = [*probe.notes]
    made, more = _checked(made, course)
    notes += more
    main, worker = course.memory()
    return Tune(
        whyidle=__version__, spec=spec.text, samples=probe.samples, batch_size=probe.batch_size,
        workers=probe.workers, step_s=probe.step_s, seconds=probe.seconds, chosen=made,
        code=made.code(probe.batch_size), rate=picked.rate, low=min(picked.rates),
        high=max(picked.rates), predicted=_predicted(probe, picked.setting), now=_now(probe, done),
        enough=None if probe.step_s is None else probe.batch_size / probe.step_s,
        limit=_limit(probe), reasons=[_why(picked, done, worth), *reasons],
        bounds=tune_bounds.bounds(load, machine, main, worker), trials=done,
        predictions=probe.rates, limits=probe.limits,
        findings=[one for one in probe.findings if one.cause not in SETTING_CAUSES], notes=notes,
    )  # fmt: skip


def _with_seconds(found: Tune, seconds: float) -> Tune:
    import msgspec

    return msgspec.structs.replace(found, seconds=seconds)


def _checked(made: Arguments, course: Course) -> tuple[Arguments, list[str]]:
    """The arguments with their batches ahead, once more against what was measured since."""
    import msgspec

    ahead = made.prefetch_factor
    while ahead is not None and ahead > 1:
        setting = Setting(loader=made.loader, workers=made.num_workers, prefetch=ahead)
        if tune_bounds.too_much(setting, course.load, course.machine, *course.memory()) is None:
            break
        ahead -= 1
    if ahead == made.prefetch_factor:
        return made, []
    told = f"prefetch_factor was lowered to {ahead}: more could run out of memory"
    return msgspec.structs.replace(made, prefetch_factor=ahead), [told]


def _predicted(probe: Probe, setting: Setting) -> Prediction | None:
    """What was expected of a number of worker processes; threads are not predicted."""
    if setting.loader == "Loader":
        return None
    return next((one for one in probe.rates if one.workers == setting.workers), None)


def _now(probe: Probe, done: list[Trial]) -> float | None:
    """The rate of the loader as the user has it: tried, or else predicted."""
    if probe.workers is None:
        return None
    for one in done:
        if one.setting.loader == "DataLoader" and one.setting.workers == probe.workers:
            return one.rate
    return next((one.rate for one in probe.rates if one.workers == probe.workers), None)


def _limit(probe: Probe) -> float | None:
    if probe.bound is None:
        return None
    known = [r for r in (probe.bound.decode_rate, probe.bound.copy_rate) if r is not None]
    return min(known, default=None)


def _why(picked: Trial, done: list[Trial], worth: Any) -> str:
    """Why this setting and no other, in a sentence."""
    others = [one for one in done if one.rates and one.setting != picked.setting]
    name = tune_trials.named(picked.setting)
    assert picked.rate is not None
    if not others:
        return f"{name}: nothing else could be tried."
    best = max(others, key=lambda one: worth(one.setting, one.rate))
    ratio = worth(picked.setting, picked.rate) / worth(best.setting, best.rate)
    other = tune_trials.named(best.setting)
    if ratio > 1.03:
        return f"{name}: {ratio:.2f} times what {other} gave."
    return (
        f"{name}: {other} gave {1 / ratio:.2f} times as much, which is less than 3 % more or lies "
        "within the spread of the runs."
    )
