"""Databases that are damaged, unfinished or something else get a sentence, never a traceback."""

from __future__ import annotations

import gzip
import random
import sqlite3
import struct
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from tests.readers.nsys_making import KERNEL, Export, training
from whyidle.errors import EvidenceError, UnknownEvidence, UnreadableEvidence
from whyidle.model import SCHEMAS, Evidence
from whyidle.readers import nsys, read
from whyidle.readers.nsys_tables import MAGIC


def outcome(path: Path) -> Evidence | str:
    """What reading gives: evidence, or the sentence of one of our errors."""
    try:
        return nsys.read(path)
    except EvidenceError as error:
        return str(error)


def is_a_sentence(found: Evidence | str) -> bool:
    """Whether it says what was found and, on a line of its own, what to do next."""
    lines = found.splitlines() if isinstance(found, str) else []
    return 2 <= len(lines) <= 3 and all(line.strip() for line in lines)


def is_whole(found: Evidence | str) -> bool:
    """Whether it is evidence whose tables have their schemas."""
    return isinstance(found, Evidence) and all(
        dict(table.schema) == SCHEMAS[name] for name, table in found.tables.items()
    )


@pytest.fixture
def sound(tmp_path: Path) -> bytes:
    return training(steps=40).write(tmp_path / "sound.sqlite").read_bytes()


@pytest.mark.parametrize("seed", range(60))
def test_changed_bytes_give_evidence_or_a_sentence(seed: int, sound: bytes, tmp_path: Path) -> None:
    dice = random.Random(seed)
    changed = bytearray(sound)
    for _ in range(dice.choice((1, 4, 64, 1000))):
        changed[dice.randrange(16, len(changed))] = dice.choice((0, 255, dice.randrange(256)))
    path = tmp_path / "report.sqlite"
    path.write_bytes(changed)
    found = outcome(path)
    assert is_whole(found) or is_a_sentence(found)


@pytest.mark.parametrize("part", [0.0, 0.01, 0.1, 0.5, 0.9, 0.999])
def test_a_file_that_was_cut_gives_a_sentence(part: float, sound: bytes, tmp_path: Path) -> None:
    path = tmp_path / "report.sqlite"
    path.write_bytes(sound[: max(int(len(sound) * part), 100)])
    assert is_a_sentence(outcome(path))
    with pytest.raises(EvidenceError):
        read([path])


@pytest.mark.parametrize("value", ["text", b"blob", 1.5, 1 << 40, -5, None, "9" * 30])
@pytest.mark.parametrize(
    "column", ["start", "end", "deviceId", "streamId", "globalPid", "correlationId", "gridX"]
)
def test_any_value_in_any_column_gives_evidence_or_a_sentence(
    column: str, value: object, tmp_path: Path
) -> None:
    made = training()
    made.launch("odd", 5, 6, None, number=99)
    row = made.rows[KERNEL][-1]
    made.rows[KERNEL][-1] = {**row, column: value}
    found = outcome(made.write(tmp_path / "report.sqlite"))
    assert is_whole(found) or is_a_sentence(found)


def test_a_view_in_place_of_a_table_is_not_read(tmp_path: Path) -> None:
    path = training().write(tmp_path / "report.sqlite", without=[KERNEL])
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(
            f"CREATE VIEW {KERNEL} AS WITH RECURSIVE n(start) AS (SELECT 1 UNION ALL SELECT start "
            "+ 1 FROM n) SELECT start, start AS end FROM n"
        )
    found = outcome(path)
    assert isinstance(found, Evidence)
    assert not (found.table("spans")["kind"] == "kernel").any()


def test_what_still_lies_in_a_log_beside_it_is_not_passed_over(tmp_path: Path) -> None:
    path = training().write(tmp_path / "report.sqlite")
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE more (a)")
        database.commit()
        with pytest.raises(UnreadableEvidence, match="still lie in report.sqlite-wal"):
            read([path])
    assert isinstance(outcome(path), Evidence)


def test_reading_leaves_nothing_beside_the_file_and_needs_no_right_to_write(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    path = training().write(folder / "report #1?.sqlite")
    folder.chmod(0o555)
    try:
        assert isinstance(outcome(path), Evidence)
        assert [entry.name for entry in folder.iterdir()] == [path.name]
    finally:
        folder.chmod(0o755)


def test_a_compressed_database_says_to_unpack_it(tmp_path: Path, sound: bytes) -> None:
    path = tmp_path / "report.sqlite.gz"
    path.write_bytes(gzip.compress(sound))
    with pytest.raises(EvidenceError, match="gunzip|gzip"):
        read([path])


def test_another_programs_database_is_not_taken_for_a_report(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE trials (id INTEGER)")
    assert not nsys.sniff(path, path.read_bytes())
    with pytest.raises(UnknownEvidence, match="no export of Nsight Systems"):
        read([path])
    with pytest.raises(UnknownEvidence, match="without the tables"):
        nsys.read(path)


def test_an_export_is_known_by_its_tables_even_when_it_is_damaged(tmp_path: Path) -> None:
    path = training().write(tmp_path / "report.sqlite")
    assert nsys.sniff(path, path.read_bytes()[: 1 << 16])
    assert not nsys.sniff(path, b"{}")
    broken = tmp_path / "broken.sqlite"
    broken.write_bytes(MAGIC + b"\xff" * 4080 + b"CUPTI_ACTIVITY_KIND_KERNEL")
    assert nsys.sniff(broken, broken.read_bytes())
    assert isinstance(outcome(broken), str)


@pytest.mark.parametrize("name", ["run.nsys-rep", "run.qdrep", "run.qdstrm"])
def test_a_report_in_its_own_format_says_how_to_export_it(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(b"\x00\x01report" * 40)
    for given in (path, tmp_path):
        with pytest.raises(UnknownEvidence, match="nsys export --type sqlite"):
            read([given])


def test_a_report_beside_its_export_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "run.nsys-rep").write_bytes(b"\x00\x01report")
    training().write(tmp_path / "run.sqlite")
    evidence = read([tmp_path])
    assert any("run.nsys-rep" in note for note in evidence.sources[0].notes)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("host.xplane.pb", b"\x0a\x10anything"),
        ("profile.pb", b"\x0a\x8f\x02\x08\x01\x12\x09/host:CPU\x1a\x04abcd"),
    ],
)
def test_an_xplane_profile_is_named(name: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UnknownEvidence, match="xplane profile of JAX or TensorFlow"):
        read([path])


def test_empty_tables_are_no_evidence(tmp_path: Path) -> None:
    for year in (2021, 2023, 2026):
        assert is_a_sentence(outcome(Export(year).write(tmp_path / f"{year}.sqlite")))


def test_pages_that_lead_in_circles_end_where_the_file_can_hold_no_more(tmp_path: Path) -> None:
    """Each of five inner pages names the next one fifty times: 50^5 rows from a file of 26 KiB."""
    path, page = tmp_path / "report.sqlite", 512
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"PRAGMA page_size = {page}")
        database.execute(f"CREATE TABLE {KERNEL} (start, end, deviceId, streamId, globalPid)")
        rows = [(1000 * i, 1000 * i + 500, 0, 7, 1 << 24) for i in range(1000)]
        database.executemany(f"INSERT INTO {KERNEL} VALUES (?, ?, ?, ?, ?)", rows)
    data = bytearray(path.read_bytes())
    root = bytes(data[page : 2 * page])
    assert root[0] == 5  # an inner page: child pages at 8 and at the start of each cell
    count = struct.unpack_from(">H", root, 3)[0]
    at = [8, *struct.unpack_from(f">{count}H", root, 12)]
    children = [struct.unpack_from(">I", root, place)[0] for place in at]
    for one, other in pairwise([2, *children[:5]]):
        circle = bytearray(root)
        for place in at:
            struct.pack_into(">I", circle, place, other)
        data[(one - 1) * page : one * page] = circle
    path.write_bytes(data)
    assert "more rows than" in str(outcome(path))
