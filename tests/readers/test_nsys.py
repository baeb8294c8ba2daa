"""Exports of Nsight Systems become the evidence that their rows say."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from tests.readers.nsys_making import (
    CALL,
    COLUMNS,
    COPY,
    GRAPH,
    KERNEL,
    SESSION_NS,
    SET,
    WAIT,
    Export,
    process,
    thread,
    training,
)
from whyidle.errors import NothingRecorded
from whyidle.model import SAMPLES, SPANS, THREADS, Evidence, frame
from whyidle.readers import nsys, read

YEARS = sorted(COLUMNS)


def spans(evidence: Evidence, kind: str) -> list[dict[str, object]]:
    """The spans of a kind as rows."""
    return evidence.table("spans").filter(pl.col("kind") == kind).to_dicts()


@pytest.mark.parametrize("year", YEARS)
def test_every_schema_year_gives_the_same_spans(year: int, tmp_path: Path) -> None:
    evidence = read([training(year).write(tmp_path / "report.sqlite")])
    base = 0 if year == 2021 else SESSION_NS
    assert evidence.table("spans").schema == frame(SPANS).schema
    assert evidence.table("threads").schema == frame(THREADS).schema
    kernels = spans(evidence, "kernel")
    assert [row["start_ns"] for row in kernels] == [
        base + n * 1_000_000 + 110_000 for n in range(5)
    ]
    assert {(row["name"], row["blocks"], row["block_threads"], row["lane"]) for row in kernels} == {
        ("gemm<float>(int)", 64, 128, 7)
    }
    calls = {(row["name"], row["correlation"]) for row in spans(evidence, "runtime")}
    assert ("cudaLaunchKernel", 1) in calls and ("cudaStreamSynchronize", 1000) in calls
    ops = spans(evidence, "op")
    assert [(row["name"], row["sequence"], row["shapes"]) for row in ops] == [
        ("aten::mm", number, "[[8, 8], [8, 8]]") for number in range(5)
    ]
    assert [row["name"] for row in spans(evidence, "annotation")] == [f"step {n}" for n in range(5)]


@pytest.mark.parametrize("year", YEARS)
def test_the_gpu_is_known_under_every_table_it_was_written_to(year: int, tmp_path: Path) -> None:
    facts = read([training(year).write(tmp_path / "report.sqlite")]).facts
    info = facts.device(None, 0)
    expected = ("Tesla V100", 80, (7, 0), 16 << 30) if year == 2021 else (
        "NVIDIA H100", 132, (9, 0), 80 << 30)  # fmt: skip
    assert (info.name, info.sms, info.capability, info.memory_bytes) == expected
    assert info.threads_per_sm == 2048


def test_the_seconds_of_a_run_are_the_planted_ones(tmp_path: Path) -> None:
    import whyidle

    found = whyidle.diagnose(read([training().write(tmp_path / "report.sqlite")]))
    (device,) = found.devices
    assert len(device.steps) == 5
    assert device.step_s == pytest.approx(1e-3)
    # from the first step's begin to the end of the last range
    assert device.wall_s == pytest.approx(4.9e-3)
    assert device.compute_s == pytest.approx(5 * 600e-6)
    lost = {finding.cause: finding.lost_s for finding in found.findings}
    # the 50 us of each wait, and the 40 + 5 us of operator and launch whose lead it destroyed
    assert lost["small_work.host_sync_implicit"] == pytest.approx(5 * 50e-6 + 4 * 45e-6)
    assert any("'step #'" in note for note in found.notes)


def test_copies_sets_waits_and_graphs_are_named_as_the_pytorch_profiler_names_them(
    tmp_path: Path,
) -> None:
    made = training()
    made.launch("", 20, 30, None, number=70, table=COPY, copyKind=1, srcKind=0, dstKind=2,
                bytes=4096)  # fmt: skip
    made.launch("", 40, 50, None, number=71, table=COPY, copyKind=11, srcKind=4, dstKind=2, bytes=1)
    made.launch("", 60, 70, None, number=72, table=COPY, copyKind=99, bytes=1)
    made.launch("", 80, 90, None, number=73, table=SET, memKind=2, bytes=16)
    made.launch("", 91, 99, None, number=74, table=GRAPH, graphId=12)
    made.launch("", 91, 99, None, number=75, table=WAIT, syncType=2)
    evidence = read([made.write(tmp_path / "report.sqlite")])
    assert [(row["name"], row["bytes"]) for row in spans(evidence, "copy")] == [
        ("Memcpy HtoD (Pageable -> Device)", 4096),
        ("Memcpy HtoD (Managed -> Device) migration", 1),
        ("Memcpy ? (Unknown -> Unknown)", 1),
    ]
    assert [row["name"] for row in spans(evidence, "set")] == ["Memset (Device)"]
    assert spans(evidence, "kernel")[0]["name"] == "CUDA graph 12"
    assert spans(evidence, "device_sync")[0]["name"] == "Stream Wait Event"
    assert any("--cuda-graph-trace=node" in note for note in evidence.sources[0].notes)


def test_correlation_ids_and_devices_of_two_processes_stay_apart(tmp_path: Path) -> None:
    made = training(pid=10)
    second = training(pid=20)
    for table, rows in second.rows.items():
        made.rows[table] += [
            {**row, **({"deviceId": 1} if "deviceId" in row else {})}
            for row in rows
            if table.startswith(("CUPTI", "NVTX"))
        ]
    evidence = read([made.write(tmp_path / "report.sqlite")])
    table = evidence.table("spans")
    assert [source.rank for source in evidence.sources] == [0, 1]
    assert sorted(table["rank"].unique().to_list()) == [0, 1]
    work = table.filter(pl.col("kind") == "kernel")
    assert work.select("rank", "device").unique().sort("rank").rows() == [(0, 0), (1, 1)]
    calls = table.filter(pl.col("name") == "cudaLaunchKernel")
    pairs = work.join(calls, on=["source", "correlation"])
    assert pairs.height == work.height == 10
    assert (pairs["rank"] == pairs["rank_right"]).all()
    assert any("numbered" in note for note in evidence.sources[0].notes)


def test_a_launcher_that_named_the_rank_is_believed_and_no_other_variable_is_kept(
    tmp_path: Path,
) -> None:
    made = training()
    for value in ('RANK="5"', 'WORLD_SIZE="8"', 'API_TOKEN="12345"'):
        made.add("META_DATA_CAPTURE", name="PROCESS_0:ENVIRONMENT_VARIABLE", value=value)
    evidence = read([made.write(tmp_path / "report.sqlite")])
    assert evidence.sources[0].rank == 5
    assert evidence.facts.world_size == 8
    assert "12345" not in repr((evidence.facts, evidence.sources))


def test_texts_in_the_table_and_texts_by_number_read_the_same(tmp_path: Path) -> None:
    made = Export()
    made.launch("k", 10, 20, (1, 2), number=1)
    made.range("loading", 1, 5)
    made.range("loading", 6, 9, inline=False)
    made.range("a mark", 6, None, kind=34)
    made.range("NCCL", 6, 7, kind=75)
    evidence = read([made.write(tmp_path / "report.sqlite")])
    assert [row["name"] for row in spans(evidence, "annotation")] == ["loading", "loading"]


def test_system_calls_are_kept_on_threads_that_did_something_else(tmp_path: Path) -> None:
    made = training()
    for tid in (11, 12):
        made.add("OSRT_API", start=5, end=50, globalTid=thread(10, tid), nameId=made.text("poll"))
    evidence = read([made.write(tmp_path / "report.sqlite")])
    assert [row["name"] for row in spans(evidence, "system")] == ["poll"]
    assert evidence.table("threads").height == 1


def test_a_full_launch_queue_is_not_called_overhead_of_the_profiler(tmp_path: Path) -> None:
    made = training()
    for kind, name in ((8, "Command buffer full"), (6, "Runtime Triggered Module Loading")):
        made.add("CUPTI_ACTIVITY_KIND_OVERHEAD", start=3, end=9, globalTid=thread(10, 11),
                 nameId=made.text(name), overheadType=kind)  # fmt: skip
    evidence = read([made.write(tmp_path / "report.sqlite")])
    assert [row["name"] for row in spans(evidence, "overhead")] == [
        "Runtime Triggered Module Loading"
    ]


def metrics(made: Export, *names: str) -> None:
    """Name metrics of GPU 3."""
    for number, name in enumerate(names):
        made.add("TARGET_INFO_GPU_METRICS", typeId=0x1003, metricId=number, metricName=name)


def test_gpu_metrics_become_samples_in_our_units(tmp_path: Path) -> None:
    made = training()
    metrics(made, "SMs Active [Throughput %]", "GPC Clock Frequency [MHz]",
            "DRAM Read Bandwidth [Throughput %]", "DRAM Write Bandwidth [Throughput %]",
            "PCIe RX Throughput [Throughput %]")  # fmt: skip
    for at in (0, 100_000_000, 200_000_000):
        for number, value in enumerate((40, -1_768_172_296, 20, 5, 7)):
            made.add("GPU_METRICS", timestamp=at, typeId=0x1003, metricId=number, value=value)
    samples = read([made.write(tmp_path / "report.sqlite")]).table("samples")
    assert samples.schema == frame(SAMPLES).schema
    first = samples.filter(pl.col("t_ns") == SESSION_NS + 100_000_000)
    got = {row["metric"]: (row["value"], row["unit"]) for row in first.to_dicts()}
    assert got == {
        "sm_active": (pytest.approx(0.4), "ratio"),
        "sm_clock": (2_526_795_000.0, "Hz"),
        "dram_active": (pytest.approx(0.25), "ratio"),
    }
    assert first.select("device", "gpu", "period_ns").unique().rows() == [
        (0, "GPU-abc", 100_000_000)
    ]


def test_fast_gpu_metrics_are_averaged_and_keep_their_mean(tmp_path: Path) -> None:
    made = training()
    metrics(made, "SMs Active [Throughput %]")
    for tick in range(10_000):  # 10 kHz for a second
        made.add("GPU_METRICS", timestamp=tick * 100_000, typeId=0x1003, metricId=0,
                 value=100 if tick % 4 == 0 else 0)  # fmt: skip
    samples = read([made.write(tmp_path / "report.sqlite")]).table("samples")
    assert samples.height == 1000
    assert samples["value"].to_numpy().mean() == pytest.approx(0.25)
    assert samples["period_ns"].unique().to_list() == [1_000_000]


def test_an_export_on_the_wall_clock_is_not_shifted_again(tmp_path: Path) -> None:
    made = training()
    made.add("META_DATA_EXPORT", name="EXPORT_PARAM_TIME_NORMALIZE", value="true")
    evidence = read([made.write(tmp_path / "report.sqlite")])
    assert spans(evidence, "kernel")[0]["start_ns"] == 110_000
    shifted = training()
    shifted.add("META_DATA_EXPORT", name="EXPORT_CONFIG_TIME_SHIFT", value="-5000")
    evidence = read([shifted.write(tmp_path / "other.sqlite")])
    assert spans(evidence, "kernel")[0]["start_ns"] == SESSION_NS + 5000 + 110_000


def test_warnings_of_the_profiler_and_unused_tables_become_notes(tmp_path: Path) -> None:
    made = training()
    made.add("DIAGNOSTIC_EVENT", severity=2, text="Some events\twere dropped")
    made.add("DIAGNOSTIC_EVENT", severity=1, text="Profiling has started")
    made.add("SCHED_EVENTS", id=1, start=1)
    notes = " ".join(read([made.write(tmp_path / "report.sqlite")]).sources[0].notes)
    assert "Some events were dropped" in notes and "has started" not in notes
    assert "SCHED_EVENTS" in notes


@pytest.mark.parametrize("year", YEARS)
def test_any_missing_table_or_column_costs_what_it_said_and_no_more(
    year: int, tmp_path: Path
) -> None:
    places = [*COLUMNS[year]] + [
        f"{t}.{c}" for t, columns in COLUMNS[year].items() for c in columns.split()
    ]
    for at, place in enumerate([*places, "StringIds"]):
        made = training(year)
        if place == "StringIds":
            made.texts = {}
        path = made.write(tmp_path / f"{at}.sqlite", without=[place])
        evidence = nsys.read(path)
        kernels = spans(evidence, "kernel")
        lost = place in (KERNEL, f"{KERNEL}.start", f"{KERNEL}.end")
        assert len(kernels) == (0 if lost else 5), place
        path.unlink()


def test_an_export_of_nothing_says_how_to_record(tmp_path: Path) -> None:
    with pytest.raises(NothingRecorded, match="nsys profile --trace=cuda,nvtx"):
        read([Export().write(tmp_path / "report.sqlite")])


def test_without_ranges_only_calls_are_judged_and_the_report_names_flags_of_nsys(
    tmp_path: Path,
) -> None:
    import whyidle

    made = training()
    path = made.write(tmp_path / "report.sqlite", without=["NVTX_EVENTS"])
    found = whyidle.diagnose(read([path]))
    judged = {finding.cause for finding in found.findings}
    assert "small_work.host_sync_implicit" in judged
    assert "small_work.python_between_ops" not in judged
    unfed = {missing.cause: missing.record_with for missing in found.not_judged}
    assert "--pytorch=autograd-shapes-nvtx" in unfed["small_work.python_between_ops"]
    assert any("left unexplained" in note for note in found.notes)
    assert not any("prof.step()" in note for note in found.notes)


def test_records_that_end_before_they_begin_are_left_out_and_counted(tmp_path: Path) -> None:
    made = training()
    made.launch("bad", 900, 100, None, number=88)
    made.launch("far", 1 << 62, (1 << 62) + 5, None, number=89)
    evidence = read([made.write(tmp_path / "report.sqlite")])
    assert len(spans(evidence, "kernel")) == 5
    assert any(note.startswith("2 records without a sound") for note in evidence.sources[0].notes)


def test_the_digest_and_progress_cover_the_file(tmp_path: Path) -> None:
    path = training().write(tmp_path / "report.sqlite")
    told: list[tuple[int, int]] = []
    evidence = nsys.read(path, lambda done, size: told.append((done, size)))
    assert evidence.sources[0].digest is not None
    assert told and told[-1] == (path.stat().st_size, path.stat().st_size)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_global_ids_are_those_that_the_format_writes() -> None:
    assert thread(91186, 91186) - process(91186) == 91186
    assert CALL == nsys.CALLS
