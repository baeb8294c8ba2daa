"""A real job, observed and read again: what its script does on purpose must be in both ledgers."""

from __future__ import annotations

import sys
from pathlib import Path

import polars as pl
import pytest

from tests.observe.jobs import needs_torch, observe, script
from whyidle.diagnosis import Diagnosis, Finding
from whyidle.executor import diagnose_files
from whyidle.readers import read
from whyidle.views import Views

pytestmark = needs_torch

SLOW_LOADER = """
    import time, torch
    from torch.utils.data import DataLoader, Dataset

    class Slow(Dataset):
        def __len__(self):
            return 64
        def __getitem__(self, index):
            time.sleep(0.005)
            return torch.ones(8)

    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(Slow(), batch_size=4)
    for batch in loader:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    time.sleep(0.2)
    torch.save({"w": torch.zeros(8)}, "model.pt")
"""
"""16 steps; each waits at least 4 x 5 ms for its batch, made at line 13."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("job")
    script(made, SLOW_LOADER, "train.py")
    done = observe(made, sys.executable, "train.py")
    assert done.returncode == 0, done.stderr
    return made


@pytest.fixture(scope="module")
def diagnosis(folder: Path) -> Diagnosis:
    return diagnose_files([folder / "bundle"])


def waited(diagnosis: Diagnosis, ledger: str) -> Finding:
    cause = "data_loading.loader_workers_too_few"
    (found,) = (f for f in diagnosis.findings if (f.cause, f.ledger) == (cause, ledger))
    return found


def test_both_ledgers_are_fed_and_add_up(diagnosis: Diagnosis) -> None:
    assert diagnosis.crashed == []
    assert len(diagnosis.devices) == 1
    assert diagnosis.job is not None
    (device,) = diagnosis.job.devices
    assert (device.meter, device.samples) == ("training_steps", 16)
    whole = pytest.approx(device.wall_s, rel=1e-9)
    assert device.busy_s + device.idle_s + device.unknown_s == whole
    left = device.useful_s + device.lost_s + device.unexplained_s + device.unknown_s
    assert left == whole


def test_the_loader_is_found_in_both_at_the_line_that_makes_it(diagnosis: Diagnosis) -> None:
    of_run, of_window = waited(diagnosis, "job"), waited(diagnosis, "window")
    # Sleeping alone takes 20 ms in each of 16 steps; the first one's wait is partly start-up.
    assert of_run.lost_s >= 15 * 0.020
    assert of_run.level == "seen"
    (place,) = of_run.where
    assert (place.file, place.line) == ("train.py", 13)
    assert of_window.lost_s >= 4 * 0.020


def test_moments_and_profiled_steps_are_on_one_clock(folder: Path) -> None:
    evidence = read([folder / "bundle"])
    timed = evidence.table("moments").filter(pl.col("kind") == "step")
    both = Views(evidence).marks.join(timed, on="number", suffix="_timed")
    assert both.height == 4
    apart = (both["end_ns"] - both["end_ns_timed"]).abs()
    # A step lasts at least 20 ms; the two clocks are read by different code at its end.
    assert apart.to_numpy().max() < 20_000_000


def test_a_limit_on_the_recorded_bundle_fails(folder: Path) -> None:
    from whyidle.cli import main

    bundle = str(folder / "bundle")
    assert main(["diagnose", bundle, "--fail-on", "data_loading>5%", "-o", f"{folder}/r.txt"]) == 1
    # The four profiled steps are judged, and most of each is waiting: 20 ms at least.
    assert (
        main(["diagnose", bundle, "--fail-on", "data_loading>99.9%", "-o", f"{folder}/r.txt"]) == 0
    )
