"""Real readings of GPUs, with figures counted from the files' own text."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from tests.evidence_dir import WHY_ABSENT, evidence_dir
from whyidle import diagnose, read
from whyidle.diagnosis import Diagnosis


def monitoring() -> Path:
    folder = evidence_dir()
    if folder is None or not (folder / "monitoring").is_dir():
        pytest.skip(WHY_ABSENT)
    return folder / "monitoring"


def diagnosed(name: str) -> Diagnosis:
    path = monitoring() / name
    if not path.exists():
        pytest.skip(f"{name} is not in this evidence")
    found = diagnose(read(path))
    assert found.crashed == []
    return found


def files(folder: str, word: str) -> list[str]:
    root = evidence_dir()
    if root is None:
        return []
    found = sorted((root / "monitoring" / folder).glob(f"*{word}*"))
    return [f"{folder}/{path.name}" for path in found]


def test_a_real_series_is_counted_reading_by_reading() -> None:
    name = "nvidia-smi-csv-series/rckola-24GB-60s.csv"
    found = diagnosed(name).job
    assert found is not None
    rows = [line.split(",") for line in (monitoring() / name).read_text().splitlines()[1:]]
    times = [int(row[0]) for row in rows]
    shares = [float(row[3]) / 100 for row in rows]
    # The file itself: 90 readings, mean 58 %; each stands for the time since the one before it.
    assert (len(rows), round(statistics.mean(shares), 2)) == (90, 0.58)
    lengths = [60, *(later - earlier for earlier, later in zip(times, times[1:], strict=False))]
    busy_s = sum(share * length for share, length in zip(shares, lengths, strict=True))
    assert found.wall_s == sum(lengths)
    assert found.busy_s == pytest.approx(busy_s, rel=1e-9)
    assert found.unknown_s == 0


def test_start_up_of_the_real_series_is_the_two_minutes_with_memory_held() -> None:
    # By the file: 1 MiB in use at the first reading, 442 and 4846 at the next two, all at 0 %.
    found = diagnosed("nvidia-smi-csv-series/rckola-24GB-60s.csv")
    (finding,) = found.findings
    assert finding.cause == "data_loading.startup_preprocessing"
    assert (finding.lost_s, finding.level) == (120.0, "suspected")


def test_a_partitioned_gpu_under_load_is_unknown_and_not_idle() -> None:
    found = diagnosed("captures/linux-x86_64__nvidia-h100-mig__590.48.01.txt")
    assert found.job is not None
    assert (found.job.idle_s, found.job.busy_s) == (0, 0)
    assert found.job.unknown_s == found.job.wall_s > 0
    assert any("MIG" in note for note in found.notes)


def test_three_loads_on_one_gpu_are_seen_to_share_it() -> None:
    # The capture's own header: gpu-burn and two memhog processes.
    found = diagnosed("captures/linux-x86_64__nvidia-h200__590.48.01.txt")
    (sign,) = [o for o in found.observations if o.cause == "scheduling.gpu_sharing"]
    assert "3 processes" in sign.what
    assert "gpu_burn" in sign.evidence[0].what


@pytest.mark.parametrize("name", files("nvidia-smi-query-gpu-csv", "idle"))
def test_an_idle_gpu_whose_link_sleeps_is_not_called_slow(name: str) -> None:
    found = diagnosed(name)
    assert [o.what for o in found.observations if o.cause == "scheduling.host_link_slow"] == []


@pytest.mark.parametrize("name", files("nvidia-smi-dmon", ".txt"))
def test_readings_without_a_clock_have_no_seconds(name: str) -> None:
    found = diagnosed(name)
    assert found.job is None
    assert found.findings == []
