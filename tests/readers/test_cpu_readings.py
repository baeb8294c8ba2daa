"""CPU time of machines and jobs from the exporters that clusters run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.evidence_dir import WHY_ABSENT, evidence_dir
from whyidle.diagnose import diagnose
from whyidle.model import Evidence
from whyidle.readers import read
from whyidle.views import Views

START, PERIOD = 1_700_000_000, 30
POD = {"namespace": "ml", "pod": "train-0", "container": "trainer", "node": "n1"}


def series(name: str, labels: dict[str, str], *values: float) -> dict[str, Any]:
    points = [[START + i * PERIOD, str(value)] for i, value in enumerate(values)]
    return {"metric": {"__name__": name, **labels}, "values": points}


def given(folder: Path, *result: dict[str, Any]) -> Evidence:
    path = folder / "range.json"
    answer = {"status": "success", "data": {"resultType": "matrix", "result": list(result)}}
    path.write_text(json.dumps(answer))
    return read([path])


def values(evidence: Evidence, metric: str) -> list[tuple[Any, ...]]:
    rows = evidence.table("samples").filter(pl.col("metric") == metric)
    return rows.select("host", "job", "value").rows()


def the_job(evidence: Evidence) -> dict[str, Any]:
    (row,) = Views(evidence).cpu_jobs.iter_rows(named=True)
    return row


def test_a_containers_quota_and_how_often_it_ran_out_are_read(tmp_path: Path) -> None:
    found = given(
        tmp_path,
        series("container_cpu_cfs_periods_total", POD, 1000, 1300, 1600),
        series("container_cpu_cfs_throttled_periods_total", POD, 500, 620, 740),
        series("container_spec_cpu_quota", POD, 400_000),
        series("container_spec_cpu_period", POD, 100_000),
        series("container_cpu_usage_seconds_total", POD | {"cpu": "total"}, 70, 190, 310),
    )
    row = the_job(found)
    # by hand: 240 of 600 periods, 400 ms in each 100 ms, 240 s of CPU time in 60 s
    assert (row["host"], row["job"]) == ("n1", "train-0/trainer")
    assert row["held"] == pytest.approx(0.4)
    assert row["cpus"] == pytest.approx(4)
    assert row["used"] == pytest.approx(4)
    (told,) = (o.what for o in diagnose(found).observations)
    assert told == (
        "Job train-0/trainer on n1 used up its quota of 4 CPUs in 40% of the periods it ran in."
    )


def test_a_pod_as_a_whole_and_a_quota_without_limit_are_left_out(tmp_path: Path) -> None:
    whole = {key: value for key, value in POD.items() if key != "container"}
    found = given(
        tmp_path,
        series("container_cpu_usage_seconds_total", whole, 1, 2),
        series("container_cpu_usage_seconds_total", POD | {"container": "POD"}, 1, 2),
        series("container_cpu_usage_seconds_total", POD, 1, 2),
        series("container_spec_cpu_quota", POD, -1),
    )
    assert {job for _, job, _ in values(found, "job/cpu_time")} == {"train-0/trainer"}
    assert values(found, "job/cpu_quota") == []


def test_a_counter_that_starts_again_never_counts_backwards(tmp_path: Path) -> None:
    found = given(
        tmp_path,
        series("container_cpu_cfs_periods_total", POD, 1000, 1300, 10, 310),
        series("container_cpu_cfs_throttled_periods_total", POD, 500, 500, 0, 150),
    )
    # by hand: 0 of 300 before the restart, 150 of 300 after it
    assert the_job(found)["held"] == pytest.approx(0.25)


def test_a_machines_cpu_time_is_without_idle_and_waiting(tmp_path: Path) -> None:
    modes = (("user", 10.0), ("system", 5.0), ("iowait", 7.0), ("idle", 40.0))
    cpus = [
        series("node_cpu_seconds_total", {"instance": "n1", "cpu": str(cpu), "mode": mode}, 0, each)
        for cpu in range(2)
        for mode, each in modes
    ]
    found = given(tmp_path, *cpus, series("node_load1", {"instance": "n1"}, 3, 5))
    assert [value for *_, value in values(found, "host/cpu_time")] == [0, 30]
    assert {value for *_, value in values(found, "host/cpus")} == {2}
    assert [value for *_, value in values(found, "host/load")] == [3, 5]


def test_a_limit_of_memory_is_no_number_of_cpus(tmp_path: Path) -> None:
    found = given(
        tmp_path,
        series("kube_pod_container_resource_limits", POD | {"resource": "memory"}, 64e9),
        series("kube_pod_container_resource_limits", POD | {"resource": "cpu"}, 6),
    )
    assert values(found, "job/cpus") == [("n1", "train-0/trainer", 6.0)]


def test_a_published_scrape_with_cores_left_out_is_not_a_job_short_of_cpus(
    tmp_path: Path,
) -> None:
    folder = evidence_dir()
    page = folder / "monitoring/prometheus/slurm-job-exporter-README.md" if folder else None
    if page is None or not page.is_file():
        pytest.skip(WHY_ABSENT)
    blocks = re.findall(r"```.*?\n(.*?)```", page.read_text(), re.DOTALL)
    path = tmp_path / "scrape.prom"
    path.write_text(max(blocks, key=len))
    found = read([path])
    rows = {row["job"]: row for row in Views(found).cpu_jobs.iter_rows(named=True)}
    # by hand: job 1 shows one core and 12 times the CPU time of that core, so that its 13 running
    # threads say nothing; job 4 has two threads on one core and a GPU at 66 %
    assert {job: row["cpus"] for job, row in rows.items()} == {"1": None, "2": 1, "3": 2, "4": 1}
    running = {job: row["running"] for job, row in rows.items()}
    assert running == {"1": 13, "2": 1, "3": None, "4": 2}
    assert rows["4"]["gpu"] == pytest.approx(0.6645, abs=1e-4)
    assert "scheduling.cpu_allocation" not in {o.cause for o in diagnose(found).observations}
