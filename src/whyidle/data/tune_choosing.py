"""From a probe to candidates, and from trials to arguments, each with its reason."""

from __future__ import annotations

import math
from collections.abc import Callable

from whyidle.data import predict
from whyidle.data.probe_record import Prediction, Probe
from whyidle.data.tune_bounds import Load, Machine, most_prefetch, too_much
from whyidle.data.tune_record import Arguments, Setting, Trial

MOST_TRIALS = 4
EVEN = 1.5
"""95th percentile over median of the time of a batch, up to which the usual two ahead do."""

MOST_PREFETCH = 16
RESTART = 0.01
"""Share of an epoch from which on starting the workers anew is worth avoiding."""

SCALES = 0.6
"""Share of the CPUs beyond the first that threads must reach to count as dropping the GIL."""


def worth_of(batch: int, step_s: float | None) -> Callable[[Setting, float], float]:
    """Samples per second that training gets of a loader of some rate, at this step time."""

    def worth(setting: Setting, rate: float) -> float:
        if step_s is None:
            return rate
        loads_s = batch / rate
        return batch / (max(step_s, loads_s) if setting.workers else step_s + loads_s)

    return worth


def load_of(probe: Probe) -> Load:
    """What batches are, as the probe saw them."""
    given = probe.handover
    if given is None:
        return Load(0.0, 0)
    return Load(given.bytes * probe.batch_size, given.tensors)


def threads_of(probe: Probe) -> int | None:
    """Threads worth trying: one per CPU where the chain was measured to drop the GIL."""
    found, count = probe.threads, math.floor(probe.limits.cpus)
    if found is None or found.lock_share is None or count < 2:
        return None
    times = min(count, 1 / max(found.lock_share, 1e-6))
    return count if times >= 1 + SCALES * (count - 1) else None


def candidates(probe: Probe, machine: Machine, trials: int = MOST_TRIALS) -> list[Setting]:
    """What is tried, the most promising first, none that could exhaust the machine.

    The predicted pick, no workers, threads, what the user has, and the pick's neighbours.
    """
    load = load_of(probe)
    found = fitting(probe, machine, load)
    worth = worth_of(probe.batch_size, probe.step_s)
    best = max((worth(_processes(one.workers), one.rate) for one in found), default=0.0)
    pick = min(
        (
            one.workers for one in found
            if worth(_processes(one.workers), one.rate) >= (1 - predict.WORTH) * best
        ),
        default=0,
    )  # fmt: skip
    wanted = [_processes(pick), _processes(0)]
    threads = threads_of(probe)
    if threads is not None and machine.most_workers is not None:
        threads = min(threads, machine.most_workers)
    if threads:
        wanted.append(Setting(loader="Loader", workers=threads))
    if probe.workers is not None:
        wanted.append(_processes(probe.workers))
    wanted += [_processes(pick + 1), _processes(max(pick - 1, 0))]
    fits = [one for one in wanted if too_much(one, load, machine, None, None) is None]
    return list(dict.fromkeys(fits))[: max(trials, 1)]


def fitting(probe: Probe, machine: Machine, load: Load) -> list[Prediction]:
    """Predictions for numbers of workers that the machine bears."""
    return [
        one for one in probe.rates
        if too_much(_processes(one.workers), load, machine, None, None) is None
    ]  # fmt: skip


def _processes(workers: int) -> Setting:
    return Setting(loader="DataLoader", workers=workers)


def arguments(
    picked: Trial,
    trials: list[Trial],
    probe: Probe,
    machine: Machine,
    *,
    gpu: bool,
    start_method: str | None,
) -> tuple[Arguments, list[str]]:
    """The arguments for the setting that was picked, and why each is so."""
    setting = picked.setting
    ahead, why_ahead = prefetch(setting, trials, load_of(probe), machine)
    keep, why_keep = persistent(picked, trials, probe)
    pin = True if gpu else None
    reasons = [why_ahead, why_keep]
    reasons.append(
        "pin_memory=True: there is a GPU, and copies from pinned memory need not be waited for."
        if gpu
        else "pin_memory is left alone: it helps copies to a GPU, and there is none here."
    )
    if setting.workers and setting.loader == "DataLoader" and start_method is not None:
        reasons.append(f"The start method stays {start_method}, with which this was measured.")
    reasons.append(_order(trials))
    reasons.append(_threads(setting, probe))
    made = Arguments(
        loader=setting.loader, num_workers=setting.workers, prefetch_factor=ahead,
        persistent_workers=keep, pin_memory=pin,
    )  # fmt: skip
    return made, [one for one in reasons if one]


def prefetch(
    setting: Setting, trials: list[Trial], load: Load, machine: Machine
) -> tuple[int | None, str]:
    """Batches ahead for each worker: enough to bridge a slow batch, within what memory allows."""
    if not setting.workers:
        return None, ""
    uneven = unevenness(trials)
    if uneven is None:
        return setting.prefetch, ""
    wanted = 2 if uneven <= EVEN else min(math.ceil(uneven) + 1, MOST_PREFETCH)
    told = f"the 95th percentile of a batch's time is {uneven:.1f} times its median"
    if setting.loader == "DataLoader":
        allowed = most_prefetch(setting.workers, load, machine)
        if wanted > allowed:
            return allowed, (
                f"prefetch_factor={allowed}: {told}, which asks for {wanted}, but no more fit "
                "into shared memory and open files."
            )
    if wanted == 2:
        return 2, f"prefetch_factor=2, torch's own: {told}, so nothing more is needed."
    return wanted, f"prefetch_factor={wanted}: {told}, and the others must bridge it."


def unevenness(trials: list[Trial]) -> float | None:
    """95th percentile of a batch's time over the median, loaded without workers."""
    for one in trials:
        if one.setting.workers == 0 and one.batch_s and one.batch_p95_s is not None:
            return one.batch_p95_s / one.batch_s
    return None


def persistent(picked: Trial, trials: list[Trial], probe: Probe) -> tuple[bool | None, str]:
    """Whether workers should live on between epochs, by what their start costs in each."""
    if not picked.setting.workers or picked.setting.loader == "Loader":
        return None, ""
    if picked.first_s is None or not picked.rate or not probe.samples:
        return None, ""
    alone = next((t for t in trials if not t.setting.workers and t.batch_s is not None), None)
    start_s = max(picked.first_s - (alone.batch_s or 0.0 if alone else 0.0), 0.0)
    epoch_s = probe.samples / picked.rate
    told = f"starting workers takes {start_s:.2g} s of an epoch of {epoch_s:.3g} s"
    if start_s < RESTART * epoch_s:
        return None, f"persistent_workers is left alone: {told}."
    return True, f"persistent_workers=True: {told}, paid once instead of in each."


def _order(trials: list[Trial]) -> str:
    uneven = unevenness(trials)
    if uneven is None or uneven < 4:
        return ""
    return (
        f"in_order stays True. Some batches take {uneven:.0f} times the median; in_order=False "
        "would not wait for them, but the order of batches would differ from run to run."
    )


def _threads(setting: Setting, probe: Probe) -> str:
    found = probe.threads
    if not setting.workers or found is None:
        return ""
    if found.opencv is not None and found.opencv > 1 and setting.loader == "DataLoader":
        return (
            f"Threads in a worker: OpenCV would start {found.opencv} in each; call "
            "cv2.setNumThreads(1) in worker_init_fn. torch uses one already."
        )
    if found.other_cpu_share is not None and found.other_cpu_share > 0.1:
        return (
            f"Threads in a worker: {found.other_cpu_share:.0%} of the CPU time is spent in threads "
            "of a library; set OMP_NUM_THREADS=1 for the job."
        )
    return ""
