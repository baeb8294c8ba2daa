"""Published stragglers: found, with the cost that the published replay puts on them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.evidence_dir import WHY_ABSENT, evidence_dir
from whyidle.diagnose import diagnose
from whyidle.diagnosis import Diagnosis
from whyidle.errors import NothingRecorded, UnreadableEvidence
from whyidle.readers import read, step_records
from whyidle.views.step_replay import COMPUTES, fair, graph, replayed_s, uneven_s

IMBALANCE = "communication.rank_imbalance"


def folder() -> Path:
    base = evidence_dir()
    if base is None or not (base / "communication" / "straggler_truth").is_dir():
        pytest.skip(WHY_ABSENT)
    return base / "communication" / "straggler_truth"


@cache
def records(name: str) -> Any:
    return read([folder() / f"trace-{name}.parquet"])


@cache
def published(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder() / f"result-{name}.json").read_text())
    return found


@cache
def diagnosed(name: str) -> Diagnosis:
    return diagnose(records(name))


@pytest.mark.parametrize("name", ["ST", "SE"])
def test_the_replay_of_no_change_meets_the_published_steps(name: str) -> None:
    found = graph(records(name).table("operations"))
    assert found is not None
    steps = published(name)["step_t_nodelay"]
    expected = [steps[key] for key in sorted(steps, key=int)]
    assert replayed_s(found, found.took).tolist() == pytest.approx(expected, rel=1e-4)
    ideal = next(iter(published(name)["step_t_noblk"].values()))
    assert replayed_s(found, fair(found)).tolist() == pytest.approx([ideal] * len(steps), rel=1e-4)


@pytest.mark.parametrize("name", ["ST", "SE"])
def test_uneven_work_costs_the_job_what_the_published_replay_says(name: str) -> None:
    told = published(name)
    steps, ideal = told["step_t_nodelay"], next(iter(told["step_t_noblk"].values()))
    expected_s = sum(steps.values()) - len(steps) * ideal
    found = next(f for f in diagnosed(name).findings if f.cause == IMBALANCE)
    assert found.job_cost_s == pytest.approx(expected_s, rel=0.10)
    assert not diagnosed(name).crashed


def test_the_long_last_stage_is_named() -> None:
    # ms-ST.json: mending the last stage alone gains more than all there is to gain
    found = next(f for f in diagnosed("ST").findings if f.cause == IMBALANCE)
    assert {place.rank for place in found.where[:2]} == {6, 7}
    by_stage = published("ST")["blocking_decompose_by_stage"]
    assert max(by_stage, key=lambda stage: by_stage[stage]) == "3"


def test_computing_made_even_is_most_of_it() -> None:
    # blocking_decompose_by_optype: computing is what slows SE, communication is not
    found = graph(records("SE").table("operations"))
    assert found is not None
    as_is = replayed_s(found, found.took).sum()
    even = replayed_s(found, fair(found)).sum()
    computing = replayed_s(found, fair(found, COMPUTES)).sum()
    assert (as_is - computing) / (as_is - even) == pytest.approx(1.0, abs=0.02)


def tiny(path: Path, slow: int | None = None, factor: float = 2.0) -> Path:
    """Two replicas of two stages, two micro-batches a step; one rank may compute slower.

    Forward 10 ms, backward 20 ms, exchanges 1 ms; 1F1B order; times by hand below.
    """
    rows: list[dict[str, Any]] = []
    for step in range(4):
        for replica in range(2):
            took = {stage: (factor if slow == replica * 2 + stage else 1.0) for stage in range(2)}
            rows += _replica(step, replica, took)
    pl.DataFrame(rows).with_columns(pl.col("start_ts", "duration").cast(pl.Float32)).write_parquet(
        path
    )
    return path


def _replica(step: int, replica: int, took: dict[int, float]) -> list[dict[str, Any]]:
    f = {s: 0.010 * took[s] for s in (0, 1)}
    b = {s: 0.020 * took[s] for s in (0, 1)}
    rows: list[dict[str, Any]] = []

    def add(stage: int, kind: str, number: int, start: float, end: float) -> float:
        rows.append(
            {
                "dp_rank": replica, "stage": stage, "rank": replica * 2 + stage, "step": step,
                "optype": kind, "start_ts": start, "duration": end - start, "seq_id": number,
                "mc": 0, "mb_id": number if "compute" in kind else -1,
                "gmc": stage if "compute" in kind else -1,
            }
        )  # fmt: skip
        return end

    sent, free, last = [], 0.0, 0.0
    for m in (0, 1):
        free = add(0, "forward-compute", m, free, free + f[0])
        sent.append(free)
    arrived = [t + 0.001 for t in sent]
    back: list[float] = []
    at = 0.0
    for m in (0, 1):
        add(0, "forward-send", m, sent[m], max(arrived[m], at + 0.001))
        got = add(1, "forward-recv", m, at, max(arrived[m], at + 0.001))
        at = add(1, "forward-compute", m, got, got + f[1])
        at = add(1, "backward-compute", m, at, at + b[1])
        back.append(at)
    free = sent[1]
    for m in (0, 1):
        begun = max(back[m], free)
        add(1, "backward-send", m, back[m], begun + 0.001)
        got = add(0, "backward-recv", m, free, begun + 0.001)
        free = add(0, "backward-compute", m, got, got + b[0])
    last = max(free, at)
    for stage in (0, 1):
        add(stage, "optimizer", 0, last, last + 0.005)
    return rows


def test_records_become_devices_with_steps_end_to_end(tmp_path: Path) -> None:
    evidence = read([tiny(tmp_path / "steps.parquet")])
    assert evidence.sources[0].reader == step_records.NAME
    found = diagnose(evidence)
    assert [d.rank for d in found.devices] == [0, 1, 2, 3]
    assert all(len(d.steps) == 4 for d in found.devices)
    # two forwards, two backwards, the optimizer: 65 ms of computing a step
    assert found.devices[0].compute_s == pytest.approx(4 * 0.065, rel=1e-3)


def test_one_slow_worker_costs_what_its_even_replay_saves(tmp_path: Path) -> None:
    evidence = read([tiny(tmp_path / "slow.parquet", slow=3)])
    found = graph(evidence.table("operations"))
    assert found is not None
    costs = uneven_s(found, frozenset({3}))
    # by hand, a step as recorded: stage 1 computes twice for 60 ms after 11 ms of the first
    # forward and its way, then the last backward of stage 0 (20 ms + 1) and the optimizer (5 ms)
    assert replayed_s(found, found.took).tolist() == pytest.approx([0.157] * 4, abs=1e-4)
    # fair is 12.5 and 25 ms, since one rank of four takes twice as long: 119.5 ms a step
    assert costs["slower"] == pytest.approx(4 * (0.157 - 0.1195), rel=1e-3)
    assert costs["more_work"] == pytest.approx(0, abs=1e-6)
    told = next(f for f in diagnose(evidence).findings if f.cause == "scheduling.slow_gpu")
    assert told.job_cost_s == pytest.approx(4 * (0.157 - 0.1195), rel=1e-3)
    assert {place.rank for place in told.where} == {3}


@pytest.mark.parametrize("cut", [4, 60, 400])
def test_a_broken_file_is_a_sentence(tmp_path: Path, cut: int) -> None:
    path = tiny(tmp_path / "steps.parquet")
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(UnreadableEvidence, match="not a sound Parquet file"):
        step_records.read(path)


def test_records_without_a_usable_number_are_refused_with_a_sentence(tmp_path: Path) -> None:
    path = tiny(tmp_path / "steps.parquet")
    rows = pl.read_parquet(path).with_columns(pl.lit(float("nan")).alias("duration"))
    rows.write_parquet(path)
    with pytest.raises(NothingRecorded, match="no operation with a usable start"):
        step_records.read(path)


def test_a_parquet_file_of_something_else_is_not_ours(tmp_path: Path) -> None:
    path = tmp_path / "other.parquet"
    pl.DataFrame({"a": [1]}).write_parquet(path)
    assert not step_records.sniff(path, path.read_bytes()[:100])
