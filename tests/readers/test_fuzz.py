"""Whatever bytes a file holds, the reader gives evidence of its schema or one clear sentence."""

from __future__ import annotations

import gzip
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.readers.making import call, flow, kernel, op
from whyidle.errors import WhyidleError
from whyidle.model import SPANS
from whyidle.readers import read

SEEDS = Path(__file__).with_name("seeds")
"""Inputs that once broke the reader, one file each; every run reads them all."""


def survives(data: bytes) -> int:
    """Read the bytes as a file; the number of spans, -1 when refused with a sentence."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        path.write_bytes(data)
        try:
            evidence = read([path])
        except WhyidleError as error:
            assert 1 <= len(str(error).splitlines()) <= 3
            return -1
        spans = evidence.table("spans")
        assert dict(spans.schema) == SPANS
        assert spans["end_ns"].is_null().sum() == 0
        assert (spans["end_ns"] >= spans["start_ns"]).all()
        host = spans["thread"].is_not_null()
        assert (host != spans["device"].is_not_null()).all()
        threads = evidence.table("threads").height
        assert (spans["thread"].drop_nulls() < threads).all()
        return spans.height


MEMORY = {"Device Type": 1, "Device Id": 0, "Total Allocated": 4, "Total Reserved": 9}
BASE: list[Any] = [
    {"ph": "M", "name": "thread_name", "pid": 7, "tid": 7, "args": {"name": "main"}},
    op(args={"External id": 1, "Sequence number": 2, "Input Dims": [[1, 2]], "Call stack": "a;b"}),
    call(correlation=3, grid=[1, 2, 3], block=[4, 1, 1], bytes="7"),
    kernel(correlation=3, grid=[1, 2, 3], block=[4, 1, 1], **{"est. achieved occupancy %": 5}),
    {**kernel(bytes=4), "cat": "gpu_memcpy"},
    flow("s", 20, 7, 7),
    flow("f", 30, 0, 3),
    {"ph": "i", "name": "[memory]", "ts": 3, "args": MEMORY},
    op("Trace", cat="Trace"),
]
WHOLE = json.dumps(
    {
        "deviceProperties": [{"id": 0, "name": "NVIDIA", "numSms": 2}],
        "distributedInfo": {"rank": 0, "world_size": 1},
        "baseTimeNanoseconds": 5,
        "traceEvents": BASE,
        "INFO": ["INFO: Record counts: Out-of-range = 1"],
    },
    indent=1,
).encode()

numbers = st.one_of(
    st.integers(), st.floats(), st.sampled_from([2**63, -(2**63), 2**64, 10**30, 1e308, 1e-9])
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=6)),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=5,
)
KEYS = ["ph", "cat", "name", "pid", "tid", "ts", "dur", "args", "id"]
ARGUMENTS = [
    "External id", "external id", "Sequence number", "correlation", "device", "stream", "bytes",
    "size", "grid", "block", "est. achieved occupancy %", "Input Dims", "Input type",
    "Call stack", "name", "Total Allocated", "Device Id",
]  # fmt: skip


@st.composite
def mangled(draw: st.DrawFn) -> Any:
    """One of the base events with some fields replaced by anything."""
    event = dict(draw(st.sampled_from(BASE)))
    for key in draw(st.lists(st.sampled_from(KEYS), max_size=2)):
        event[key] = draw(values)
    if isinstance(event.get("args"), dict):
        event["args"] = dict(event["args"])
        for key in draw(st.lists(st.sampled_from(ARGUMENTS), max_size=2)):
            event["args"][key] = draw(values)
    return event


tops = st.dictionaries(
    st.sampled_from(
        ["deviceProperties", "distributedInfo", "baseTimeNanoseconds", "INFO", "with_stack",
         "cuda_runtime_version", "x"]
    ),
    values, max_size=3,
)  # fmt: skip


def check_mangled(events: list[Any], top: dict[str, Any], zipped: bool) -> None:
    data = json.dumps({**top, "traceEvents": events}).encode()
    survives(gzip.compress(data, 1) if zipped else data)


def check_mutated(seed: int) -> None:
    """Flip, drop, repeat or insert a few bytes of a sound trace."""
    source = random.Random(seed)
    data = bytearray(WHOLE)
    for _ in range(source.randint(1, 4)):
        at = source.randrange(len(data))
        action = source.randrange(4)
        if action == 0:
            data[at] = source.choice(b'{}[]",:0123456789.-eENaN\\\x00\x01\xff tfn')
        elif action == 1:
            del data[at : at + source.randint(1, 40)]
        elif action == 2:
            data[at:at] = data[at : at + source.randint(1, 60)]
        else:
            data[at:at] = bytes([source.randrange(256)])
    packed = gzip.compress(bytes(data), 1)
    if source.random() < 0.2:
        broken = bytearray(packed)
        broken[source.randrange(len(broken))] ^= 1 << source.randrange(8)
        packed = bytes(broken)
    survives(packed if source.random() < 0.4 else bytes(data))


@given(st.lists(mangled(), min_size=1, max_size=6), tops, st.booleans())
def test_events_with_any_values_are_read_or_refused(
    events: list[Any], top: dict[str, Any], zipped: bool
) -> None:
    check_mangled(events, top, zipped)


@pytest.mark.parametrize("seed", range(0, 400, 20))
def test_a_trace_with_some_bytes_changed_is_read_or_refused(seed: int) -> None:
    for number in range(seed, seed + 20):
        check_mutated(number)


@given(st.binary(max_size=300))
@example(b"")
@example(b"\x1f\x8b")
@example(b"{")
@example(b"[")
def test_any_bytes_are_refused_with_a_sentence(data: bytes) -> None:
    assert survives(data) == -1


@pytest.mark.parametrize("seed", sorted(SEEDS.glob("*")), ids=lambda path: path.name)
def test_what_once_broke_the_reader_no_longer_does(seed: Path) -> None:
    assert survives(seed.read_bytes()) >= -1


@pytest.mark.slow
@settings(max_examples=3000, suppress_health_check=list(HealthCheck))
@given(st.lists(mangled(), min_size=1, max_size=6), tops, st.booleans())
def test_events_with_any_values_at_length(
    events: list[Any], top: dict[str, Any], zipped: bool
) -> None:
    check_mangled(events, top, zipped)


@pytest.mark.slow
def test_changed_bytes_at_length() -> None:
    for seed in range(1000, 13000):
        check_mutated(seed)
