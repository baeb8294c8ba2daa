"""Execution traces fill in what the profiler's trace beside them did not record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.evidence_dir import WHY_ABSENT, traces
from whyidle.errors import UnknownEvidence, UnreadableEvidence
from whyidle.model import Evidence
from whyidle.readers import execution_trace, read

NAMES = ("aten::mm", "aten::add", "aten::relu")


def trace(path: Path, names: tuple[str, ...] = NAMES, **args: Any) -> Path:
    """A profiler's trace of operators with External ids 1, 2, 3 and no shapes."""
    events = [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": 10 * n, "dur": 5,
         "args": {"External id": n, **args}}
        for n, name in enumerate(names, start=1)
    ]  # fmt: skip
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


def node(number: int, name: str) -> dict[str, Any]:
    """A node of schema 1.0."""
    return {
        "name": name, "id": number + 4, "rf_id": number, "parent": 1, "inputs": [[1], 2],
        "input_shapes": [[[8, number]], [], [[]]],
        "input_types": ["Tensor(c10::Half)", "Int", "GenericList[Tensor(float)]"],
    }  # fmt: skip


def chakra(number: int, name: str) -> dict[str, Any]:
    """The same of schema 1.1."""
    old = node(number, name)
    return {
        "id": number + 4, "name": name, "ctrl_deps": 1,
        "inputs": {"values": [], "shapes": old["input_shapes"], "types": old["input_types"]},
        "attrs": [{"name": "rf_id", "type": "uint64", "value": number},
                  {"name": "op_schema", "type": "string", "value": ""}],
    }  # fmt: skip


def observed(path: Path, nodes: list[dict[str, Any]], schema: str = "1.0.1") -> Path:
    """An execution trace."""
    path.write_text(json.dumps({"schema": schema, "pid": 1, "nodes": nodes}))
    return path


def shapes(evidence: Evidence) -> list[tuple[str | None, str | None]]:
    """Shapes and types of the operators in order."""
    ops = evidence.table("spans").filter(pl.col("kind") == "op")
    return ops.select(pl.col("shapes", "types").cast(pl.String)).rows()


@pytest.mark.parametrize(("make", "schema"), [(node, "1.0.1"), (chakra, "1.1.1-chakra.0.0.4")])
def test_both_schemas_fill_in_shapes_and_types(make: Any, schema: str, tmp_path: Path) -> None:
    nodes = [{"name": "[root]", "id": 1, "rf_id": 0}]
    nodes += [make(n, name) for n, name in enumerate(NAMES, start=1)]
    given = observed(tmp_path / "et.json", nodes, schema)
    evidence = read([trace(tmp_path / "trace.json"), given])
    found = shapes(evidence)
    assert [json.loads(shape or "") for shape, _ in found] == [
        [[[8, number]], [], [[]]] for number in (1, 2, 3)
    ]
    assert json.loads(found[0][1] or "") == ["c10::Half", "Scalar", "TensorList"]
    assert any("shapes and types of 3 operators" in note for note in evidence.sources[0].notes)


def test_what_the_trace_recorded_itself_is_kept(tmp_path: Path) -> None:
    args = {"Input Dims": [[4, 4]], "Input type": ["float"]}
    given = observed(tmp_path / "et.json", [node(n, name) for n, name in enumerate(NAMES, 1)])
    evidence = read([given, trace(tmp_path / "trace.json", **args)])
    assert {json.loads(shape or "")[0][0] for shape, _ in shapes(evidence)} == {4}


def test_numbers_that_stand_for_other_operators_are_not_joined(tmp_path: Path) -> None:
    nodes = [node(n, "aten::other") for n in (1, 2, 3)]
    evidence = read([trace(tmp_path / "trace.json"), observed(tmp_path / "et.json", nodes)])
    assert shapes(evidence) == [(None, None)] * 3
    assert any("was not used" in note for note in evidence.sources[0].notes)


def test_ranks_are_paired_by_their_file_names(tmp_path: Path) -> None:
    for rank in (0, 1):
        trace(tmp_path / f"rank{rank}.json")
    observed(tmp_path / "rank1_et.json", [node(n, name) for n, name in enumerate(NAMES, 1)])
    evidence = read([tmp_path])
    filled = evidence.table("spans").filter(pl.col("shapes").is_not_null())
    assert filled["rank"].unique().to_list() == [1]


def test_by_itself_it_says_what_to_give_beside_it(tmp_path: Path) -> None:
    path = observed(tmp_path / "et.json", [node(1, "aten::mm")])
    with pytest.raises(UnknownEvidence, match="has no times.*\n.*trace of the same run"):
        read([path])


@pytest.mark.parametrize(
    "text",
    ['{"schema": "1.0.1", "nodes": [{"rf_id": 1', '{"schema": "1.0.1", "nodes": {"rf_id": 1}}',
     '{"schema": "1.0.1", "nodes": [7, "rf_id"], "x": "rf_id"}',
     '{"schema": "1.0.1", "nodes": [{"rf_id": 1, "name": {}}]}'],
)  # fmt: skip
def test_a_broken_one_gets_a_sentence(text: str, tmp_path: Path) -> None:
    path = tmp_path / "et.json"
    path.write_text(text)
    with pytest.raises(UnreadableEvidence):
        execution_trace.read(path)


@pytest.mark.parametrize(
    "odd",
    [{"rf_id": "x"}, {"rf_id": -1}, {"rf_id": 1 << 70}, {"input_types": "text"},
     {"input_types": [1, None]}, {"input_shapes": None}, {"inputs": {"shapes": 5}}, {"attrs": []}],
)  # fmt: skip
def test_odd_nodes_cost_themselves_only(odd: dict[str, Any], tmp_path: Path) -> None:
    nodes = [node(n, name) for n, name in enumerate(NAMES, 1)]
    nodes[0] |= odd
    evidence = read([trace(tmp_path / "trace.json"), observed(tmp_path / "et.json", nodes)])
    assert [shape is not None for shape, _ in shapes(evidence)][1:] == [True, True]


def test_a_real_one_fits_its_trace() -> None:
    folder = traces()
    start = "hta__execution_trace__benchmark_simple_add_"
    if folder is None or not (folder / f"{start}et.json.gz").is_file():
        pytest.skip(WHY_ABSENT)
    evidence = read([folder / f"{start}trace.json.gz", folder / f"{start}et.json.gz"])
    ops = evidence.table("spans").filter(pl.col("kind") == "op")
    assert ops["shapes"].null_count() < ops.height / 2
    first = ops.filter(pl.col("name") == "aten::uniform_")
    assert first["shapes"][0] == "[[256, 256], [], [], []]" or json.loads(
        str(first["shapes"][0])
    ) == [[256, 256], [], [], []]
