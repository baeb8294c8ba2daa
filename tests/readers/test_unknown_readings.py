"""However a tool prints "no value", the reading is unknown with a reason, and never a zero."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whyidle.model import HOST_METRICS, METRICS, SAMPLES
from whyidle.readers import read
from whyidle.readers.unknowns import number

BLANKS = {
    "[N/A]": "not available",
    "N/A": "not available",
    "[Not Supported]": "not supported",
    "Not Supported": "not supported",
    "[Unknown Error]": "unknown error",
    "[Insufficient Permissions]": "insufficient permissions",
    "Insufficient Permissions": "insufficient permissions",
    "[GPU is lost]": "GPU is lost",
    "[GPU requires reset]": "GPU requires reset",
    "[Requested functionality has been deprecated]": "deprecated by the driver",
    "ERR!": "unknown error",
    "-": "not available",
    "": "blank",
    "nan": "not a number",
}
DCGM_BLANKS = {
    2**63 - 16: "blank",
    2**63 - 15: "not found",
    2**63 - 14: "not supported",
    2**63 - 13: "insufficient permissions",
    2**31 - 16: "blank",
    2**31 - 15: "not found",
    2**31 - 14: "not supported",
    2**31 - 13: "insufficient permissions",
    2**47: "blank",
    2**47 + 1: "not found",
    2**47 + 2: "not supported",
    2**47 + 3: "insufficient permissions",
}


def samples(name: str, text: str) -> pl.DataFrame:
    """The samples of a file of this name and text, checked against what holds for every source."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(text)
        found = read([path]).table("samples")
    assert dict(found.schema) == SAMPLES
    assert (found["value"].is_null() == found["reason"].is_not_null()).all()
    for metric, unit in found.select("metric", "unit").unique().rows():
        assert (METRICS | HOST_METRICS).get(metric, "") == unit or metric.startswith("user/")
    return found


def one(found: pl.DataFrame, metric: str) -> tuple[float | None, str | None]:
    (row,) = found.filter(pl.col("metric") == metric).select("value", "reason").rows()
    return row


@pytest.mark.parametrize(("text", "why"), BLANKS.items(), ids=list(BLANKS))
def test_a_blank_in_a_csv_is_unknown_for_its_reason(text: str, why: str) -> None:
    rows = f"index, utilization.gpu [%], power.draw [W]\n0, {text}, 70.25 W\n"
    found = samples("gpu.csv", rows)
    assert one(found, "gpu_utilization") == (None, why)
    assert one(found, "power") == (70.25, None)


@pytest.mark.parametrize(("text", "why"), BLANKS.items(), ids=list(BLANKS))
def test_a_blank_in_xml_and_in_text_is_unknown_for_its_reason(text: str, why: str) -> None:
    xml = (
        "<?xml version='1.0'?><nvidia_smi_log><attached_gpus>1</attached_gpus><gpu id='0:0'>"
        f"<utilization><gpu_util>{text}</gpu_util></utilization></gpu></nvidia_smi_log>"
    )
    log = (
        "==============NVSMI LOG==============\n\nAttached GPUs : 1\nGPU 00000000:01:00.0\n"
        f"    Utilization\n        GPU                : {text}\n"
    )
    assert one(samples("gpu.xml", xml), "gpu_utilization") == (None, why)
    assert one(samples("gpu.txt", log), "gpu_utilization") == (None, why)


@pytest.mark.parametrize("text", [t for t in BLANKS if t and " " not in t])
def test_a_blank_of_dmon_pmon_and_dcgmi_is_unknown(text: str) -> None:
    dmon = f"# gpu    pwr     sm\n# Idx      W      %\n    0     70      {text}\n"
    assert one(samples("d.txt", dmon), "gpu_utilization") == (None, BLANKS[text])
    pmon = f"# gpu  pid type  sm command\n# Idx  #  C/G  %  name\n 0  77  C  {text}  train\n"
    assert one(samples("p.txt", pmon), "gpu_utilization") == (None, BLANKS[text])
    dcgmi = f"#Entity   SMACT  POWER\nID\nGPU 0     {text}   70.0\n"
    assert one(samples("g.txt", dcgmi), "sm_active") == (None, BLANKS[text])


@pytest.mark.parametrize(("value", "why"), DCGM_BLANKS.items(), ids=[str(b) for b in DCGM_BLANKS])
def test_a_blank_of_dcgm_is_unknown_in_a_scrape_and_in_an_answer(value: int, why: str) -> None:
    scrape = (
        f'# TYPE DCGM_FI_DEV_GPU_UTIL gauge\nDCGM_FI_DEV_GPU_UTIL{{gpu="0",UUID="GPU-a"}} {value}\n'
    )
    assert one(samples("metrics.prom", scrape), "gpu_utilization") == (None, why)
    result = [{"metric": {"__name__": "DCGM_FI_DEV_GPU_UTIL"}, "values": [[1.7e9, str(value)]]}]
    answer = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    assert one(samples("range.json", json.dumps(answer)), "gpu_utilization") == (None, why)


def test_a_blank_that_a_double_has_rounded_is_still_a_blank() -> None:
    assert number("9.223372036854775e+18").value is None
    assert number("9223372036854776000").value is None
    assert number("18446744073709551615").reason == "not available"


@pytest.mark.parametrize("text", ["N/A", "Not supported", "", "ERR!"])
def test_a_blank_of_rocm_smi_is_unknown(text: str) -> None:
    data = {"card0": {"GPU use (%)": text, "Average Graphics Package Power (W)": "6.0"}}
    found = samples("rocm.json", json.dumps(data))
    assert one(found, "gpu_utilization")[0] is None
    assert one(found, "power") == (6.0, None)


@pytest.mark.parametrize("value", ["0", "0 %", "0.00", " 0 "])
def test_a_zero_stays_a_zero(value: str) -> None:
    found = samples("gpu.csv", f"index, utilization.gpu [%]\n0, {value}\n")
    assert one(found, "gpu_utilization") == (0.0, None)


@given(st.text(st.characters(codec="ascii", exclude_characters=',;\t\r\n"\x1b#'), max_size=12))
def test_no_text_becomes_a_number_that_it_does_not_print(text: str) -> None:
    found = samples("gpu.csv", f"index, power.draw [W]\n0, {text}\n1, 70 W\n")
    values = {
        index: (value, why)
        for index, value, why in found.select("device", "value", "reason").rows()
    }
    assert values[1] == (70.0, None)
    bare = text.strip().removesuffix("W").strip()
    if 0 in values and values[0][0] is not None:
        assert float(bare.strip("()").lower().removesuffix("mw")) is not None
    else:
        assert 0 not in values or values[0][1]
