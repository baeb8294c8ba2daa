"""Tuning: bounds that are never exceeded, choices from planted trials, and the diff."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whyidle.data import tune_bounds, tune_choosing, tune_trials
from whyidle.data.tune_bounds import Load, Machine, too_much
from whyidle.data.tune_record import Arguments, Setting, Trial
from whyidle.data.tune_trials import Course, chosen, tried, undecided

MB = 10**6


def processes(workers: int, prefetch: int = 2) -> Setting:
    return Setting(loader="DataLoader", workers=workers, prefetch=prefetch)


THREADS = Setting(loader="Loader", workers=2)


def trial(setting: Setting, *rates: float) -> Trial:
    return Trial(setting=setting, rates=list(rates), rate=sorted(rates)[len(rates) // 2])


def plain(setting: Setting, rate: float) -> float:
    return rate


@pytest.mark.parametrize(
    ("rates", "wanted"),
    [
        ({0: (100, 101), 1: (150, 151), 2: (200, 202)}, 2),
        ({0: (100, 101), 1: (198, 199), 2: (200, 202)}, 1),  # 3 % are no reason for a worker
        ({0: (100, 101), 2: (180, 240), 3: (220, 250)}, 2),  # more, but within the spread
        ({0: (500, 501), 1: (120, 121), 2: (150, 151)}, 0),  # in memory already
    ],
)
def test_the_fewest_workers_within_three_percent_and_the_spread_are_chosen(
    rates: dict[int, tuple[float, float]], wanted: int
) -> None:
    found = chosen([trial(processes(w), *r) for w, r in rates.items()], plain)
    assert found is not None and found.setting == processes(wanted)


def test_threads_must_be_clearly_faster_than_processes() -> None:
    workers = trial(processes(2), 200, 202)
    found = chosen([workers, trial(THREADS, 203, 204)], plain)
    assert found is workers
    found = chosen([workers, trial(THREADS, 250, 252)], plain)
    assert found is not None and found.setting == THREADS


def test_a_step_time_ends_the_search_for_speed() -> None:
    worth = tune_choosing.worth_of(batch=10, step_s=0.1)  # 100 samples/s are enough
    found = chosen([trial(processes(w), 90.0 * w, 91.0 * w) for w in (1, 2, 3, 4)], worth)
    assert found is not None and found.setting.workers == 2


def test_only_settings_that_spread_leaves_open_run_again() -> None:
    apart = [trial(processes(1), 100, 101), trial(processes(2), 150, 151)]
    assert undecided(apart, plain) == []
    close = [trial(processes(1), 100, 130), trial(processes(2), 120, 150)]
    assert undecided(close, plain) == [processes(1), processes(2)]


def course(**machine: Any) -> Course:
    known = {"shm_free": None, "memory_free": None, "open_files": None, **machine}
    return Course(Load(10 * MB, 2), Machine(**known))


def test_runs_take_turns_and_stop_when_the_choice_is_clear() -> None:
    seen: list[int] = []

    def run(setting: Setting, number: int) -> dict[str, Any]:
        seen.append(setting.workers)
        return {"rate": 100.0 * (1 + setting.workers)}

    tried([processes(w) for w in (2, 0, 1)], course(), run)
    assert seen == [0, 1, 2, 2]  # 0 and 1 are far behind: no second run
    seen.clear()
    tried(
        [processes(w) for w in (1, 0)], course(), lambda s, n: seen.append(s.workers) or {"rate": 9}
    )
    assert seen == [0, 1, 1, 0]


def test_a_setting_that_would_exhaust_memory_is_never_started() -> None:
    started: list[int] = []

    def run(setting: Setting, number: int) -> dict[str, Any]:
        started.append(setting.workers)
        return {"rate": 1.0 + setting.workers, "main_bytes": 300 * MB, "worker_bytes": None}

    ran = course(memory_free=1000 * MB)
    tried([processes(w) for w in (0, 1, 2)], ran, run)
    assert 2 not in started and "800 MB" not in str(started)
    assert "need 950 MB" in ran.refused[processes(2)]


@settings(max_examples=200, deadline=None)
@given(
    batch=st.integers(1, 10**9), tensors=st.integers(1, 200), shm=st.integers(0, 10**10),
    memory=st.integers(10**6, 10**11), files=st.integers(64, 10**5), main=st.integers(1, 10**9),
    most=st.integers(1, 64),
)  # fmt: skip
def test_as_many_workers_as_the_bounds_name_never_exceed_a_limit(
    batch: int, tensors: int, shm: int, memory: int, files: int, main: int, most: int
) -> None:
    load, machine = Load(batch, tensors), Machine(shm, memory, files, most)
    workers = tune_bounds.most_workers(tune_bounds.bounds(load, machine, main, main))
    assert workers is not None and workers <= most
    if workers:
        assert too_much(processes(workers), load, machine, main, main) is None
        ahead = tune_bounds.most_prefetch(workers, load, Machine(shm, None, files))
        held = (workers * ahead + 1) * batch
        assert held <= 0.8 * shm and workers * ahead * tensors <= files - 128


def test_tiny_shared_memory_leaves_no_processes_but_threads() -> None:
    load, machine = Load(20 * MB, 2), Machine(64 * MB, None, None)
    assert "51.2 MB" in str(too_much(processes(1), load, machine, None, None))
    assert too_much(THREADS, load, machine, None, None) is None
    assert too_much(processes(0), load, machine, None, None) is None


def test_uneven_batches_are_bridged_within_shared_memory() -> None:
    alone = Trial(setting=processes(0), rates=[1.0], rate=1.0, batch_s=0.1, batch_p95_s=0.45)
    free = Machine(None, None, None)
    assert tune_choosing.prefetch(processes(2), [alone], Load(MB, 1), free)[0] == 6
    found, why = tune_choosing.prefetch(
        processes(2), [alone], Load(MB, 1), Machine(9 * MB, None, None)
    )
    assert found == 3 and "no more fit" in why
    even = Trial(setting=processes(0), rates=[1.0], rate=1.0, batch_s=0.1, batch_p95_s=0.11)
    assert tune_choosing.prefetch(processes(2), [even], Load(MB, 1), free)[0] == 2


SCRIPT = """from torch.utils.data import DataLoader, Dataset


class Data(Dataset):
    def __len__(self):
        return 9

    def __getitem__(self, index):
        return index


def make():
    return DataLoader(Data(), batch_size=4, num_workers=1)


def other():
    return DataLoader(Data(), batch_size=8)
"""


def test_the_diff_changes_only_the_loader_that_was_measured(tmp_path: Path) -> None:
    pytest.importorskip("libcst")
    from whyidle.data import tune_fix

    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    wanted = Arguments(
        loader="DataLoader", num_workers=3, prefetch_factor=4, persistent_workers=True,
        pin_memory=None,
    )  # fmt: skip
    diff, alone = tune_fix.diff(str(script), wanted, f"{script}:make")
    text = diff.decode()
    added = "".join(one[1:] for one in text.splitlines() if one.startswith("+ "))
    assert "num_workers=3" in added and "prefetch_factor=4" in added
    assert "batch_size=8" not in added and "not the loader that was measured" in str(alone)
    none = Arguments(
        loader="DataLoader", num_workers=0, prefetch_factor=None, persistent_workers=None,
        pin_memory=None,
    )  # fmt: skip
    assert b"num_workers=0" in tune_fix.diff(str(script), none, f"{script}:make")[0]
    diff, alone = tune_fix.diff(str(script), wanted, "elsewhere:make")
    assert diff == b"" and "not known which" in str(alone)


def test_the_call_that_is_printed_is_python() -> None:
    made = Arguments(
        loader="Loader", num_workers=2, prefetch_factor=2, persistent_workers=None, pin_memory=True
    )
    assert made.code(64) == (
        "Loader(dataset, batch_size=64, num_workers=2, prefetch_factor=2, pin_memory=True)"
    )


def test_a_setting_runs_in_a_process_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from whyidle.data.spec import parse

    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    run = tune_trials.fresh_process(parse(f"{script}:make"), None, 0.05)
    for setting in (processes(0), processes(1), THREADS):
        found = run(setting, 0)
        assert found.get("failed") is None and found["rate"] > 0 and found["main_bytes"] > 0
    script.write_text(SCRIPT.replace("return index", "raise KeyError('lost')"))
    assert "lost" in run(processes(0), 1)["failed"]
