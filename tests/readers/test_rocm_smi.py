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


def test_the_table_for_people_is_refused_with_the_command_to_run(tmp_path: Path) -> None:
    text = "==== ROCm System Management Interface ====\n==== Concise Info ====\n0 [0x74a1] 41C\n"
    with pytest.raises(UnknownEvidence, match="rocm-smi -a --json"):
        given(tmp_path, text, "rocm.txt")


def test_readings_of_amd_have_no_clock_and_say_so(tmp_path: Path) -> None:
    found = given(tmp_path, json.dumps({"card0": CARD}))
    assert found.table("samples")["t_ns"].null_count() == found.table("samples").height
    assert any("no clock" in note for note in found.sources[0].notes)
    assert found.table("samples").filter(pl.col("reason").is_not_null()).height == 1
