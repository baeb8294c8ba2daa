"""However a trace is laid out and wherever a chunk ends, every event is found once, in order."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whyidle.errors import UnreadableEvidence
from whyidle.readers.chrome_json import EventStream
from whyidle.readers.source_bytes import SourceBytes


def streamed(path: Path, chunk: int) -> tuple[list[Any], dict[str, bytes]]:
    with SourceBytes(path) as source:
        stream = EventStream(source, chunk)
        found = [e for batch in stream.batches(lambda a: msgspec.json.decode(a)) for e in batch]
    return found, stream.keys


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.text(max_size=12),
    st.sampled_from(['},{"ph"', '}]', '"', "\\", "]", '{"name":', "},\n  {"]),
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
events = st.dictionaries(st.sampled_from(["ph", "name", "cat", "args", "é"]), values, max_size=4)
layouts = st.sampled_from(
    [{"indent": None, "separators": (",", ":")}, {"indent": 2}, {"indent": None}, {"indent": "\t"}]
)


@given(
    st.lists(events, max_size=30), layouts, st.integers(40, 400), st.booleans(), st.booleans(),
    st.dictionaries(st.sampled_from(["a", "name", "zz"]), values, max_size=3),
    st.dictionaries(st.sampled_from(["b", "tail"]), values, max_size=2),
)  # fmt: skip
def test_a_stream_in_chunks_gives_what_a_whole_parse_gives(
    tmp_path_factory: pytest.TempPathFactory,
    trace: list[Any],
    layout: dict[str, Any],
    chunk: int,
    as_list: bool,
    zipped: bool,
    before: dict[str, Any],
    after: dict[str, Any],
) -> None:
    top: Any = trace if as_list else {**before, "traceEvents": trace, **after}
    data = json.dumps(top, **layout).encode()
    path = tmp_path_factory.mktemp("stream") / "trace"
    path.write_bytes(gzip.compress(data, 1) if zipped else data)
    found, keys = streamed(path, chunk)
    assert found == trace
    if not as_list:
        assert {k: json.loads(v) for k, v in keys.items()} == {**before, **after}


@given(st.lists(events, min_size=1, max_size=8), st.integers(40, 200), st.data())
def test_a_trace_cut_anywhere_is_refused_and_never_half_read(
    tmp_path_factory: pytest.TempPathFactory, trace: list[Any], chunk: int, data: st.DataObject
) -> None:
    whole = json.dumps({"traceEvents": trace, "traceName": "x"}).encode()
    cut = data.draw(st.integers(1, len(whole) - 1))
    path = tmp_path_factory.mktemp("cut") / "trace.json"
    path.write_bytes(whole[:cut])
    with pytest.raises(UnreadableEvidence, match="ends early|not valid JSON"):
        streamed(path, chunk)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'\xef\xbb\xbf{"traceEvents":[{"ph":"X"}]}', [{"ph": "X"}]),
        (b'\n\n  [ {"ph":"X"} , {"ph":"i"} ]\n', [{"ph": "X"}, {"ph": "i"}]),
        (b'{"traceEvents":[{"ph":"X"},\n],"a":1}', [{"ph": "X"}]),
        (b'{"traceEvents":[{"ts":NaN},{"ts":-Infinity}]}', [{"ts": None}, {"ts": None}]),
        (b'[{"name":"NaN, inf"},{"ts":nan}]', [{"name": "NaN, inf"}, {"ts": None}]),
        (b'[{"ph":"X"}]\x00\x00\n', [{"ph": "X"}]),
        (gzip.compress(b'[{"ph":') + gzip.compress(b'"X"}]'), [{"ph": "X"}]),
        (gzip.compress(b'[{"ph":"X"}]') + b"\x00" * 512, [{"ph": "X"}]),
    ],
    ids=["mark", "spaces", "comma", "nan", "nan-in-text", "padding", "members", "zip-padding"],
)
def test_layouts_seen_in_the_wild_are_read(tmp_path: Path, text: bytes, expected: Any) -> None:
    path = tmp_path / "trace"
    path.write_bytes(text)
    assert streamed(path, 64)[0] == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b'{"traceEvents":[{"a":1}]} {', "more data after the end of the JSON at byte 26"),
        (b'{"traceEvents":[{"a":1}]"b":2}', "a comma was expected at byte 24"),
        (b'{"traceEvents":[],"traceEvents":[]}', "a second traceEvents list"),
        (b'{"traceEvents":[{"a":"\x01"}]}', r"a control character \(0x01\).* at byte 22"),
        (b'{"traceEvents":[{"a":"\xe9"}]}', r"a byte \(0xe9\) that is not UTF-8 at byte 22"),
        (b'{"traceEvents":[{"a":"\\p"}]}', "invalid escape character"),
        (b'{"traceEvents":[{"a":1,,}]}', "not valid JSON: .* at byte"),
        (b"[" + b"[" * 5000 + b"]" * 5000 + b"]", "nested too deep"),
    ],
)
def test_broken_json_is_named_with_its_byte(tmp_path: Path, text: bytes, said: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(text)
    with pytest.raises(UnreadableEvidence, match=said):
        streamed(path, 1 << 16)
