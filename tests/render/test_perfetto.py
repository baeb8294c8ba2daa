"""The original trace passes through whole, and our tracks lie inside the step on its clock."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.evidence_dir import WHY_ABSENT, traces
from tests.render.building import ORIGIN_NS, one_source
from tests.render.cases import CASES, loader_bound, many_ranks
from whyidle.diagnosis import Diagnosis
from whyidle.errors import OutputError, UnreadableEvidence
from whyidle.render import chrome_json, perfetto

EVENTS: list[dict[str, Any]] = [
    {"ph": "X", "name": 'a "quoted" ] name \\', "pid": 1, "tid": "1", "ts": 1.5, "dur": 0},
    {"ph": "X", "name": "[{", "pid": 1, "tid": 2, "ts": 2, "args": {"Input Dims": [[1, 2], []]}},
]
BASE_NS = 1_623_142_000_000_000_000


def timed(text: str | bytes) -> Any:
    """The JSON with decimals kept exact."""
    return json.loads(text, parse_float=Decimal)


def written(tmp_path: Path, trace: str, diagnosis: Diagnosis | None = None) -> Any:
    source, out = tmp_path / "trace.json", tmp_path / "with_losses.json"
    source.write_text(trace, encoding="utf-8")
    perfetto.write(diagnosis or loader_bound(), source, out)
    return timed(out.read_text(encoding="utf-8"))


def ours(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event.get("pid") == perfetto.PROCESS]


def test_events_and_all_else_in_the_file_are_unchanged(tmp_path: Path) -> None:
    trace = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "traceEvents": [1]}],
        "traceEvents": EVENTS,
        "traceName": "x]",
        "baseTimeNanoseconds": BASE_NS,
    }
    found = written(tmp_path, json.dumps(trace))
    assert found["traceEvents"][: len(EVENTS)] == timed(json.dumps(EVENTS))
    assert {**found, "traceEvents": EVENTS} == trace


@pytest.mark.parametrize("base_ns", [0, BASE_NS])
def test_losses_start_and_end_where_the_diagnosis_says_to_the_nanosecond(
    tmp_path: Path, base_ns: int
) -> None:
    diagnosis = loader_bound()
    timeline = diagnosis.timeline
    assert timeline is not None
    trace: dict[str, Any] = {"traceEvents": EVENTS}
    if base_ns:
        trace["baseTimeNanoseconds"] = base_ns
    slices = [
        e for e in ours(written(tmp_path, json.dumps(trace))["traceEvents"]) if e["ph"] == "X"
    ]
    origin_ns = int(ORIGIN_NS)
    placed = [(base_ns + int(s["ts"] * 1000) - origin_ns, int(s["dur"] * 1000)) for s in slices]
    assert placed == [(c.start_ns, c.end_ns - c.start_ns) for c in timeline.claims]
    assert all(
        timeline.start_ns <= start and start + length <= timeline.end_ns for start, length in placed
    )


def test_each_loss_carries_its_cause_and_unexplained_time_has_its_own_track(
    tmp_path: Path,
) -> None:
    found = ours(written(tmp_path, json.dumps(EVENTS)))
    first = next(e for e in found if e["ph"] == "X")
    assert first["name"] == "Too few loader workers"
    assert first["args"]["cause"] == "data_loading.loader_workers_too_few"
    assert first["args"]["where"] == "train.py:88"
    tracks = {e["tid"]: e["args"]["name"] for e in found if e["name"] == "thread_name"}
    assert tracks == {1: "whyidle: lost time (cause)", 2: "whyidle: unexplained time"}
    assert {e["tid"] for e in found if e["name"] == "unexplained"} == {2}


@pytest.mark.parametrize(
    "trace",
    [
        "[]",
        " \n[ ]\n",
        "[{}]",
        '\n{"traceEvents": []}',
        '{"traceEvents": [{"ph":"X"}]}',
        '{"a": {"traceEvents": [0]}, "traceEvents" : [ {"n": "\\\\"} ] , "b": "]"}',
    ],
)
def test_every_form_of_trace_stays_valid(tmp_path: Path, trace: str) -> None:
    before, after = json.loads(trace), written(tmp_path, trace)
    old = before if isinstance(before, list) else before["traceEvents"]
    new = after if isinstance(after, list) else after["traceEvents"]
    assert new[: len(old)] == old
    assert len(ours(new)) > 10


def test_a_packed_trace_is_read_and_a_packed_one_is_written(tmp_path: Path) -> None:
    source, out = tmp_path / "trace.json.gz", tmp_path / "out.json.gz"
    source.write_bytes(gzip.compress(json.dumps(EVENTS).encode()))
    perfetto.write(loader_bound(), source, out)
    assert json.loads(gzip.decompress(out.read_bytes()))[:2] == EVENTS


def test_the_original_is_never_overwritten(tmp_path: Path) -> None:
    source = tmp_path / "trace.json"
    source.write_text("[]")
    (tmp_path / "link.json").symlink_to(source)
    for out in (source, tmp_path / "link.json"):
        with pytest.raises(OutputError, match="would overwrite"):
            perfetto.write(loader_bound(), source, out)
    assert source.read_text() == "[]"


@pytest.mark.parametrize("broken", ["", "{}", "[{", '{"traceEvents": [{"a": "', "no json", "7"])
def test_a_file_that_is_no_trace_leaves_nothing_behind(tmp_path: Path, broken: str) -> None:
    source, out = tmp_path / "trace.json", tmp_path / "out.json"
    source.write_text(broken)
    with pytest.raises(UnreadableEvidence):
        perfetto.write(loader_bound(), source, out)
    assert [file.name for file in tmp_path.iterdir()] == ["trace.json"]


def test_a_broken_archive_is_a_sentence(tmp_path: Path) -> None:
    source = tmp_path / "trace.json.gz"
    source.write_bytes(gzip.compress(json.dumps(EVENTS * 50).encode())[:-20])
    with pytest.raises(UnreadableEvidence, match="cannot be read"):
        perfetto.write(loader_bound(), source, tmp_path / "out.json")


def test_a_folder_that_does_not_exist_is_a_sentence(tmp_path: Path) -> None:
    source = tmp_path / "trace.json"
    source.write_text("[]")
    with pytest.raises(OutputError, match="cannot be written"):
        perfetto.write(loader_bound(), source, tmp_path / "nowhere" / "out.json")


def test_without_a_timeline_there_is_no_track(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="no timeline"):
        perfetto.write(CASES["healthy"](), tmp_path / "trace.json", tmp_path / "out.json")


def test_an_origin_that_is_no_instant_is_a_sentence(tmp_path: Path) -> None:
    found = loader_bound()
    window = msgspec.structs.replace(found.window, origin_ns="yesterday")
    with pytest.raises(OutputError, match="no instant"):
        written(tmp_path, '{"traceEvents": []}', msgspec.structs.replace(found, window=window))


def test_the_trace_of_another_rank_is_refused_with_the_right_one_named(tmp_path: Path) -> None:
    timeline = loader_bound().timeline
    assert timeline is not None
    diagnosis = msgspec.structs.replace(
        many_ranks(),
        timeline=msgspec.structs.replace(timeline, rank=5),
        sources=[one_source(f"rank{rank}.json", rank=rank) for rank in (2, 5)],
    )
    source = tmp_path / "rank2.json"
    source.write_text("[]")
    with pytest.raises(OutputError, match=r"is rank 2.*rank 5.*\nGive runs/rank5.json"):
        perfetto.write(diagnosis, source, tmp_path / "out.json")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=150)
@given(
    events=st.lists(JSON_VALUES, max_size=6),
    before=st.dictionaries(st.text(max_size=5), JSON_VALUES, max_size=3),
    after=st.dictionaries(st.text(max_size=5), JSON_VALUES, max_size=3),
    base_ns=st.none() | st.integers(min_value=0, max_value=2**62),
    chunk=st.integers(min_value=1, max_value=40),
    indent=st.none() | st.just(1),
    escaped=st.booleans(),
)
def test_the_end_of_the_list_is_found_wherever_a_chunk_is_cut(
    events: list[Any],
    before: dict[str, Any],
    after: dict[str, Any],
    base_ns: int | None,
    chunk: int,
    indent: int | None,
    escaped: bool,
) -> None:
    trace = {**before, "traceEvents": events, **after}
    trace.pop("baseTimeNanoseconds", None)
    if base_ns is not None:
        trace["baseTimeNanoseconds"] = base_ns
    text = json.dumps(trace, indent=indent, ensure_ascii=escaped).encode()
    scan = chrome_json._Scan("trace")
    for start in range(0, len(text), chunk):
        scan.feed(text[start : start + chunk])
    layout = scan.finish()
    assert layout.base_ns == (base_ns or 0)
    assert layout.empty == (not events)
    assert text[layout.end : layout.end + 1] == b"]"
    comma = b"" if layout.empty else b","
    longer = json.loads(text[: layout.end] + comma + b'"ours"' + text[layout.end :])
    assert longer == {**trace, "traceEvents": [*events, "ours"]}


def test_real_traces_pass_through_unchanged(tmp_path: Path) -> None:
    folder = traces()
    if folder is None:
        pytest.skip(WHY_ABSENT)
    checked = 0
    for source in sorted(folder.glob("*.json.gz")):
        if source.stat().st_size > 90_000 or "derived" in source.name:
            continue
        old = json.loads(gzip.decompress(source.read_bytes()), strict=False)
        if isinstance(old, dict) and "traceEvents" not in old:
            continue
        out = tmp_path / "out.json"
        perfetto.write(loader_bound(), source, out)
        new = json.loads(out.read_bytes(), strict=False)
        old_events = old if isinstance(old, list) else old["traceEvents"]
        new_events = new if isinstance(new, list) else new["traceEvents"]
        assert new_events[: len(old_events)] == old_events, source.name
        checked += 1
    assert checked >= 5
