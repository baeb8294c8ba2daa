"""Dumps of the NCCL flight recorder in every layout that PyTorch has written."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from whyidle.errors import EvidenceError, UnknownEvidence, UnreadableEvidence
from whyidle.model import Evidence
from whyidle.readers import flight_recorder, read
from whyidle.readers.source_bytes import head_of

ENTRY = {
    "frames": [{"name": "all_reduce", "filename": "c10d.py", "line": 7},
               {"name": "step", "filename": "/me/train.py", "line": 41}],
    "record_id": 5, "pg_id": 3, "process_group": ("17", "DATA"), "thread_id": "99",
    "collective_seq_id": 4, "p2p_seq_id": 2, "op_id": 6, "profiling_name": "nccl:all_reduce",
    "time_created_ns": 1_758_000_000_000_000_001, "duration_ms": 1.25,
    "input_sizes": [[2, 3], [4]], "input_dtypes": ["BFloat16", "Float"],
    "output_sizes": [[2, 3], [4]], "output_dtypes": ["BFloat16", "Float"],
    "state": "started", "time_discovered_started_ns": 1_758_000_000_000_000_900,
    "time_discovered_completed_ns": None, "retired": False, "timeout_ms": 600000, "is_p2p": False,
}  # fmt: skip
DUMP: dict[str, Any] = {
    "version": "2.9",
    "pg_config": {
        "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"},
        "17": {"name": "17", "desc": "DATA", "ranks": "[1, 3]"},
    },
    "pg_status": {
        "0": {"last_enqueued_collective": 9, "last_started_collective": -1,
              "last_completed_collective": 9},
        "3": {"last_enqueued_collective": 4, "last_started_collective": 4,
              "last_completed_collective": 3},
    },
    "entries": [ENTRY],
}  # fmt: skip


def saved(path: Path, dump: Any) -> Path:
    path.write_bytes(pickle.dumps(dump, 2))
    return path


def row(evidence: Evidence, table: str = "collectives", at: int = 0) -> dict[str, Any]:
    return evidence.table(table).row(at, named=True)


def test_a_dump_of_today_is_read_whole(tmp_path: Path) -> None:
    evidence = read([saved(tmp_path / "_dump_3", DUMP)])
    found = row(evidence)
    assert (found["rank"], found["group"], found["sequence"], found["operation"]) == (3, "17", 4, 6)
    assert (found["bytes_in"], found["shapes"]) == (2 * 6 + 4 * 4, "[[2, 3], [4]]")
    assert (found["state"], found["created_ns"]) == ("started", 1_758_000_000_000_000_001)
    assert found["started_ns"] == 1_758_000_000_000_000_900
    assert (found["completed_ns"], found["duration_ns"]) == (None, 1_250_000)
    assert found["stack"] == "c10d.py(7): all_reduce\n/me/train.py(41): step"
    data = row(evidence, "groups", 1)
    assert (data["ranks"], data["last_enqueued"], data["last_completed"]) == ([1, 3], 4, 3)
    assert evidence.facts.world_size == 4
    assert evidence.sources[0].rank == 3


def test_json_says_the_same_with_zero_for_not_yet(tmp_path: Path) -> None:
    plain = {**ENTRY, "time_discovered_completed_ns": 0, "process_group": ["17", "DATA"]}
    status = {
        number: {key: str(value) for key, value in about.items()}
        for number, about in DUMP["pg_status"].items()
    }
    text = json.dumps({**DUMP, "pg_status": status, "entries": [plain]})
    path = tmp_path / "nccl_trace_rank_3.json.gz"
    path.write_bytes(gzip.compress(text.encode()))
    one, two = read([path]), read([saved(tmp_path / "_dump_3", DUMP)])
    assert row(one) == row(two)
    assert one.table("groups").equals(two.table("groups"))


def test_first_dumps_were_a_list_with_one_running_number(tmp_path: Path) -> None:
    old = {
        "record_id": 0, "pg_id": 2, "seq_id": 8, "profiling_name": "nccl:send 0->1",
        "time_created_ns": 1_700_000_000_000_000_000, "input_sizes": [[4]],
        "output_sizes": [[4]], "state": "completed", "retired": True,
        "time_discovered_started_ns": 5, "time_discovered_completed_ns": 7, "frames": [],
    }  # fmt: skip
    evidence = read([saved(tmp_path / "nccl_trace_rank_12", [old])])
    found = row(evidence)
    assert (found["rank"], found["group"], found["sequence"], found["p2p"]) == (12, "2", 8, True)
    assert (found["bytes_in"], found["stack"], found["state"]) == (None, None, "completed")


def test_an_idle_rank_leaves_groups_and_no_operation(tmp_path: Path) -> None:
    evidence = read([saved(tmp_path / "_dump_1", {**DUMP, "entries": []})])
    assert evidence.table("collectives").height == 0
    assert evidence.table("groups")["last_enqueued"].to_list() == [9, 4]


def test_a_rank_comes_from_the_groups_when_the_name_cannot_be_true(tmp_path: Path) -> None:
    config = {**DUMP["pg_config"], "20": {"name": "20", "desc": "", "ranks": "[3]"}}
    dump = {**DUMP, "pg_config": config, "pg_status": {}}
    for name in ("dump.pkl", "_dump_77"):
        evidence = read([saved(tmp_path / name, dump)])
        assert evidence.sources[0].rank == 3
        assert "rank 3" in evidence.sources[0].notes[0]


def test_odd_values_are_absent_and_never_a_traceback(tmp_path: Path) -> None:
    odd = {
        **ENTRY, "collective_seq_id": "x", "time_created_ns": 1 << 90, "input_sizes": [["a"]],
        "state": 4, "timeout_ms": float("inf"), "frames": [3], "process_group": (),
    }  # fmt: skip
    evidence = read([saved(tmp_path / "_dump_3", {**DUMP, "entries": [odd, 3, {}]})])
    found = row(evidence)
    absent = ("sequence", "created_ns", "bytes_in", "state", "timeout_ns", "stack")
    assert [found[name] for name in absent] == [None] * 6
    assert "2 entries that are no operations" in evidence.sources[0].notes[0]


@pytest.mark.parametrize(
    ("data", "kind", "said"),
    [
        (pickle.dumps({"pg_config": 3, "entries": 4}), UnknownEvidence, "without entries"),
        (pickle.dumps({"pg_config": {}, "entries": []}), UnknownEvidence, "without entries"),
        (pickle.dumps(DUMP)[:-9], UnreadableEvidence, "ends early"),
        (b'{"pg_config": {"0": ', UnreadableEvidence, "broken JSON"),
        (b"\x80\x02cos\nsystem\n(S'pg_config'\ntR.", UnreadableEvidence, "asks for code"),
    ],
)
def test_what_is_no_dump_is_a_sentence(
    data: bytes, kind: type[EvidenceError], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "_dump_0"
    path.write_bytes(data)
    assert flight_recorder.sniff(path, head_of(path))
    with pytest.raises(kind, match=said) as refused:
        flight_recorder.read(path)
    assert len(str(refused.value).splitlines()) == 2
