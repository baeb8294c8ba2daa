"""rocm-smi and amd-smi: JSON, CSV and the text of -a; key names of several releases."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from whyidle.errors import UnknownEvidence
from whyidle.model import Evidence
from whyidle.readers import read


def given(folder: Path, text: str, name: str = "rocm.json") -> Evidence:
    path = folder / name
    path.write_text(text)
    return read([path])


def told(evidence: Evidence) -> dict[tuple[int, str], float | None]:
    rows = evidence.table("samples").select("device", "metric", "value").rows()
    return {(device, metric): value for device, metric, value in rows}


CARD = {
    "GPU use (%)": "37",
    "GPU memory use (%)": "12",
    "sclk clock speed:": "(1725Mhz)",
    "pcie clock level": "1 (16.0GT/s x16)",
    "VRAM Total Memory (B)": "34342961152",
    "Current Socket Graphics Package Power (W)": "133.0",
    "Memory Activity": "N/A",
    "PCI Bus": "0000:63:00.0",
    "Card Series": "AMD Instinct MI50",
}


def test_json_of_rocm_smi_is_normalised(tmp_path: Path) -> None:
    text = json.dumps({"card1": CARD, "system": {"Driver version": "6.7.0"}})
    found = given(tmp_path, text)
    assert told(found) == {
        (1, "gpu_utilization"): 0.37,
        (1, "memory_utilization"): None,
        (1, "sm_clock"): 1.725e9,
        (1, "pcie_gen"): 4.0,
        (1, "pcie_width"): 16.0,
        (1, "memory_total"): 34342961152.0,
        (1, "power"): 133.0,
    }
    assert found.table("samples")["gpu"].unique().to_list() == ["0000:63:00.0"]
    settings = dict(found.table("settings").select("key", "value").rows())
    assert settings["driver"] == "6.7.0" and settings["name"] == "AMD Instinct MI50"


def test_the_text_of_rocm_smi_a_reads_like_its_json(tmp_path: Path) -> None:
    text = (
        "============================ ROCm System Management Interface ====================\n"
        "Driver version: 6.7.0\n"
        "GPU[0]\t\t: GPU use (%): 37\nGPU[0]\t\t: sclk clock level: S: (137Mhz)\n"
        "GPU[1]\t\t: GPU use (%): 0\n"
    )
    found = told(given(tmp_path, text, "rocm.txt"))
    assert found == {
        (0, "gpu_utilization"): 0.37, (0, "sm_clock"): 1.37e8, (1, "gpu_utilization"): 0.0
    }  # fmt: skip


def test_csv_of_rocm_smi_is_read(tmp_path: Path) -> None:
    text = "device,GPU use (%),VRAM Total Used Memory (B)\ncard0,5,1024\ncard1,N/A,2048\n"
    assert told(given(tmp_path, text, "rocm.csv")) == {
        (0, "gpu_utilization"): 0.05, (0, "memory_used"): 1024.0,
        (1, "gpu_utilization"): None, (1, "memory_used"): 2048.0,
    }  # fmt: skip


@pytest.mark.parametrize("wrapped", [False, True])
def test_json_of_amd_smi_is_read_with_its_units(tmp_path: Path, wrapped: bool) -> None:
    gpu = {
        "gpu": 0,
        "usage": {"gfx_activity": {"value": 40, "unit": "%"}, "umc_activity": "N/A"},
        "power": {"socket_power": {"value": 120, "unit": "W"}},
        "mem_usage": {"used_vram": {"value": 8192, "unit": "MB"}},
    }
    other = {"gpu": 1, "usage": "N/A"}
    listed = [gpu, other]
    found = told(given(tmp_path, json.dumps({"gpu_data": listed} if wrapped else listed)))
    assert found == {
        (0, "gpu_utilization"): 0.4, (0, "memory_utilization"): None, (0, "power"): 120.0,
        (0, "memory_used"): 8192 * 1048576.0, (1, "gpu_utilization"): None,
        (1, "memory_utilization"): None,
    }  # fmt: skip


METRIC_NAMES = (
    "timestamp,gpu,gfx_activity,umc_activity,vcn_activity,socket_power,gfx_0_clk,gfx_0_max_clk,"
    "mem_0_clk,edge,hotspot,mem,total_vram,used_vram\n"
)
METRIC_CSV = (
    METRIC_NAMES
    + "1772939616,0,95,80,\"['N/A', 'N/A']\",350,1980,2100,901,38,72,65,196592,1024\n"
    + '1772939616,1,N/A,0,"[0, 0]",N/A,N/A,2100,901,N/A,41,N/A,196592,283\n'
    + METRIC_NAMES
    + "1772939617,0,90,80,N/A,340,1980,2100,901,38,70,65,196592,1024\n"
)


def test_a_watch_of_amd_smi_as_csv_keeps_times_units_and_what_is_unknown(tmp_path: Path) -> None:
    found = given(tmp_path, METRIC_CSV, "amd.csv")
    rows = found.table("samples")
    at = 1_772_939_616 * 10**9
    first = rows.filter((pl.col("t_ns") == at) & (pl.col("device") == 0))
    assert dict(first.select("metric", "value").rows()) == pytest.approx({
        "gpu_utilization": 0.95, "memory_utilization": 0.8, "power": 350.0, "sm_clock": 1.98e9,
        "sm_clock_max": 2.1e9, "memory_clock": 9.01e8, "temperature": 72.0,
        "memory_temperature": 65.0, "memory_total": 196592 * 2.0**20, "memory_used": 2.0**30,
    })  # fmt: skip
    other = rows.filter(pl.col("device") == 1)
    unknown = other.filter(pl.col("value").is_null())
    assert set(unknown.select("metric", "reason").rows()) == {
        (name, "not available")
        for name in ("gpu_utilization", "power", "sm_clock", "memory_temperature")
    }
    assert other.filter(pl.col("metric") == "memory_utilization")["value"].to_list() == [0.0]
    assert rows.filter(pl.col("metric") == "power")["t_ns"].max() == at + 10**9
    assert found.sources[0].clock_error_ns == 10**9


def test_csv_of_amd_smi_may_hold_any_of_its_parts_and_no_time(tmp_path: Path) -> None:
    found = given(tmp_path, "gpu,total_vram,used_vram,free_vram\n3,32768,1024,31744\n", "amd.csv")
    assert told(found) == {
        (3, "memory_total"): 2.0**35, (3, "memory_used"): 2.0**30, (3, "memory_free"): 31 * 2.0**30
    }  # fmt: skip
    assert found.table("samples")["t_ns"].to_list() == [None] * 3


def test_a_last_row_of_amd_smi_that_was_cut_is_left_out(tmp_path: Path) -> None:
    cut = METRIC_CSV[: METRIC_CSV.rindex("40,1980") + 1]  # 340 W would read as 34 W
    found = given(tmp_path, cut, "amd.csv").table("samples")
    assert found.filter(pl.col("metric") == "power")["value"].to_list() == [350.0, None]


def test_json_of_a_watch_of_amd_smi_has_its_time(tmp_path: Path) -> None:
    usage = {"gfx_activity": {"value": 40, "unit": "%"}}
    found = given(tmp_path, json.dumps([{"timestamp": 1772939616, "gpu": 0, "usage": usage}]))
    rows = found.table("samples").select("device", "t_ns", "value").rows()
    assert rows[0] == (0, 1_772_939_616 * 10**9, 0.4)


def test_the_table_for_people_is_refused_with_the_command_to_run(tmp_path: Path) -> None:
    text = "==== ROCm System Management Interface ====\n==== Concise Info ====\n0 [0x74a1] 41C\n"
    with pytest.raises(UnknownEvidence, match="rocm-smi -a --json"):
        given(tmp_path, text, "rocm.txt")


def test_readings_of_amd_have_no_clock_and_say_so(tmp_path: Path) -> None:
    found = given(tmp_path, json.dumps({"card0": CARD}))
    assert found.table("samples")["t_ns"].null_count() == found.table("samples").height
    assert any("no clock" in note for note in found.sources[0].notes)
    assert found.table("samples").filter(pl.col("reason").is_not_null()).height == 1
