"""Files made to break a reader: numbers no machine counts to, and texts that never end.

What would take hours or all memory when it is done wrong ends here at once, with evidence or with
one clear sentence.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.readers.test_flight_recorder import DUMP, ENTRY, saved
from tests.readers.test_nvidia_smi import GPU, xml
from tests.readers.test_prometheus_and_dcgm import LABELS, answer, scrape
from tests.readers.test_topology import TABS
from whyidle.errors import UnreadableEvidence, WhyidleError
from whyidle.model import Evidence
from whyidle.readers import flight_recorder, nvidia_smi_query, read
from whyidle.readers.pickle_machine import Limits, Refused
from whyidle.readers.restricted_pickle import loads, told

SECOND = 1_000_000_000
MANY = 60_000
ROCM = "ROCm System Management Interface\nGPU[0]\t: GPU use (%): 5\n"
LOG = "====NVSMI LOG====\n\nAttached GPUs : 1\nGPU 00000000:01:00.0\n    Product Name : A\n"
TABLE = "| NVIDIA-SMI 570 Driver Version: 570 | GPU-Util\n+--\n"


def given(folder: Path, text: str, name: str = "readings.txt") -> Evidence:
    path = folder / name
    path.write_text(text)
    return read([path])


def outcome(folder: Path, text: str) -> str:
    """``read``, or the sentence of the refusal."""
    try:
        given(folder, text)
    except WhyidleError as error:
        return str(error)
    return "read"


ENDLESS = {
    "blank lines": "\n" * MANY + "x\n",
    "one line of spaces": " " * MANY + "x\n",
    "a prompt and spaces": "nvidia-smi]" + " " * MANY + "x\n",
    "a header with spaces in a name": "index, utilization.gpu [%], a" + " " * MANY + "b\n0, 1 %\n",
    "blank lines after a list of links": "GPU 0: A (UUID: GPU-a)\n" + "\n" * MANY + "x\n",
    "blank lines after a matrix": TABS + "\n" * MANY + "x\n",
    "spaces in a value of rocm-smi": ROCM + "GPU[0] : a: b" + " " * MANY + "x\n",
    "spaces in a key of nvidia-smi -q": LOG + "    a" + " " * MANY + "b\n",
    "spaces in a row of the table": TABLE + "|  0  A" + " " * MANY + "\n",
    "slashes in a row of the table": TABLE + "|  0  A  | 0000:01:00.0 Off | x |\n| " + "a/" * MANY,
    "one word again and again": "SLURM_" * (MANY // 6) + "\n",
    "one heading again and again": "devices:\n" * (MANY // 9),
}  # fmt: skip


@pytest.mark.parametrize("text", ENDLESS.values(), ids=list(ENDLESS))
def test_a_long_run_of_one_character_is_looked_at_once(text: str, tmp_path: Path) -> None:
    """Each took a quarter of a minute and more, four times that for twice the length."""
    said = outcome(tmp_path, text)
    assert said == "read" or len(said.splitlines()) == 2


HUGE = ("9" * 5000, "\u00b2", "9" * 25, "99999999999")


@pytest.mark.parametrize("number", HUGE, ids=["5000 digits", "superscript", "25 digits", "11"])
def test_an_index_or_process_that_is_no_count_is_left_out(number: str, tmp_path: Path) -> None:
    process = f"<process_info><pid>{number}</pid></process_info>"
    texts = [
        xml(GPU).replace("<processes>", f"<processes>{process}"),
        f"GPU {number}: A100 (UUID: GPU-a)\n\t Link 0: 25 GB/s\n"
        "GPU 1: A (UUID: GPU-b)\n Link 0: 5\n",
        json.dumps({"card0": {"GPU use (%)": "5"}, f"card{number}": {"Card Series": "x"}}),
        f'<system><cpu numaid="0"><pci busid="a" class="0x0302"><gpu dev="{number}"/></pci>'
        '<pci busid="b" class="0x0302"><gpu dev="1"/></pci></cpu></system>',
        f"\tGPU{number}\tGPU1\nGPU{number}\tX\tNV1\nGPU1\tNV1\tX\n",
    ]  # fmt: skip
    for text in texts:
        said = outcome(tmp_path, text)
        assert said == "read" or len(said.splitlines()) == 2
    known = given(tmp_path, texts[2]).table("samples").filter(pl.col("device") == 0)
    assert known["value"].to_list() == [0.05]


@pytest.mark.parametrize("when", ["1e999", "1e35", "90000000000", "9" * 400])
def test_an_instant_beyond_all_clocks_is_unknown_and_spoils_no_other(
    when: str, tmp_path: Path
) -> None:
    """At most 2^62 ns since 1970 is an instant; 9e10 s would wrap around to a negative one."""
    lines = [f"DCGM_FI_DEV_GPU_UTIL{{{LABELS}}} 97 {t}" for t in (when, 1700000000, 1700000001)]
    scraped = given(tmp_path, scrape(*lines)).table("samples")
    expected = [1_700_000_000 * SECOND, 1_700_000_001 * SECOND]
    assert sorted(scraped["t_ns"].drop_nulls().to_list()) == expected
    assert scraped["value"].to_list() == [0.97] * 3
    rows = "".join(f"{t}, 0, 5 %\n" for t in (when, 1700000000, 1700000001))
    series = given(tmp_path, "timestamp, index, utilization.gpu [%]\n" + rows).table("samples")
    assert sorted(series["t_ns"].drop_nulls().to_list()) == expected


@pytest.mark.parametrize("when", ["1e300", "9" * 400, "-1e18", "true"])
def test_a_point_of_an_answer_without_a_sound_time_is_left_out(when: str, tmp_path: Path) -> None:
    metric = {"__name__": "DCGM_FI_DEV_GPU_UTIL", "gpu": "0"}
    text = answer({"metric": metric, "values": [["WHEN", "5"], [1700000000, "NaN"]]})
    found = given(tmp_path, text.replace('"WHEN"', when)).table("samples")
    assert found.select("t_ns", "value", "reason").rows() == [
        (1_700_000_000 * SECOND, None, "not a number")
    ]


def test_an_example_behind_a_reading_is_not_taken_for_it(tmp_path: Path) -> None:
    """OpenMetrics writes labels, a value and a time of a trace behind the reading and a hash."""
    metric, labels = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 'gpu="0",pod="a}b"'
    line = f'{metric}{{{labels}}} 5000 1700000000.5 # {{trace_id="x"}} 0.67 1700000001'
    (row,) = given(tmp_path, scrape(line)).table("samples").select("device", "value", "t_ns").rows()
    assert row == (0, 5.0, 1_700_000_000 * SECOND + SECOND // 2)  # millijoules


def test_a_document_of_more_elements_than_any_tool_writes_is_refused(tmp_path: Path) -> None:
    text = "<nvidia_smi_log>" + "<a/>" * 500_001 + "</nvidia_smi_log>"
    with pytest.raises(UnreadableEvidence, match="larger than any tool writes"):
        given(tmp_path, text)


def test_every_document_of_a_loop_is_read(tmp_path: Path) -> None:
    gpu = '<gpu id="0"><fan_speed>{} %</fan_speed></gpu>'
    one = f'<?xml version="1.0"?>\n<nvidia_smi_log>{gpu}</nvidia_smi_log>\n'
    text = "".join(one.format(i % 100) for i in range(300))
    assert len(list(nvidia_smi_query._xml_logs(tmp_path, text))) == 300
    assert given(tmp_path, text).table("samples").height == 300


def tower(wide: int, deep: int) -> list[Any]:
    """Lists that hold the one below them several times: wide^deep leaves, and few bytes."""
    found: list[Any] = []
    for _ in range(deep):
        found = [found] * wide
    return found


@pytest.mark.parametrize("key", ["input_sizes", "process_group", "thread_id", "frames", "pg_id"])
def test_lists_in_lists_in_lists_are_told_in_a_few_words(key: str, tmp_path: Path) -> None:
    hostile: Any = [{"name": tower(9, 60)}] if key == "frames" else tower(9, 60)
    entry = {**ENTRY, key: hostile, "output_sizes": tower(9, 60)}
    path = saved(tmp_path / "dump_1", {**DUMP, "entries": [entry]})
    (row,) = flight_recorder.read(path).table("collectives").iter_rows(named=True)
    assert all(len(text) < 5000 for text in row.values() if isinstance(text, str))
    assert row["name"] == "nccl:all_reduce"


def test_the_text_of_a_value_is_bounded_and_otherwise_pythons_own() -> None:
    assert told([[2, 3], (4, "Half"), None], 100) == "[[2, 3], (4, Half), None]"
    ring: list[Any] = []
    ring.append(ring)
    assert len(told(ring, 50)) <= 50
    deep: Any = 1
    for _ in range(200_000):
        deep = [deep]
    assert len(told(deep, 50)) <= 50
    assert len(told({"a": tower(9, 60), "b": "x" * 10**6}, 400)) <= 400


def test_a_shape_of_huge_numbers_has_no_bytes(tmp_path: Path) -> None:
    entries = [
        {**ENTRY, "input_sizes": [[1 << 60] * 200_000], "input_dtypes": ["Float"]},
        {**ENTRY, "input_sizes": [[2, 3]], "input_dtypes": ["Float"]},
    ]
    path = saved(tmp_path / "dump_1", {**DUMP, "entries": entries})
    assert flight_recorder.read(path).table("collectives")["bytes_in"].to_list() == [None, 24]


@pytest.mark.parametrize("last", [float("inf"), float("nan"), "9" * 5000, -1, "-1", None, True])
def test_a_last_sequence_that_is_no_count_is_unknown(last: Any, tmp_path: Path) -> None:
    status = {"0": {"last_enqueued_collective": last, "last_completed_collective": "7"}}
    dump = {**DUMP, "pg_status": status, "pg_config": {"0": DUMP["pg_config"]["0"]}}
    groups = flight_recorder.read(saved(tmp_path / "dump_1", dump)).table("groups")
    assert groups.select("last_enqueued", "last_completed").rows() == [(None, 7)]


def test_groups_with_numbers_of_5000_digits_have_no_status(tmp_path: Path) -> None:
    config = {"9" * 5000: DUMP["pg_config"]["0"]}
    dump = {**DUMP, "pg_config": config, "pg_status": {"8" * 5000: {"last_enqueued_collective": 1}}}
    groups = flight_recorder.read(saved(tmp_path / "dump_1", dump)).table("groups")
    assert groups["last_enqueued"].to_list() == [None]


def test_one_list_of_ranks_for_very_many_groups_is_refused(tmp_path: Path) -> None:
    ranks = ", ".join(map(str, range(100_000)))
    config = {str(i): {"ranks": ranks} for i in range(1000)}
    path = saved(tmp_path / "dump_1", {**DUMP, "pg_config": config})
    with pytest.raises(UnreadableEvidence, match="more operations or ranks"):
        read([path])


@pytest.mark.parametrize(
    "value", [b"}", b"K\x01\x85", b"\x8c\x02ab"], ids=["dict", "tuple", "text"]
)
def test_a_flood_of_small_values_ends_long_before_memory_does(value: bytes) -> None:
    """12 million values from as many bytes: they would take 700 MiB and more."""
    flood = b"\x80\x04](" + value * 1_000_000 + b"e0"
    data = b"\x80\x04]" + (b"](" + value * 1_000_000 + b"ea") * 12 + b"."
    assert loads(flood + b"N.") is None
    with pytest.raises(Refused, match="at hand"):
        loads(data, Limits(blocks=4_000_000))


def test_a_flood_of_items_ends_at_the_limit() -> None:
    data = b"\x80\x04]" + (b"](" + b"N" * 1_000_000 + b"ea") * 4 + b"."
    with pytest.raises(Refused, match="at hand"):
        loads(data, Limits(items=2_000_000))
    assert len(loads(data)) == 4


def test_one_history_for_many_devices_is_refused(tmp_path: Path) -> None:
    trace: list[Any] = [None] * 1000
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [trace] * 100_000}))
    with pytest.raises(UnreadableEvidence, match="one history for several devices"):
        read([path])


def test_a_failed_request_has_no_address(tmp_path: Path) -> None:
    events = [
        {"action": "alloc", "addr": 7 << 40, "size": 512, "stream": 0, "frames": []},
        {"action": "oom", "device_free": 3, "size": 9 << 30, "stream": 0, "frames": []},
    ]
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [events]}))
    found = read([path]).table("allocations")
    assert found.select("address", "free_bytes").rows() == [(7 << 40, None), (None, 3)]


@pytest.mark.parametrize("when", ["9" * 400, "1e300", "17e9", "true"])
def test_an_event_of_wandb_without_a_sound_time_or_index_spoils_no_other(
    when: str, tmp_path: Path
) -> None:
    text = (
        f'{{"_timestamp": {when}, "system.gpu.0.gpu": 5, "system.gpu.{"9" * 20}.gpu": 6}}\n'
        f'{{"_timestamp": 1700000000, "system.gpu.0.gpu": {"9" * 400}}}\n'
        '{"_timestamp": 1700000001, "system.gpu.0.gpu": true}\n'
    )
    rows = given(tmp_path, text, "wandb-events.jsonl").table("samples")
    assert sorted(rows.select("device", "t_ns", "value").rows(), key=str) == [
        (0, 1_700_000_000 * SECOND, None), (0, 1_700_000_001 * SECOND, None), (0, None, 0.05)
    ]  # fmt: skip
