"""What cannot be read gets one clear sentence, and never a traceback."""

from __future__ import annotations

import gzip
import os
import pickle
import sqlite3
from pathlib import Path

import pytest

from tests.readers.making import kernel, op, write
from whyidle.errors import (
    EvidenceError,
    NotFound,
    NothingRecorded,
    UnknownEvidence,
    UnreadableEvidence,
    UsageError,
)
from whyidle.readers import read
from whyidle.readers.source_bytes import SourceBytes

SOUND = b'{"traceEvents":[{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":1,"dur":1}]}'

CASES: list[tuple[str, bytes, type[EvidenceError], str]] = [
    ("empty", b"", UnreadableEvidence, "empty"),
    ("blank", b" \n\t\n", UnreadableEvidence, "nothing but white space"),
    ("no events", b'{"traceEvents":[]}', NothingRecorded, "without any events"),
    ("bare empty list", b"[]", NothingRecorded, "without any events"),
    ("cut", SOUND[:60], UnreadableEvidence, "ends early, at byte 60"),
    ("cut gzip", gzip.compress(SOUND * 9)[:60], UnreadableEvidence, "gzip data ends early"),
    ("bad gzip", b"\x1f\x8b\x08\x00" + b"x" * 99, UnreadableEvidence, "broken gzip data"),
    ("empty gzip", gzip.compress(b""), UnreadableEvidence, "empty"),
    ("double gzip", gzip.compress(gzip.compress(SOUND)), UnknownEvidence, "gzip data inside"),
    ("zstd", b"\x28\xb5\x2f\xfdxxxx", UnknownEvidence, "zstd -d double"),
    ("xz", b"\xfd7zXZ\x00xxxx", UnknownEvidence, "compressed with xz"),
    ("zip", b"PK\x03\x04xxxx", UnknownEvidence, "a zip archive"),
    ("pickle", pickle.dumps({"weights": []}), UnknownEvidence, "a Python pickle"),
    ("utf-16", SOUND.decode().encode("utf-16"), UnreadableEvidence, "UTF-16"),
    ("utf-16 bare", SOUND.decode().encode("utf-16-be"), UnreadableEvidence, "UTF-16"),
    ("latin-1", SOUND.replace(b'"a"', b'"\xe9"'), UnreadableEvidence, "0xe9.*not UTF-8"),
    ("control", SOUND.replace(b'"a"', b'"\x02"'), UnreadableEvidence, "control character"),
    ("escape", SOUND.replace(b'"a"', b'"\\q"'), UnreadableEvidence, "invalid escape"),
    ("binary", bytes(range(200, 256)) * 9, UnknownEvidence, "binary data"),
    ("text", b"step 1 loss 0.3\n", UnknownEvidence, "text, but not JSON"),
    ("number", b"17\n", UnknownEvidence, "text, but not JSON"),
    ("html", b"<html></html>", UnknownEvidence, "text, but not JSON"),
    ("object", b"{}", UnknownEvidence, "an empty JSON object"),
    ("keys", b'{"a":[{"b":1}],"c":"}"}', UnknownEvidence, "its keys: a, c"),
    ("et", b'{"schema":"1.0","pid":1,"nodes":[{"id":1}]}', UnknownEvidence, "execution trace"),
    ("snapshot", b'{"segments":[],"device_traces":[]}', UnknownEvidence, "memory snapshot"),
    ("diagnosis", b'{"schema":"whyidle.diagnosis/1"}', UnknownEvidence, "whyidle render"),
    ("op map", b'{"aten::mm":{"a":1},"root":{}}', UnknownEvidence, "a map of operators"),
    ("timeline", b"[[-1, 1, 37888, 7], [-1, 1, 512, 7]]", UnknownEvidence, "memory timeline"),
    ("not a list", b'{"traceEvents":{}}', UnknownEvidence, "traceEvents is not a list"),
    ("other chrome", b'[{"ph":"B","name":"x","ts":1},{"ph":"E"}]', NothingRecorded, "2 events"),
    ("only names", b'[{"ph":"M","name":"thread_name","pid":1}]', NothingRecorded, "1 events"),
    ("other kinds", b'[{"ph":"X","cat":"v8","ts":1,"dur":1}]', NothingRecorded, "'v8'"),
    ("bad head", b'{"rank":tru,"traceEvents":[{"ph":"X","cat":"cpu_op","ts":1,"dur":1}]}',
     UnreadableEvidence, "the value of 'rank'"),
    ("half a key", b'{"traceEve', UnreadableEvidence, "a key was expected"),
    ("two values", SOUND + b"{}", UnreadableEvidence, "more data after the end"),
    ("deep", b'{"traceEvents":[{"a":' + b"[" * 9000 + b"]" * 9000 + b"}]}",
     UnreadableEvidence, "nested too deep"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "data", "kind", "said"), CASES, ids=[case[0] for case in CASES])
def test_a_file_that_is_no_trace_is_named_for_what_it_is(
    tmp_path: Path, name: str, data: bytes, kind: type[EvidenceError], said: str
) -> None:
    path = tmp_path / "double"
    path.write_bytes(data)
    with pytest.raises(kind, match=said) as refused:
        read([path])
    lines = str(refused.value).splitlines()
    assert len(lines) == 2 and lines[0].startswith(str(path)) and lines[1].strip()
    assert refused.value.exit_code == 2


def test_an_sqlite_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "report.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("create table t (a)")
    with pytest.raises(UnknownEvidence, match="SQLite database, but no export"):
        read([path])


def test_paths_that_lead_nowhere_say_so(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no such file"):
        read([tmp_path / "absent.json"])
    with pytest.raises(NotFound, match="no such file"):
        read(["a\0b"])
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "gone.json")
    with pytest.raises(UnreadableEvidence, match="a link to .*gone.json, which does not exist"):
        read([link])
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(EvidenceError, match="cannot be read|a link to"):
        read([loop])
    inside = write(tmp_path / "trace.json", [op()]) / "more"
    with pytest.raises(EvidenceError, match="cannot be read: not a directory"):
        read([inside])
    with pytest.raises(EvidenceError, match="cannot be read: file name too long"):
        read([tmp_path / ("x" * 400)])


def test_a_pipe_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/null")):
        with pytest.raises(UnreadableEvidence, match="a pipe, socket or device"):
            read([path])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_the_right_to_read_it_says_so(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.json", [op()])
    path.chmod(0)
    with pytest.raises(UnreadableEvidence, match="permission denied"):
        read([path])


def test_nothing_named_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="No evidence was named"):
        read([])


def test_a_gzip_bomb_is_refused_before_it_fills_anything(tmp_path: Path) -> None:
    path = tmp_path / "bomb.json.gz"
    with gzip.open(path, "wb", compresslevel=9) as bomb:
        bomb.write(b'{"traceEvents":[{"ph":"X","name":"')
        for _ in range(80):
            bomb.write(b"a" * (1 << 20))
    with pytest.raises(UnreadableEvidence, match="no event ends within 64 MiB"):
        read([path])


@pytest.mark.slow
def test_a_gzip_bomb_of_white_space_is_refused_by_its_ratio(tmp_path: Path) -> None:
    path = tmp_path / "bomb.json.gz"
    with gzip.open(path, "wb", compresslevel=6) as bomb:
        bomb.write(b'{"traceEvents":[')
        for _ in range(1100):
            bomb.write(b" " * (1 << 20))
    with pytest.raises(UnreadableEvidence, match="over 400-fold"):
        read([path])


def test_the_digest_tells_files_apart_and_says_how_it_was_made(tmp_path: Path) -> None:
    import hashlib

    one, two = write(tmp_path / "1.json", [op()]), write(tmp_path / "2.json", [kernel()])
    digests = [read([path]).sources[0].digest for path in (one, two)]
    assert digests[0] == "sha256:" + hashlib.sha256(one.read_bytes()).hexdigest()
    assert digests[0] != digests[1]
    large = tmp_path / "large"
    block = bytes(range(256)) * 4096
    large.write_bytes(block * 40)
    sample = hashlib.sha256(block * 3 + str(40 << 20).encode()).hexdigest()
    buffer = memoryview(bytearray(300_001))
    with SourceBytes(large) as source:
        while source.read_into(buffer):
            pass
        assert source.digest() == f"sha256-of-1MiB-per-16MiB:{sample}"
