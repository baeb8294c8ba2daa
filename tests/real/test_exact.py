"""On every real trace the product's figures are those of the raw events, and they add up."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.evidence_dir import WHY_ABSENT
from tests.real import corpus, raw_truth

if TYPE_CHECKING:
    from whyidle.diagnosis import Device, Diagnosis

POINTS_OF_WALL = 0.001 / 100
"""Fifty times closer than is asked for: both sides count whole nanoseconds."""
WITH_DEVICES = corpus.with_device_events()
EVERY_SOUND = [*WITH_DEVICES, *corpus.HOST_ONLY]


def test_there_is_real_evidence_to_judge() -> None:
    if not WITH_DEVICES:
        pytest.skip(WHY_ABSENT)
    silent = [n for n in WITH_DEVICES if not raw_truth.measure(corpus.path_of(n))]
    assert silent == []


@pytest.mark.parametrize("name", WITH_DEVICES)
def test_window_and_states_are_those_of_the_raw_events(name: str) -> None:
    path = corpus.path_of(name)
    truth = raw_truth.measure(path)
    diagnosis = corpus.diagnosis_of(name)
    assert len(diagnosis.devices) == len(truth)
    origin = int(diagnosis.window.origin_ns) - raw_truth.base_ns(path)
    for device, shares in zip(by_number(diagnosis), truth, strict=True):
        assert device.rank == shares.rank
        assert device.device == shares.device or not shares.stated
        assert device.start_ns + origin == pytest.approx(shares.start_ns, abs=1000, rel=0)
        assert device.end_ns + origin == pytest.approx(shares.end_ns, abs=1000, rel=0)
        assert parts_of(device) == pytest.approx(
            parts_of_truth(shares), abs=POINTS_OF_WALL * shares.wall_ns / 1e9, rel=0
        )


def test_ranks_of_one_job_keep_their_figures_when_read_together() -> None:
    import whyidle

    names = [name for name in WITH_DEVICES if name.startswith("param__dlrm_8rank__")]
    paths = [corpus.path_of(name) for name in names]
    if not paths:
        pytest.skip(WHY_ABSENT)
    together = whyidle.diagnose(whyidle.read(*paths))
    apart = [shares for path in paths for shares in raw_truth.measure(path)]
    assert len(together.devices) == len(apart) == 8
    for device, shares in zip(by_number(together), apart, strict=True):
        assert (device.rank, device.device) == (shares.rank, shares.device)
        assert parts_of(device) == pytest.approx(
            parts_of_truth(shares), abs=POINTS_OF_WALL * shares.wall_ns / 1e9, rel=0
        )


@pytest.mark.parametrize("name", EVERY_SOUND)
def test_every_device_adds_up_and_no_term_is_negative(name: str) -> None:
    diagnosis = corpus.diagnosis_of(name)
    assert diagnosis.devices
    assert diagnosis.crashed == []
    for device in diagnosis.devices:
        rows = [
            row.lost_s
            for row in diagnosis.ledger
            if (row.rank, row.device) == (device.rank, device.device)
        ]
        states = parts_of(device)
        outcome = [device.useful_s, device.lost_s, device.unexplained_s]
        assert all(math.isfinite(x) and x >= 0 for x in [*states, *outcome, *rows])
        wall = device.wall_s
        assert (device.end_ns - device.start_ns) / 1e9 == pytest.approx(wall, rel=1e-6)
        assert sum(states) == pytest.approx(wall, rel=1e-6)
        assert sum(outcome) == pytest.approx(wall, rel=1e-6)
        assert sum(rows) == pytest.approx(device.lost_s, rel=1e-6, abs=1e-6 * wall)
        assert 0 <= device.unrecorded_s <= min(device.empty_s, device.unexplained_s) + 1e-6 * wall
        assert device.useful_s <= device.compute_s + 1e-6 * wall


@pytest.mark.parametrize("name", EVERY_SOUND)
def test_ledger_rows_and_findings_tell_the_same_seconds(name: str) -> None:
    diagnosis = corpus.diagnosis_of(name)
    for finding in diagnosis.findings:
        assert 0 <= finding.share <= 1 + 1e-6
        rows = [row.lost_s for row in diagnosis.ledger if row.cause == finding.cause]
        if finding.ledger == "window":
            assert finding.lost_s == pytest.approx(sum(rows), rel=1e-6, abs=1e-9)
            assert finding.share == pytest.approx(finding.lost_s / diagnosis.wall_s, rel=1e-6)
    assert [f.lost_s for f in diagnosis.findings] == sorted(
        (f.lost_s for f in diagnosis.findings), reverse=True
    )


@pytest.mark.parametrize("name", corpus.HOST_ONLY)
def test_a_trace_without_device_events_is_diagnosed_as_a_run_on_the_cpu(name: str) -> None:
    events, _ = raw_truth.load(corpus.path_of(name))
    marks = raw_truth.step_marks(events)
    device = corpus.device_of(name)
    assert device.device == "cpu"
    assert device.wall_s == pytest.approx((marks[-1][1] - marks[0][0]) / 1e9, rel=1e-6)
    diagnosis = corpus.diagnosis_of(name)
    said = [*diagnosis.notes, *(missing.record_with for missing in diagnosis.not_judged)]
    assert any("ProfilerActivity.CUDA" in line for line in said), said


@pytest.mark.parametrize("name", corpus.BROKEN)
def test_a_file_that_is_no_trace_is_refused_in_one_clear_sentence(name: str) -> None:
    path = corpus.path_of(name)
    done = subprocess.run(
        [sys.executable, "-m", "whyidle", "diagnose", str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    lines = done.stderr.strip().splitlines()
    assert 1 <= len(lines) <= 3
    assert name in done.stderr
    assert "Traceback" not in done.stderr


def test_begin_and_end_events_without_a_category_never_crash() -> None:
    import whyidle
    from whyidle.errors import WhyidleError

    try:
        diagnosis = whyidle.diagnose(whyidle.read(corpus.path_of(corpus.NO_CATEGORY)))
    except WhyidleError as refusal:
        assert refusal.exit_code == 2
        assert 1 <= len(str(refusal).splitlines()) <= 3
    else:
        assert all(device.device == "cpu" for device in diagnosis.devices)


def by_number(diagnosis: Diagnosis) -> list[Device]:
    """Devices of a GPU run in order of their number."""
    return sorted(diagnosis.devices, key=lambda device: int(device.device))


def parts_of(device: Device) -> list[float]:
    """Seconds computing, communicating, copying, empty."""
    return [device.compute_s, device.communication_s, device.copy_s, device.empty_s]


def parts_of_truth(shares: raw_truth.Shares) -> list[float]:
    """The same, from the raw events."""
    parts = (shares.compute_ns, shares.communication_ns, shares.copy_ns, shares.empty_ns)
    return [part / 1e9 for part in parts]
