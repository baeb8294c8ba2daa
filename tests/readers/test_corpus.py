"""Every real trace, against json and decimal: each event, its kind, its name, its nanoseconds."""

from __future__ import annotations

import gzip
import json
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pytest

from tests.evidence_dir import WHY_ABSENT, traces
from whyidle.errors import EvidenceError
from whyidle.model import SPANS, THREADS, Evidence
from whyidle.readers import read

KIND_BY_CATEGORY = {
    "cpu_op": "op",
    "Operator": "op",
    "python_function": "python",
    "user_annotation": "annotation",
    "cuda_runtime": "runtime",
    "cuda_driver": "runtime",
    "mtia_runtime": "runtime",
    "Runtime": "runtime",
    "overhead": "overhead",
    "kernel": "kernel",
    "Kernel": "kernel",
    "gpu_memcpy": "copy",
    "Memcpy": "copy",
    "gpu_memset": "set",
    "Memset": "set",
    "gpu_user_annotation": "device_annotation",
    "cuda_sync": "device_sync",
}
NOT_TRACES = (
    "aiu__",
    "derived__",
    "execution_trace__benchmark_simple_add_et",
    "memory_timeline",
    "cpu_op_map",
    ".sqlite",
    ".tsv",
)


def corpus() -> list[Path]:
    folder = traces()
    return [] if folder is None else sorted(p for p in folder.iterdir() if p.is_file())


FILES = corpus()
SOUND = [p for p in FILES if not any(mark in p.name for mark in NOT_TRACES)]
OTHERS = [p for p in FILES if p not in SOUND and p.suffix != ".sqlite"]  # see test_nsys_real


def raw(path: Path) -> Any:
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    return json.loads(data, parse_float=str)


def ns(us: Any) -> int:
    return int((Decimal(us) * 1000).to_integral_value(ROUND_HALF_EVEN))


def expected_kind(event: dict[str, Any]) -> str:
    category, name = event["cat"], event["name"]
    if category == "Operator" and name.split("#")[0] in (
        "ProfilerStep",
        "enumerate(DataLoader)",
        "Optimizer.step",
        "Optimizer.zero_grad",
    ):
        return "annotation"
    if category == "mtia_ccp_events":
        return "copy" if "direction" in event["args"] else "kernel"
    return KIND_BY_CATEGORY[category]


class Recorded(NamedTuple):
    """A trace as json sees it, and as the reader does."""

    events: list[Any]
    base_ns: int
    evidence: Evidence


ABSENT = pytest.param(Path("absent"), marks=pytest.mark.skip(reason=WHY_ABSENT))


@pytest.fixture(scope="module", params=SOUND or [ABSENT], ids=lambda path: path.name[:60])
def recorded(request: pytest.FixtureRequest) -> Recorded:
    top = raw(request.param)
    events = top if isinstance(top, list) else top["traceEvents"]
    base = 0 if isinstance(top, list) else int(top.get("baseTimeNanoseconds", 0))
    return Recorded(events, base, read([request.param]))


def test_every_interval_is_read_with_its_kind_its_name_and_its_exact_nanoseconds(
    recorded: Recorded,
) -> None:
    base = recorded.base_ns
    expected = [
        (i, expected_kind(e), e["name"], base + ns(e["ts"]), base + ns(e["ts"]) + ns(e["dur"]))
        for i, e in enumerate(recorded.events)
        if e.get("ph") == "X" and e.get("cat") != "Trace"
    ]
    spans = recorded.evidence.table("spans")
    assert dict(spans.schema) == SPANS
    assert dict(recorded.evidence.table("threads").schema) == THREADS
    found = spans.sort("event").select(
        "event", pl.col("kind", "name").cast(pl.String), "start_ns", "end_ns"
    )
    assert found.rows() == expected
    assert recorded.evidence.sources[0].events == len(recorded.events)


def test_device_work_keeps_the_device_stream_and_ids_that_were_written(recorded: Recorded) -> None:
    spans = recorded.evidence.table("spans").sort("event")
    for row in spans.filter(pl.col("kind").is_in(["kernel", "copy", "set"])).iter_rows(named=True):
        event = recorded.events[row["event"]]
        args = event["args"]
        assert row["device"] == args.get("device", event["pid"])
        stream = args.get("stream", event["tid"])
        assert row["lane"] == (int(stream.split()[-1]) if isinstance(stream, str) else stream)
        assert row["correlation"] == args.get("correlation")
        assert row["external"] == args.get("External id", args.get("external id"))
        assert row["thread"] is None
        if row["blocks"] is not None and "blocks per SM" in args:
            x, y, z = args["grid"]
            assert row["blocks"] == x * y * z
    host = spans.filter(pl.col("thread").is_not_null())
    assert host.height == spans.height - spans.filter(pl.col("device").is_not_null()).height


def test_rows_are_numbered_by_start_and_a_parent_comes_before_its_children(
    recorded: Recorded,
) -> None:
    spans = recorded.evidence.table("spans")
    assert spans["row"].to_list() == list(range(spans.height))
    keys = spans.select("start_ns", -pl.col("end_ns"), "event").rows()
    assert keys == sorted(keys)


def test_allocator_readings_are_the_totals_that_were_written(recorded: Recorded) -> None:
    expected = sorted(
        (recorded.base_ns + ns(e["ts"]), float(e["args"]["Total Allocated"]))
        for e in recorded.events
        if e.get("name") == "[memory]" and "Total Allocated" in e["args"]
    )
    samples = recorded.evidence.table("samples")
    found = samples.filter(pl.col("metric") == "allocator.allocated").select("t_ns", "value")
    assert sorted(found.rows()) == expected


@pytest.mark.skipif(not FILES, reason=WHY_ABSENT)
def test_the_eight_ranks_of_one_job_lie_in_one_frame() -> None:
    paths = [path for path in FILES if "dlrm_8rank" in path.name]
    evidence = read(paths)
    spans = evidence.table("spans")
    assert sorted(spans["rank"].unique().to_list()) == list(range(8))
    assert spans.height == sum(read([path]).table("spans").height for path in paths)
    assert evidence.facts.world_size == 8
    owner = spans.drop_nulls("thread").join(evidence.table("threads"), on="thread")
    assert (owner["rank"] == owner["rank_right"]).all()


@pytest.mark.skipif(not FILES, reason=WHY_ABSENT)
@pytest.mark.parametrize("path", OTHERS, ids=lambda p: p.name[:60])
def test_what_is_no_sound_trace_is_refused_in_one_to_three_lines(path: Path) -> None:
    with pytest.raises(EvidenceError) as refused:
        read([path])
    assert 1 <= len(str(refused.value).splitlines()) <= 3
    assert str(path) in str(refused.value)
