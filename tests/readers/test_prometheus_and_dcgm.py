"""Scrapes, answers of Prometheus and dcgmi dmon: names old and new, blanks, instances, clocks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from whyidle.errors import NothingRecorded, UnknownEvidence
from whyidle.model import Evidence
from whyidle.readers import read

SECOND = 1_000_000_000
LABELS = 'gpu="1",UUID="GPU-b",device="nvidia1",modelName="NVIDIA A100",Hostname="node7"'


def given(folder: Path, text: str, name: str = "metrics.prom") -> Evidence:
    path = folder / name
    path.write_text(text)
    return read([path])


def values(evidence: Evidence, metric: str) -> list[float | None]:
    rows = evidence.table("samples").filter(pl.col("metric") == metric)
    return rows["value"].to_list()


def scrape(*lines: str) -> str:
    return "# TYPE DCGM_FI_DEV_SM_CLOCK gauge\n" + "\n".join(lines) + "\n"


def test_a_scrape_says_whose_each_reading_is(tmp_path: Path) -> None:
    found = given(tmp_path, scrape(f"DCGM_FI_DEV_GPU_UTIL{{{LABELS}}} 97", "go_threads 7"))
    (row,) = found.table("samples").select("gpu", "device", "host", "t_ns", "value").rows()
    assert row == ("GPU-b", 1, "node7", None, 0.97)
    assert ("GPU-b", "name", "NVIDIA A100") in found.table("settings").select(
        "gpu", "key", "value"
    ).rows()
    assert any("1 metrics" in note for note in found.sources[0].notes)


@pytest.mark.parametrize(
    ("old", "new", "metric"),
    [
        ("PROF_SM_ACTIVE", "PROF_SM_UTIL_RATIO", "sm_active"),
        ("PROF_SM_OCCUPANCY", "PROF_SM_OCCUPANCY_RATIO", "sm_occupancy"),
        ("PROF_PIPE_TENSOR_ACTIVE", "PROF_TENSOR_UTIL_RATIO", "tensor_active"),
        ("PROF_DRAM_ACTIVE", "PROF_DRAM_UTIL_RATIO", "dram_active"),
        ("PROF_GR_ENGINE_ACTIVE", "PROF_GR_ENGINE_UTIL_RATIO", "graphics_engine_active"),
    ],
)
def test_names_before_and_after_dcgm_4_6_mean_the_same(
    tmp_path: Path, old: str, new: str, metric: str
) -> None:
    lines = (f"DCGM_FI_{name}{{{LABELS}}} 0.25" for name in (old, new))
    assert values(given(tmp_path, scrape(*lines)), metric) == [0.25, 0.25]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["50", "1", "0"], [0.5, 0.01, 0.0]),
        (["0.5", "1", "0"], [0.5, 1.0, 0.0]),
        (["1", "0"], [None, 0.0]),
    ],
)
def test_a_ratio_that_may_be_a_percentage_is_told_by_its_values_or_unknown(
    tmp_path: Path, texts: list[str], expected: list[float | None]
) -> None:
    lines = [f'DCGM_FI_DEV_GPU_UTIL_RATIO{{gpu="{i}"}} {text}' for i, text in enumerate(texts)]
    assert values(given(tmp_path, scrape(*lines)), "gpu_utilization") == expected


def test_an_instance_is_a_gpu_of_its_own(tmp_path: Path) -> None:
    line = f'DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{LABELS},GPU_I_ID="7",GPU_I_PROFILE="1g.10gb"}} 0.5'
    (row,) = given(tmp_path, scrape(line)).table("samples").select("gpu", "device").rows()
    assert row == ("GPU-b/gi7", None)


@pytest.mark.parametrize(
    ("text", "t_ns"),
    [("1700000000123", 1_700_000_000_123_000_000), ("1700000000.5", 1_700_000_000_500_000_000)],
)
def test_times_of_prometheus_and_of_openmetrics_are_told_apart(
    tmp_path: Path, text: str, t_ns: int
) -> None:
    found = given(tmp_path, scrape(f"DCGM_FI_DEV_POWER_USAGE{{{LABELS}}} 70.5 {text}") + "# EOF\n")
    assert found.table("samples").select("t_ns", "value").rows() == [(t_ns, 70.5)]
    assert found.sources[0].clock_error_ns == 1_000_000


def answer(*result: dict[str, Any]) -> str:
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})


def test_an_answer_of_query_range_is_a_series_of_each_gpu(tmp_path: Path) -> None:
    metric = {"__name__": "nvidia_smi_utilization_gpu_ratio", "uuid": "GPU-a", "instance": "n1"}
    points = [[1_700_000_000, "0.5"], [1_700_000_015.5, "NaN"]]
    found = given(tmp_path, answer({"metric": metric, "values": points}), "range.json")
    rows = found.table("samples").select("gpu", "host", "t_ns", "value", "reason").rows()
    assert rows == [
        ("GPU-a", "n1", 1_700_000_000 * SECOND, 0.5, None),
        ("GPU-a", "n1", 1_700_000_015_500_000_000, None, "not a number"),
    ]


def test_an_error_of_prometheus_is_passed_on(tmp_path: Path) -> None:
    text = '{"status":"error","errorType":"bad_data","error":"parse error at char 3"}'
    with pytest.raises(UnknownEvidence, match="parse error at char 3"):
        given(tmp_path, text, "range.json")


def test_metrics_of_no_gpu_are_nothing_recorded(tmp_path: Path) -> None:
    result = {"metric": {"__name__": "node_memory_MemFree_bytes"}, "values": [[1_700_000_000, "1"]]}
    with pytest.raises(NothingRecorded, match="none of the 1"):
        given(tmp_path, answer(result), "range.json")


def test_slurm_and_nvml_exporters_are_normalised(tmp_path: Path) -> None:
    lines = [
        'slurm_job_utilization_gpu{gpu="0",slurmjobid="4",gpu_type="A100"} 66.5',
        'slurm_job_power_gpu{gpu="0",slurmjobid="4"} 302176',
        'nvidia_gpu_duty_cycle{minor_number="2",uuid="GPU-c"} 40',
    ]
    found = given(tmp_path, "# HELP slurm_job_power_gpu mW\n" + "\n".join(lines) + "\n")
    assert values(found, "gpu_utilization") == pytest.approx([0.665, 0.4])
    assert values(found, "power") == pytest.approx([302.176])


DCGMI = (
    "#Entity   SMACT  TENSO  POWER  GPUTL\nID\n"
    "GPU 0     0.912  0.521  612.4  100\n"
    "GPU 1     N/A    0.000  610.0  0\n"
    "GPU-I 3   0.100  0.000  N/A    N/A\n"
)


def test_dcgmi_dmon_reads_gpus_and_instances(tmp_path: Path) -> None:
    found = given(tmp_path, DCGMI, "dcgmi.txt")
    rows = found.table("samples").filter(pl.col("metric") == "sm_active")
    assert rows.select("gpu", "device", "value", "reason").rows() == [
        ("0", 0, 0.912, None), ("1", 1, None, "not available"), ("GPU-I 3", None, 0.1, None)
    ]  # fmt: skip
    assert values(found, "gpu_utilization") == [1.0, 0.0, None]


def test_a_time_that_the_user_put_before_each_row_is_taken(tmp_path: Path) -> None:
    text = "#Entity   SMACT\nID\n1700000000.25 GPU 0 0.5\n1700000001.25 GPU 0 0.6\n"
    found = given(tmp_path, text, "dcgmi.txt")
    assert found.table("samples")["t_ns"].to_list() == [
        1_700_000_000_250_000_000, 1_700_000_001_250_000_000
    ]  # fmt: skip
