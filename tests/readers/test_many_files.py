"""Folders and several files: one job, several ranks, or files that cannot be one run."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from tests.readers.making import kernel, op, write
from whyidle.errors import EvidenceConflict, NothingRecorded, UnknownEvidence, UnreadableEvidence
from whyidle.model import DeviceInfo
from whyidle.readers import read


def rank(folder: Path, number: int, ts: int = 10, size: int = 2, name: str = "") -> Path:
    return write(
        folder / (name or f"r{number}.json"),
        [op(ts=ts, dur=50, tid=number), kernel(ts=ts + 10, correlation=5)],
        distributedInfo={"rank": number, "world_size": size},
        deviceProperties=[{"id": 0, "name": f"NVIDIA {number}"}],
    )


def test_ranks_of_one_job_lie_side_by_side_in_order_of_time(tmp_path: Path) -> None:
    one, two = rank(tmp_path, 1, ts=10), rank(tmp_path, 0, ts=15)
    evidence = read([one, two])
    spans = evidence.table("spans")
    assert spans.select("row", "source", "rank", "start_ns").rows() == [
        (0, 0, 1, 10_000), (1, 1, 0, 15_000), (2, 0, 1, 20_000), (3, 1, 0, 25_000),
    ]  # fmt: skip
    threads = evidence.table("threads")
    assert threads.select("thread", "rank", "name").rows() == [(0, 1, "1"), (1, 0, "0")]
    assert spans.filter(pl.col("thread").is_not_null())["thread"].to_list() == [0, 1]
    assert [source.rank for source in evidence.sources] == [1, 0]
    assert evidence.facts.device(0, 0) == DeviceInfo(name="NVIDIA 0", vendor="nvidia")
    assert evidence.facts.device(1, 0) == DeviceInfo(name="NVIDIA 1", vendor="nvidia")
    assert evidence.facts.world_size == 2


def test_a_folder_gives_its_traces_and_names_what_was_passed_over(tmp_path: Path) -> None:
    rank(tmp_path, 0)
    rank(tmp_path, 1)
    (tmp_path / "log.txt").write_text("loss 0.3")
    (tmp_path / ".hidden.json").write_text("{")
    (tmp_path / "below").mkdir()
    rank(tmp_path / "below", 0)
    evidence = read([tmp_path])
    assert [Path(s.path).name for s in evidence.sources] == ["r0.json", "r1.json"]
    assert evidence.sources[0].notes == (f"{tmp_path}: no reader knows log.txt; passed over",)


def test_a_folder_without_traces_looks_below_and_then_says_that_there_is_none(
    tmp_path: Path,
) -> None:
    with pytest.raises(UnknownEvidence, match=r"a folder without a trace \(0 files looked at\)"):
        read([tmp_path])
    below = tmp_path / "run" / "rank0"
    below.mkdir(parents=True)
    (tmp_path / "notes.md").write_text("# run")
    with pytest.raises(UnknownEvidence, match=r"\(1 files looked at\)"):
        read([tmp_path])
    rank(below, 0)
    assert len(read([tmp_path]).sources) == 1


def test_a_broken_trace_in_a_folder_is_not_passed_over(tmp_path: Path) -> None:
    whole = rank(tmp_path, 0).read_bytes()
    (tmp_path / "r1.json").write_bytes(whole[:-30])
    with pytest.raises(UnreadableEvidence, match=r"r1\.json.*ends early"):
        read([tmp_path])


def test_an_empty_trace_in_a_folder_is_noted_and_alone_is_refused(tmp_path: Path) -> None:
    empty = write(tmp_path / "r1.json", [])
    with pytest.raises(NothingRecorded, match="without any events"):
        read([tmp_path])
    rank(tmp_path, 0)
    assert read([tmp_path]).sources[0].notes == (
        f"{empty}: a trace without any events; passed over",
    )
    with pytest.raises(NothingRecorded):
        read([tmp_path / "r0.json", empty])


def test_a_file_named_twice_is_read_once(tmp_path: Path) -> None:
    path = rank(tmp_path, 0)
    (tmp_path / "link.json").symlink_to(path)
    assert len(read([path, tmp_path, tmp_path / "link.json"]).sources) == 1


def test_files_of_one_rank_join_when_they_follow_each_other(tmp_path: Path) -> None:
    first, later = rank(tmp_path, 0, ts=10), rank(tmp_path, 0, ts=1000, name="later.json")
    spans = read([later, first]).table("spans")
    assert spans["source"].to_list() == [1, 1, 0, 0]


def test_files_of_one_rank_that_overlap_are_refused(tmp_path: Path) -> None:
    first, later = rank(tmp_path, 0, ts=10), rank(tmp_path, 0, ts=20, name="later.json")
    with pytest.raises(EvidenceConflict, match="both of rank 0 and overlap by 4e-05 s"):
        read([first, later])


def test_files_of_different_jobs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EvidenceConflict, match="says 2 ranks, .* says 8"):
        read([rank(tmp_path, 0), rank(tmp_path, 1, size=8)])


def test_files_without_a_rank_are_refused_when_they_overlap(tmp_path: Path) -> None:
    paths = [write(tmp_path / name, [op(dur=9)]) for name in ("a.json", "b.json")]
    with pytest.raises(EvidenceConflict, match="neither says its rank"):
        read(paths)


def test_ranks_in_file_names_are_used_when_no_file_says_its_own(tmp_path: Path) -> None:
    paths = [
        write(tmp_path / f"job_rank-{n}.1.json", [op(dur=9), kernel()]) for n in (0, 1)
    ]  # fmt: skip
    evidence = read(paths)
    assert sorted(evidence.table("spans")["rank"].to_list()) == [0, 0, 1, 1]
    assert evidence.sources[1].notes == ("rank 1 is deduced from the file name",)
    assert set(evidence.facts.devices) == {(0, 0), (1, 0)}
    assert read(paths[:1]).sources[0].rank is None


def test_a_file_without_a_rank_beside_files_with_one_is_refused(tmp_path: Path) -> None:
    nameless = write(tmp_path / "x.json", [op()])
    with pytest.raises(EvidenceConflict, match="does not say its rank"):
        read([rank(tmp_path, 0), nameless])


def test_progress_tells_the_file_and_the_bytes_on_disk(tmp_path: Path) -> None:
    path = rank(tmp_path, 0)
    told: list[tuple[str, int, int]] = []
    read([path], lambda name, done, size: told.append((name, done, size)))
    assert told[-1] == (str(path), path.stat().st_size, path.stat().st_size)


def test_a_strangers_reader_comes_in_by_the_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    (site / "foreign-1.0.dist-info").mkdir(parents=True)
    (site / "foreign-1.0.dist-info" / "METADATA").write_text("Name: foreign\nVersion: 1.0\n")
    (site / "foreign-1.0.dist-info" / "entry_points.txt").write_text(
        "[whyidle.readers]\nforeign = foreign_reader_for_test\n"
    )
    (site / "foreign_reader_for_test.py").write_text(
        "from whyidle.model import evidence_of\n"
        "NAME = 'foreign'\n"
        "def sniff(path, head): return head.startswith(b'FOREIGN')\n"
        "def read(path, progress=None):\n"
        "    return evidence_of([dict(kind='op', name='x', start_ns=0, end_ns=1, thread=0)])\n"
    )
    monkeypatch.syspath_prepend(str(site))
    file = tmp_path / "data.bin"
    file.write_bytes(b"FOREIGN")
    assert read([file]).table("spans")["name"].to_list() == ["x"]
