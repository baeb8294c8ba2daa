"""Traces that lie elsewhere are read there, under their own address."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scale.jobs import seconds, write_job
from whyidle.diagnose import diagnose
from whyidle.errors import NotFound, UnreadableEvidence
from whyidle.executor import diagnose_files
from whyidle.readers import read

fsspec = pytest.importorskip(
    "fsspec", reason="fsspec is not installed: pip install 'whyidle[remote]'"
)


def test_a_folder_elsewhere_gives_the_answer_of_the_same_folder_here(tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", 4)
    here = seconds(diagnose(read([job])))
    there = diagnose_files([job.as_uri()], jobs=2)
    assert [source.path for source in there.sources] == [
        f"{job.as_uri()}/job_rank{rank}.json" for rank in range(4)
    ]
    assert seconds(there)["ledger"] == here["ledger"]
    assert seconds(there)["devices"] == here["devices"]


def test_a_trace_without_a_rank_in_its_name_is_looked_into(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    job = write_job(tmp_path / "job", 2)
    for rank, name in enumerate("ab"):
        memory.pipe(f"/looked/{name}.json", (job / f"job_rank{rank}.json").read_bytes())
    found = diagnose_files(["memory://looked"], jobs=1)
    assert [device.rank for device in found.devices] == [0, 1]


def test_what_is_not_there_is_told_by_its_address() -> None:
    with pytest.raises(NotFound, match="memory://nowhere/rank0.json"):
        diagnose_files(["memory://nowhere/rank0.json"], jobs=1)


def test_a_broken_trace_is_told_by_its_address() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/broken/rank0.json", b'{"traceEvents": [{"ph": "X"')
    with pytest.raises(UnreadableEvidence, match=r"^memory://(/)?broken/rank0.json: the JSON ends"):
        diagnose_files(["memory://broken/rank0.json"], jobs=1)


def test_an_unknown_kind_of_address_is_one_sentence() -> None:
    with pytest.raises(UnreadableEvidence, match="cannot be opened"):
        diagnose_files(["nosuchstore://bucket/rank0.json"], jobs=1)
