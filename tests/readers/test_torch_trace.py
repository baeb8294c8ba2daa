"""What single events mean: kinds, times, devices, launches, sizes, facts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.readers.making import call, flow, kernel, op, write
from whyidle.model import DeviceInfo, Evidence
from whyidle.readers import read


def spans_of(tmp_path: Path, events: list[Any], **keys: Any) -> pl.DataFrame:
    return read([write(tmp_path / "trace.json", events, **keys)]).table("spans").sort("event")


def evidence_of(tmp_path: Path, events: list[Any], **keys: Any) -> Evidence:
    return read([write(tmp_path / "trace.json", events, **keys)])


@pytest.mark.parametrize(
    ("category", "name", "kind"),
    [
        ("cpu_op", "aten::mm", "op"),
        ("Operator", "aten::mm", "op"),
        ("Operator", "ProfilerStep#3", "annotation"),
        ("cpu_op", "ProfilerStep#3", "annotation"),
        ("Operator", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "annotation"),
        ("Operator", "Optimizer.step#SGD.step", "annotation"),
        ("Operator", "Optimizer.zero_grad#SGD.zero_grad", "annotation"),
        ("user_annotation", "forward", "annotation"),
        ("python_function", "train.py(3): main", "python"),
        ("Runtime", "cudaLaunchKernel", "runtime"),
        ("cuda_driver", "cuLaunchKernel", "runtime"),
        ("xpu_runtime", "zeCommandListAppendLaunchKernel", "runtime"),
        ("privateuse1_driver", "launch", "runtime"),
        ("mtia_runtime", "runFunction", "runtime"),
        ("overhead", "Buffer Flush", "overhead"),
        ("Kernel", "gemm", "kernel"),
        ("kernel", "CopyDeviceToHost", "kernel"),
        ("Memcpy", "Memcpy HtoD (Pageable -> Device)", "copy"),
        ("mlu_memcpy", "Memcpy", "copy"),
        ("gpu_memset", "Memset (Device)", "set"),
        ("mtia_ccp_events", "fc-dtype_Float", "kernel"),
        ("mtia_ccp_events", "dma_request", "copy"),
        ("gpu_user_annotation", "ProfilerStep#3", "device_annotation"),
        ("cuda_sync", "Stream Sync", "device_sync"),
        ("cuda_event", "cudaEventRecord", "device_sync"),
    ],
)
def test_categories_of_every_vendor_and_year_become_our_kinds(
    tmp_path: Path, category: str, name: str, kind: str
) -> None:
    event = {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": 1, "ts": 1, "dur": 1}
    found = spans_of(tmp_path, [event])
    assert found["kind"].to_list() == [kind]
    on_device = kind in ("kernel", "copy", "set", "device_annotation", "device_sync")
    assert (found["device"].to_list() == [0]) is on_device
    assert (found["thread"].to_list() == [0]) is not on_device


def test_a_stream_argument_does_not_make_a_call_device_work(tmp_path: Path) -> None:
    found = spans_of(tmp_path, [call("hipMemcpyWithStream", stream="0x0", correlation=4)])
    assert found.select("kind", "device", "lane", "thread").row(0) == ("runtime", None, None, 0)


@pytest.mark.parametrize(
    ("written", "base", "expected"),
    [
        ("1669783687464181", None, 1669783687464181000),
        ("1712195495406752.801", None, 1712195495406752801),
        ("1712195495406752.8", None, 1712195495406752800),
        ("4203669604595.407", 1735632360000000000, 1739836029604595407),
        ("8796093022207.999", '"10"', 8796093022208009),
        ("0.0005", None, 0),
        ("0.0015", None, 2),
        ("-1.5", None, -1500),
        ("1e3", None, 1000000),
        ('"12.5"', None, 12500),
        ("9007199254740993", None, None),
        ("1e300", None, None),
        ("NaN", None, None),
        ("null", None, None),
        ("true", None, None),
        ("[1]", None, None),
        ("99999999999999999999999999", None, None),
    ],
)
def test_a_start_is_kept_to_the_nanosecond_or_its_event_is_left_out_and_counted(
    tmp_path: Path, written: str, base: Any, expected: int | None
) -> None:
    head = "" if base is None else f'"baseTimeNanoseconds": {base},'
    text = (
        f'{{{head}"traceEvents":[{json.dumps(op(ts=5))},'
        f'{{"ph":"X","cat":"cpu_op","name":"b","pid":7,"tid":7,"dur":1,"ts":{written}}}]}}'
    )
    path = tmp_path / "trace.json"
    path.write_text(text)
    evidence = read([path])
    found = evidence.table("spans").filter(pl.col("name") == "b")["start_ns"].to_list()
    assert found == ([] if expected is None else [expected])
    left_out = any("left out" in note for note in evidence.sources[0].notes)
    assert left_out is (expected is None)


def test_an_event_without_ts_is_left_out_and_a_negative_duration_is_read_as_nothing(
    tmp_path: Path,
) -> None:
    evidence = evidence_of(
        tmp_path, [op("a", dur=-3), {k: v for k, v in op("b").items() if k != "ts"}, op("c", dur=2)]
    )
    spans = evidence.table("spans").sort("event")
    assert spans.select(
        pl.col("name").cast(pl.String), pl.col("end_ns") - pl.col("start_ns")
    ).rows() == [("a", 0), ("c", 2000)]
    notes = " / ".join(evidence.sources[0].notes)
    assert "1 events have no duration or a negative one" in notes
    assert "1 events have no usable start" in notes


def test_starts_at_zero_long_before_everything_else_are_left_out(tmp_path: Path) -> None:
    evidence = evidence_of(tmp_path, [op("a", ts=0), op("b", ts=1669783687464181)])
    assert evidence.table("spans")["name"].to_list() == ["b"]
    assert "time 0" in evidence.sources[0].notes[0]


def test_a_pid_as_text_and_as_a_number_is_one_thread_with_its_recorded_name(
    tmp_path: Path,
) -> None:
    names = [
        {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "args": {"name": "python"}},
        {
            "ph": "M",
            "name": "thread_name",
            "pid": 7,
            "tid": 7,
            "args": {"name": "thread 7 (python)"},
        },
        {"ph": "M", "name": "thread_name", "pid": 7, "tid": "7", "args": {"name": "pt_autograd_0"}},
    ]
    evidence = evidence_of(tmp_path, [op(pid=7, tid="7"), op(pid="7", tid=7), op(tid=8), *names])
    assert evidence.table("threads").select("process", "name").rows() == [
        ("7", "pt_autograd_0"),
        ("7", "8"),
    ]
    assert evidence.table("spans").sort("event")["thread"].to_list() == [0, 0, 1]


def test_a_device_without_an_argument_comes_from_its_lane(tmp_path: Path) -> None:
    event = {
        "ph": "X",
        "cat": "kernel",
        "name": "k",
        "pid": 2,
        "tid": "stream 7",
        "ts": 1,
        "dur": 1,
    }
    assert spans_of(tmp_path, [event]).select("device", "lane").row(0) == (2, 7)


def test_a_grid_counts_blocks_except_where_the_hip_call_was_given_threads(tmp_path: Path) -> None:
    found = spans_of(
        tmp_path,
        [
            kernel("a", correlation=1, grid=[350208, 1, 1], block=[256, 1, 1]),
            kernel("b", correlation=2, grid=[7, 2, 1], block=[64, 4, 1]),
            kernel("c", correlation=3),
            kernel("d", correlation=9, grid=[8, 1, 1], block=[32, 1, 1]),
            call("hipExtModuleLaunchKernel", correlation=1, grid=[350208, 1, 1], block=[256, 1, 1]),
            call("hipModuleLaunchKernel", correlation=2, grid=[7, 2, 1], block=[64, 4, 1]),
            call("hipExtLaunchKernel", correlation=3, grid="[56, 1, 1]", block="[100, 1, 1]"),
        ],
    ).filter(pl.col("kind") == "kernel")
    assert found["blocks"].to_list() == [1368, 14, 56, None]
    assert found["block_threads"].to_list() == [256, 256, 100, 32]


def test_sizes_are_read_from_numbers_and_text_and_never_invented(tmp_path: Path) -> None:
    found = spans_of(
        tmp_path,
        [
            kernel(grid=[24, 2, 1], block=[128, 1, 1], **{"est. achieved occupancy %": 31}),
            kernel(grid="[24,2,1]", block="[0,0,0]", **{"theoretical occupancy %": 31}),
            kernel(grid=[2**31, 2**31, 2], block=None),
            {**kernel("m", size=16), "cat": "gpu_memcpy"},
            {**kernel("m", bytes="832"), "cat": "gpu_memcpy"},
            {**kernel("m"), "cat": "gpu_memset"},
        ],
    )
    assert found["blocks"].to_list() == [48, 48, None, None, None, None]
    assert found["block_threads"].to_list() == [128, None, None, None, None, None]
    assert found["occupancy"].to_list()[1:] == [None] * 5
    assert found["occupancy"][0] == pytest.approx(0.31)
    assert found["bytes"].to_list() == [None, None, None, 16, 832, None]


def test_bytes_of_an_amd_copy_come_from_its_call(tmp_path: Path) -> None:
    copy = {**kernel("Memcpy HtoD", correlation=5), "cat": "gpu_memcpy"}
    found = spans_of(tmp_path, [copy, call("hipMemcpyWithStream", correlation=5, size="2560")])
    assert found["bytes"].to_list() == [2560, None]


def test_arrows_join_work_to_its_launch_where_no_correlation_id_was_written(
    tmp_path: Path,
) -> None:
    found = spans_of(
        tmp_path,
        [
            op(ts=15, dur=20),
            call(ts=20, dur=2), call(ts=24, dur=2),
            kernel("a", ts=30), kernel("b", ts=40), kernel("c", ts=50),
            flow("s", 20, 7, 7, 1), flow("f", 30, 0, 3, 1),
            flow("s", 25, "7", "7", 2), flow("f", 40, 0, 3, 2), flow("f", 50, 0, 3, 8),
        ],
    )  # fmt: skip
    first, second, a, b, c = found["correlation"].to_list()[1:]
    assert first == a and second == b and first != second
    assert first < 0 and second < 0 and c is None


def test_correlation_ids_that_work_are_left_alone_by_arrows(tmp_path: Path) -> None:
    found = spans_of(
        tmp_path,
        [
            call(ts=20, correlation=11), kernel("a", correlation=11), kernel("b", correlation=99),
            flow("s", 20, 7, 7, 99), flow("f", 30, 0, 3, 99),
        ],
    )  # fmt: skip
    assert found["correlation"].to_list() == [11, 11, 99]


def test_old_traces_keep_their_external_ids(tmp_path: Path) -> None:
    old = {**kernel("k", **{"external id": 537, "correlation": 3}), "cat": "Kernel"}
    found = spans_of(tmp_path, [old, op(cat="Operator", args={"External id": 2})])
    assert found["external"].to_list() == [537, 2]


def test_shapes_types_stack_and_sequence_of_an_operator_are_kept_as_written(
    tmp_path: Path,
) -> None:
    args = {
        "Input Dims": [[8, 4], []], "Input type": ["float", ""], "Sequence number": 12,
        "Call stack": "a.py(1): f;b.py(2): g", "External id": 4,
    }  # fmt: skip
    row = spans_of(tmp_path, [op(args=args), op()])
    assert row.select("shapes", "types", "stack", "sequence", "external").rows() == [
        ("[[8, 4], []]", '["float", ""]', "a.py(1): f;b.py(2): g", 12, 4),
        (None, None, None, None, None),
    ]


def test_allocator_totals_become_samples_and_none_is_invented(tmp_path: Path) -> None:
    def memory(ts: int, **args: Any) -> dict[str, Any]:
        return {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": ts, "args": args}

    gpu = {"Device Type": 1, "Device Id": 1, "Bytes": 4}
    evidence = evidence_of(
        tmp_path,
        [
            op(),
            memory(5, **gpu, **{"Total Allocated": 40, "Total Reserved": 100}),
            memory(6, **gpu),
            memory(7, **{"Device Type": 0, "Device Id": -1, "Total Allocated": 9,
                         "Total Reserved": 0}),
        ],
        distributedInfo={"rank": 2},
    )  # fmt: skip
    samples = evidence.table("samples")
    assert samples["source"].to_list() == [0, 0, 0]
    columns = ("rank", "device", "metric", "t_ns", "value", "unit")
    assert samples.select(columns).rows() == [
        (2, 1, "allocator.allocated", 5000, 40.0, "bytes"),
        (2, 1, "allocator.reserved", 5000, 100.0, "bytes"),
        (2, -1, "allocator.allocated", 7000, 9.0, "bytes"),
    ]
    assert not evidence_of(tmp_path, [op(), memory(6, **gpu)]).has("samples")


def test_facts_come_from_before_and_after_the_events(tmp_path: Path) -> None:
    keys = {
        "deviceProperties": [
            {"id": 0, "name": "NVIDIA H100", "numSms": 132, "computeMajor": 9, "computeMinor": 0,
             "totalGlobalMem": 8, "maxThreadsPerMultiprocessor": 2048},
            {"id": 1, "name": ""},
        ],
        "with_stack": 1, "record_shapes": 0, "cuda_runtime_version": 12040,
    }  # fmt: skip
    tail = {
        "distributedInfo": {"rank": 3, "world_size": 8, "backend": "nccl", "nccl_version": "2.22"},
        "WARNING": ["WARNING:2024-07-15 10:52:38 1:1 A.cpp:9] GPU buffer full"],
        "INFO": ["INFO:2024-07-15 10:52:38 1:1 A.cpp:9] Record counts: Out-of-range = 7, x = 0"],
    }
    text = json.dumps({**keys, "traceEvents": [kernel()], **tail})
    path = tmp_path / "trace.json"
    path.write_text(text)
    evidence = read([path])
    facts = evidence.facts
    assert facts.device(3, 0) == DeviceInfo("NVIDIA H100", 132, "nvidia", (9, 0), 8, 2048)
    assert facts.device(3, 1) == DeviceInfo(vendor="nvidia")
    assert (facts.world_size, facts.backend) == (8, "nccl")
    assert facts.flags == {"with_stack": True, "record_shapes": False}
    assert facts.versions == {"cuda_runtime_version": "12040", "nccl_version": "2.22"}
    assert evidence.sources[0].rank == 3
    assert evidence.table("spans")["rank"].to_list() == [3]
    assert evidence.sources[0].notes == (
        "the profiler logged: GPU buffer full",
        "the profiler left out 7 records that it took to lie outside its window",
    )


def test_an_amd_name_of_nothing_is_no_name_but_the_vendor_is_known(tmp_path: Path) -> None:
    listed = [{"id": 0, "name": "", "numSms": 304, "computeMajor": 9, "computeMinor": 4}]
    evidence = evidence_of(
        tmp_path, [kernel(stream=0)], deviceProperties=listed, hip_runtime_version=7
    )
    assert evidence.facts.device(None, 0) == DeviceInfo(None, 304, "amd", None)
    assert evidence.table("spans")["lane"].to_list() == [0]


def test_events_nobody_could_mean_do_not_hide_the_others(tmp_path: Path) -> None:
    odd: list[Any] = [
        17, None, [], {"ph": 3}, {"ph": "X"}, {"ph": "X", "cat": ["a"], "ts": 1}, {"ph": "B"},
        op("b", pid=[1], tid={"x": 1}), op("c", args=[3]), op("d", args={"External id": "12"}),
        op("e", args={"correlation": 2**70, "Call stack": ["x"]}), op(None),
        kernel("g", device="one", stream=2**70, grid={"x": 1}, correlation=1.0),
        {"ph": "i", "name": "[memory]", "ts": "x", "args": {"Total Allocated": 2**80}},
        {"ph": "M", "name": "thread_name", "pid": [], "tid": 1, "args": {"name": ["x"]}},
        {"ph": "s", "cat": ["ac2g"]},
    ]  # fmt: skip
    evidence = evidence_of(tmp_path, [op("a"), *odd, op("z")])
    spans = evidence.table("spans").sort("event")
    assert spans["name"].to_list() == ["a", "b", "c", "d", "e", "", "g", "z"]
    assert spans["external"].to_list()[3] == 12
    assert spans.filter(pl.col("name") == "g").select("device", "lane", "blocks").row(0) == (
        0, 3, None,
    )  # fmt: skip
    assert spans["correlation"].to_list()[-2] == 1
