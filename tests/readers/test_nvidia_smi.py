"""Output of nvidia-smi as people save it: what it says is read, what it does not say stays open."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from whyidle.errors import NothingRecorded, UnknownEvidence, UnreadableEvidence
from whyidle.model import Evidence
from whyidle.readers import nvidia_smi_csv, read, series

SECOND = 1_000_000_000
HEADER = "timestamp, index, uuid, utilization.gpu [%], memory.used [MiB]\n"


def given(folder: Path, text: str | bytes, name: str = "gpu.txt") -> Evidence:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read([path])


def series_of(evidence: Evidence, metric: str) -> list[tuple[object, ...]]:
    rows = evidence.table("samples").filter(pl.col("metric") == metric)
    return rows.select("device", "t_ns", "value").rows()


def row(second: int, index: int, use: str, name: str = "GPU-a") -> str:
    return f"2026/01/01 00:00:0{second}.500, {index}, {name}{index}, {use} %, 10 MiB\n"


def test_a_series_keeps_the_time_and_the_gpu_of_each_row(tmp_path: Path) -> None:
    text = HEADER + row(0, 0, "10") + row(0, 1, "0") + row(1, 0, "20")
    found = given(tmp_path, text)
    start = 1_767_225_600 * SECOND + SECOND // 2
    assert series_of(found, "gpu_utilization") == [
        (0, start, 0.1), (1, start, 0.0), (0, start + SECOND, 0.2)
    ]  # fmt: skip
    assert found.table("samples")["gpu"].unique().sort().to_list() == ["GPU-a0", "GPU-a1"]
    assert series_of(found, "memory_used")[0][2] == 10 * 1048576
    assert found.sources[0].clock_error_ns is None
    assert any("zone" in note for note in found.sources[0].notes)


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_units_may_be_in_the_header_alone_and_separators_differ(
    tmp_path: Path, separator: str
) -> None:
    names = ["index", "utilization.gpu [%]", "memory.total [MiB]", "clocks.current.sm [MHz]"]
    text = separator.join(names) + "\n" + separator.join(["3", "7", "24576", "1980"]) + "\n"
    found = given(tmp_path, text, "gpu.csv")
    assert series_of(found, "gpu_utilization") == [(3, None, 0.07)]
    assert series_of(found, "memory_total") == [(3, None, 24576 * 1048576)]
    assert series_of(found, "sm_clock") == [(3, None, 1.98e9)]


def test_headers_that_come_again_or_change_do_not_become_rows(tmp_path: Path) -> None:
    other = "index, power.draw [W]\n"
    text = HEADER + row(0, 0, "10") + HEADER + row(1, 0, "20") + other + "0, 70.5 W\n"
    found = given(tmp_path, text)
    assert [value for _, _, value in series_of(found, "gpu_utilization")] == [0.1, 0.2]
    assert series_of(found, "power") == [(0, None, 70.5)]
    assert found.table("samples")["value"].null_count() == 0


def test_a_gpu_that_is_lost_between_rows_is_unknown_and_told(tmp_path: Path) -> None:
    said = (
        "Unable to determine the device handle for GPU 0000:0C:00.0: GPU is lost.  "
        "Reboot the system to recover this GPU\n"
    )
    found = given(tmp_path, HEADER + row(0, 0, "10") + said + row(1, 0, "20"))
    rows = found.table("samples").filter(pl.col("metric") == "gpu_utilization")
    lost = rows.filter(pl.col("value").is_null()).select("gpu", "reason").rows()
    assert lost == [("0000:0C:00.0", "GPU is lost")]
    assert rows["value"].drop_nulls().to_list() == [0.1, 0.2]
    assert any("Reboot the system" in note for note in found.sources[0].notes)


def test_rows_without_a_header_are_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(UnknownEvidence, match="without noheader"):
        given(tmp_path, "2026/01/01 00:00:00.500, 0, 17 %, 10 MiB\n" * 3)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be"])
def test_powershells_encodings_and_line_ends_are_read(tmp_path: Path, encoding: str) -> None:
    text = (HEADER + row(0, 0, "10")).replace("\n", "\r\n")
    found = given(tmp_path, text.encode(encoding))
    assert series_of(found, "gpu_utilization")[0][2] == 0.1


def test_a_time_since_1970_is_a_known_clock(tmp_path: Path) -> None:
    found = given(tmp_path, "timestamp,utilization.gpu\n1764189075,93\n", "own.csv")
    assert series_of(found, "gpu_utilization") == [(None, 1_764_189_075 * SECOND, 0.93)]
    assert found.sources[0].clock_error_ns == SECOND


def test_processes_keep_their_id_and_their_unknown_memory(tmp_path: Path) -> None:
    text = (
        "timestamp, gpu_uuid, pid, process_name, used_gpu_memory [MiB]\n"
        "2026/01/01 00:00:00.500, GPU-a, 41, /bin/train, 370 MiB\n"
        "2026/01/01 00:00:00.500, GPU-a, 42, C:\\dwm.exe, [N/A]\n"
    )
    rows = given(tmp_path, text).table("samples").select("process", "value", "reason").rows()
    assert rows == [(41, 370 * 1048576, None), (42, None, "not available")]


def test_no_process_at_all_is_nothing_recorded(tmp_path: Path) -> None:
    with pytest.raises(NothingRecorded):
        given(tmp_path, "timestamp, gpu_uuid, pid, process_name, used_gpu_memory [MiB]\n")


DMON = (
    "#Date       Time        gpu    pwr     sm     fb  rxpci\n"
    "#YYYYMMDD   HH:MM:SS    Idx      W      %     MB   MB/s\n"
    " 20260101   23:59:59      0     70     10    100      2\n"
    " 20260101   23:59:59      1      -      0      -      0\n"
    "#Date       Time        gpu    pwr     sm     fb  rxpci\n"
    "#YYYYMMDD   HH:MM:SS    Idx      W      %     MB   MB/s\n"
    " 20260102   00:00:00      0     71     20    100      3\n"
)


def test_dmon_with_dates_sets_and_headers_that_come_again(tmp_path: Path) -> None:
    found = given(tmp_path, DMON)
    last = (1_767_225_600 + 86_399) * SECOND
    assert series_of(found, "gpu_utilization") == [
        (0, last, 0.1), (1, last, 0.0), (0, last + SECOND, 0.2)
    ]  # fmt: skip
    assert series_of(found, "pcie_rx")[2][2] == 3e6
    assert [value for _, _, value in series_of(found, "power")] == [70.0, None, 71.0]
    assert series_of(found, "memory_used")[0][2] == 100 * 1048576


def test_dmon_with_a_time_alone_counts_on_past_midnight(tmp_path: Path) -> None:
    text = "".join(line[:1] + line[12:] for line in DMON.splitlines(keepends=True))
    times = [when for _, when, _ in series_of(given(tmp_path, text), "power")]
    assert times == [86_399 * SECOND, 86_399 * SECOND, 86_400 * SECOND]


def test_dmon_with_commas_reads_like_dmon_with_spaces(tmp_path: Path) -> None:
    text = "#gpu, pwr, sm\n#Idx, W, %\n0, 70, 10\n1, -, 0\n"
    assert series_of(given(tmp_path, text), "gpu_utilization") == [(0, None, 0.1), (1, None, 0.0)]


def test_dmon_of_other_sets_in_one_file_is_read_column_by_column(tmp_path: Path) -> None:
    text = "# gpu  pwr\n# Idx  W\n 0 70\n# gpu  sm  pclk\n# Idx % MHz\n 0 33 1410\n"
    found = given(tmp_path, text)
    assert series_of(found, "power") == [(0, None, 70.0)]
    assert series_of(found, "gpu_utilization") == [(0, None, 0.33)]
    assert series_of(found, "sm_clock") == [(0, None, 1.41e9)]


def test_a_series_too_long_to_keep_is_averaged_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(series, "LIMIT", 30)
    rows = "".join(
        f" 20260101 00:{i // 60:02d}:{i % 60:02d} {gpu} {(i % 10) * (10 - 9 * gpu)}\n"
        for i in range(60)
        for gpu in (0, 1)
    )
    found = given(tmp_path, "#Date Time gpu sm\n#YYYYMMDD HH:MM:SS Idx %\n" + rows)
    kept = found.table("samples")
    assert kept.height == 30
    for gpu, mean in ((0, 0.45), (1, 0.045)):
        values = kept.filter(pl.col("device") == gpu)
        assert values["value"].mean() == pytest.approx(mean)
        assert set(values["period_ns"].drop_nulls()) == {4 * SECOND}
    assert any("averaged over runs of 4 rows" in note for note in found.sources[0].notes)


def xml(body: str, head: str = "") -> str:
    return (
        f"<?xml version='1.0'?>{head}<nvidia_smi_log><timestamp>Thu Jan  1 00:00:05 2026"
        f"</timestamp><attached_gpus>1</attached_gpus>{body}</nvidia_smi_log>"
    )


GPU = "<gpu id='00000000:01:00.0'><uuid>GPU-x</uuid><fan_speed>38 %</fan_speed></gpu>"


def test_a_loop_of_xml_documents_is_a_series(tmp_path: Path) -> None:
    found = given(tmp_path, xml(GPU) + "\n" + xml(GPU).replace("00:00:05", "00:00:10"))
    start = 1_767_225_605 * SECOND
    assert series_of(found, "fan_speed") == [(0, start, 0.38), (0, start + 5 * SECOND, 0.38)]


def test_gpus_that_are_not_all_listed_have_no_index(tmp_path: Path) -> None:
    found = given(tmp_path, xml(GPU).replace("<attached_gpus>1", "<attached_gpus>8"))
    assert series_of(found, "fan_speed")[0][0] is None
    assert any("1 of 8 GPUs" in note for note in found.sources[0].notes)


@pytest.mark.parametrize(
    "head",
    [
        "<!DOCTYPE n [<!ENTITY a 'x'>]>",
        "<!DOCTYPE n [<!ENTITY a SYSTEM 'file:///etc/passwd'>]>",
        "<!DOCTYPE n [<!ENTITY % a SYSTEM 'http://localhost/x'>%a;]>",
    ],
)
def test_xml_that_declares_entities_is_refused(tmp_path: Path, head: str) -> None:
    with pytest.raises(UnreadableEvidence, match="entity"):
        given(tmp_path, xml(GPU, head))


def test_xml_nested_without_end_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UnreadableEvidence, match="deeper"):
        given(tmp_path, xml("<a>" * 5000 + "</a>" * 5000))


def test_xml_cut_off_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UnreadableEvidence, match="XML"):
        given(tmp_path, xml(GPU)[:150])


def test_an_instance_of_a_partitioned_gpu_is_a_gpu_of_its_own(tmp_path: Path) -> None:
    mig = (
        "<mig_devices><mig_device><gpu_instance_id>2</gpu_instance_id>"
        "<compute_instance_id>0</compute_instance_id><fb_memory_usage><used>5 MiB</used>"
        "</fb_memory_usage></mig_device></mig_devices>"
    )
    found = given(tmp_path, xml(GPU.replace("</gpu>", mig + "</gpu>")))
    rows = found.table("samples").filter(pl.col("metric") == "memory_used")
    assert rows.select("gpu", "device", "value").rows() == [("GPU-x/gi2/ci0", None, 5 * 1048576.0)]


SESSION = (
    "$ nvidia-smi -L\nGPU 0: NVIDIA H200 (UUID: GPU-x)\n"
    "$ nvidia-smi topo -m\n\tGPU0\tGPU1\nGPU0\t X \tNV18\nGPU1\tNV18\t X \n"
    "$ nvidia-smi dmon -c 1\n# gpu    pwr     sm\n# Idx      W      %\n    0    70     10\n"
    "$ nvidia-smi --query-gpu=index,uuid,power.draw --format=csv\n"
    "index, uuid, power.draw [W]\n0, GPU-12, 71.5 W\n"
)


def test_a_session_of_several_commands_is_read_section_by_section(tmp_path: Path) -> None:
    found = given(tmp_path, SESSION)
    assert [value for _, _, value in series_of(found, "power")] == [71.5, 70.0] or [
        value for _, _, value in series_of(found, "power")
    ] == [70.0, 71.5]
    assert found.table("samples")["gpu"].unique().to_list() == ["GPU-12"]
    assert found.table("links").filter(pl.col("kind") == "NV18").height == 2


@pytest.mark.parametrize(
    "text",
    [
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n",
        "Failed to initialize NVML: Driver/library version mismatch\n",
        "No devices were found\n",
    ],
)
def test_what_nvidia_smi_says_without_a_gpu_is_told_as_such(tmp_path: Path, text: str) -> None:
    with pytest.raises(UnknownEvidence, match="no usable GPU"):
        given(tmp_path, text)


def test_a_folder_of_a_trace_and_readings_is_one_run(tmp_path: Path) -> None:
    from tests.readers.making import kernel, op, write

    write(tmp_path / "trace.json", [op(), kernel()], baseTimeNanoseconds=0)
    (tmp_path / "gpu.csv").write_text(HEADER + row(0, 0, "10"))
    (tmp_path / "dmon.txt").write_text(DMON)
    (tmp_path / "notes.txt").write_text("what I tried on Tuesday\n")
    found = read([tmp_path])
    assert found.has("spans") and found.has("samples")
    assert sorted(source.reader for source in found.sources) == [
        "nvidia_smi", "nvidia_smi", "torch_trace"
    ]  # fmt: skip
    assert any("notes.txt" in note for source in found.sources for note in source.notes)


def test_long_lines_that_are_no_rows_are_told_apart_at_once() -> None:
    spaces, commas = " " * 3900, "a, " * 1300
    assert not nvidia_smi_csv.headless(f"{spaces}\n{commas}\n")
    assert not nvidia_smi_csv.headless("1 %," * 1_000_000)
    assert nvidia_smi_csv.headless("0, 35 %, 200 MiB\n1, 40 %, 300 MiB\n")


GPM = (
    "# gpu    pwr  gtemp  mtemp     sm    mem   mclk   pclk      gract     smutil      smocc     "
    "mmaact       dram       fp16      pcitx      nvlrx\n"
    "# Idx      W      C      C      %      %    MHz    MHz      GPM:%      GPM:%      GPM:%      "
    "GPM:%      GPM:%      GPM:%      GPM:MB     GPM:MB\n"
    "    0    112     43      -     97      1   7001   1980          -          -      "
    "    -          -          -          -          -          -\n"
    "    0    111     43      -     98      7    810   1980         91         70         35      "
    "   52         40          0          3          7\n"
)


def test_columns_of_gpm_are_activities_of_the_parts_of_a_gpu(tmp_path: Path) -> None:
    found = given(tmp_path, GPM, "dmon.txt").table("samples")
    last = found.group_by("metric", maintain_order=True).agg(pl.col("value").last())
    told = dict(last.rows())
    assert told["gpu_utilization"] == 0.98
    parts = {"graphics_engine_active": 0.91, "sm_active": 0.7, "sm_occupancy": 0.35,
             "tensor_active": 0.52, "dram_active": 0.4, "fp16_active": 0.0,
             "pcie_tx": 3 * 2.0**20, "nvlink_rx": 7 * 2.0**20}  # fmt: skip
    assert {name: told[name] for name in parts} == pytest.approx(parts)
    first = found.filter(pl.col("metric").cast(pl.String).is_in(list(parts))).group_by("metric")
    reasons = first.agg(pl.col("value").first(), pl.col("reason").first()).rows()
    assert {(value, reason) for _, value, reason in reasons} == {(None, "not available")}


@pytest.mark.parametrize("again", ["", HEADER])
def test_a_last_row_that_was_cut_costs_only_itself(tmp_path: Path, again: str) -> None:
    """Cut inside "10", as a killed job leaves it: 1 % was never read."""
    cut = row(1, 0, "10").partition("0 %")[0]
    found = given(tmp_path, HEADER + row(0, 0, "70") + again + cut)
    assert [value for _, _, value in series_of(found, "gpu_utilization")] == [0.7]
    assert any("cut short" in note for note in found.sources[0].notes)
    assert not any("do not say which GPU" in note for note in found.sources[0].notes)


def test_a_first_row_that_is_short_does_not_cost_the_file(tmp_path: Path) -> None:
    found = given(tmp_path, HEADER + "2026/01/01 00:00:00.500, 0, GPU-a0\n" + row(1, 0, "20"))
    rows = found.table("samples").filter(pl.col("metric") == "gpu_utilization")
    assert rows.select("value", "reason").rows() == [(None, "blank"), (0.2, None)]


def test_a_last_row_of_dmon_that_was_cut_costs_only_itself(tmp_path: Path) -> None:
    text = "# gpu    pwr     sm\n# Idx      W      %\n    0    112     97\n    0    11"
    found = given(tmp_path, text, "dmon.txt")
    assert series_of(found, "power") == [(0, None, 112.0)]
    assert series_of(found, "gpu_utilization") == [(0, None, 0.97)]
