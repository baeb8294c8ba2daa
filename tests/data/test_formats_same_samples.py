"""Samples packed in a format are read back as they were, however odd their keys and contents."""

import io
import os
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.data.format_sets import ALL, files_of, packed, reader_of, samples_in
from whyidle.data.formats import Options, writer
from whyidle.data.records import BadSample, Sample
from whyidle.errors import DamagedSample, DataError

HOLD_ANYTHING = ("blob", "tfrecord", "webdataset", "hdf5")


def npy(values) -> bytes:
    out = io.BytesIO()
    np.save(out, values)
    return out.getvalue()


ODD = [
    Sample("plain", {"jpg": b"\xff\xd8\xff" * 100, "cls": b"7"}),
    Sample("plain", {"jpg": b"", "cls": b"007"}),
    Sample("folder/two.dots.here", {"json": b"{}", "jpg": b"1"}),
    Sample("ключ/日本" * 30, {"jpg": b"2"}),
    Sample("x" * 300, {"jpg": b"3"}),
    Sample("no utf-8 \udcff\udc80\n%41", {"txt": b"x", "seg.png": b"z" * 513}),
    Sample("", {"bin": b"e"}),
    Sample("", {"bin": b"e"}),
    Sample("/top/../__meta__/", {"npy": npy(np.zeros((2, 3)))}),
    Sample("a\0zero", {"txt": b""}),
    Sample("__meta__", {"npy": npy(np.ones((2, 3)))}),
    Sample("another shape", {"npy": npy(np.ones((2, 4)))}),
    Sample("an empty array", {"npy": npy(np.ones((0, 4)))}),
    Sample("long/" * 40 + "name", {"npy": npy(np.float32(3)), "cls": b"-5"}),
    Sample(
        "fortran", {"npy": npy(np.asfortranarray(np.ones((3, 2)))), "cls": b"99999999999999999999"}
    ),
    Sample("flags", {"npy": npy(np.array([True, False]))}),
    Sample("big endian", {"npy": npy(np.arange(6, dtype=">i4").reshape(2, 3))}),
]

EQUAL = [
    Sample(f"s{i}", {"npy": npy(np.full((4, 5), i, np.uint8)), "cls": b"%d" % i, "bin": b"ab"})
    for i in range(7)
]


@pytest.mark.parametrize("format", HOLD_ANYTHING)
@pytest.mark.parametrize("per_shard", [None, 1, 3])
def test_odd_samples_come_back_as_they_were(tmp_path, format, per_shard):
    folder = packed(tmp_path / "set", format, ODD, samples_per_shard=per_shard)
    assert samples_in(folder) == ODD


@pytest.mark.parametrize("format", ALL)
@pytest.mark.parametrize("count", [0, 1, 7])
def test_none_one_and_a_few_samples_come_back(tmp_path, format, count):
    folder = packed(tmp_path / "set", format, EQUAL[:count])
    assert samples_in(folder) == EQUAL[:count]


@pytest.mark.parametrize("format", ALL)
def test_samples_are_read_in_any_order(tmp_path, format):
    reader = reader_of(packed(tmp_path / "set", format, EQUAL, samples_per_shard=2))
    for i in (6, 0, 3, 3, 5, 1):
        assert reader.fields(i) == EQUAL[i].fields
        assert reader.fields(i, verify=False) == EQUAL[i].fields


@pytest.mark.parametrize("format", ALL)
def test_equal_samples_are_equal_bytes_at_another_time(tmp_path, format, monkeypatch):
    first = files_of(packed(tmp_path / "first", format, EQUAL, samples_per_shard=3))
    for file in (tmp_path / "first").iterdir():
        os.utime(file, (0, 0))
    time.sleep(1.1)  # what a format stores of time has seconds
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert files_of(packed(tmp_path / "second", format, EQUAL, samples_per_shard=3)) == first


@pytest.mark.parametrize("format", HOLD_ANYTHING)
def test_a_shard_ends_with_the_sample_that_fills_it(tmp_path, format):
    samples = [Sample(str(i), {"bin": bytes([i]) * 3000}) for i in range(6)]
    folder = packed(tmp_path / "set", format, samples, shard_bytes=5000)
    assert len(files_of(folder)) == 3
    assert samples_in(folder) == samples


@pytest.mark.slow
@pytest.mark.parametrize("format", ALL)
def test_a_sample_of_64_mib_comes_back(tmp_path, format):
    huge = [Sample("huge", {"bin": os.urandom(1 << 20) * 64})]
    assert samples_in(packed(tmp_path / "set", format, huge)) == huge


texts = st.text(
    st.characters(exclude_categories=["Cs"])
    | st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF),
    max_size=40,
)
fields = st.dictionaries(
    st.sampled_from(["jpg", "cls", "seg.png", "npy", "txt", "bin"]),
    st.binary(max_size=600)
    | st.integers(-(2**70), 2**70).map(lambda value: b"%d" % value)
    | st.sampled_from([npy(np.zeros(3)), npy(np.ones((2, 2), np.int8)), npy(np.array("text"))]),
    min_size=1,
    max_size=3,
)


@pytest.mark.parametrize("format", HOLD_ANYTHING)
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(samples=st.lists(st.tuples(texts, fields), max_size=5))
def test_whatever_the_samples_are_they_come_back(tmp_path_factory, format, samples):
    samples = [Sample(*sample) for sample in samples]
    assert samples_in(packed(tmp_path_factory.mktemp("any") / "set", format, samples)) == samples


def test_a_sample_without_fields_is_bad_for_tar_and_costs_nothing_else(tmp_path):
    out = writer("webdataset", tmp_path, Options(2), None)
    with pytest.raises(BadSample, match="no fields"):
        out.append("empty", {})
    out.append("good", {"jpg": b"1"})
    assert out.finish()["shards"][0]["samples"] == 1


REFUSED = {
    "its field jpg": {"jpg": b"12"},
    "array of 4x6": {"npy": npy(np.zeros((4, 6), np.uint8)), "cls": b"1", "bin": b"ab"},
    "array of 4x5, float32": {"npy": npy(np.zeros((4, 5), np.float32)), "cls": b"1", "bin": b"ab"},
    "its field bin is 3 bytes": {
        "npy": npy(np.zeros((4, 5), np.uint8)),
        "cls": b"1",
        "bin": b"abc",
    },
    "it has the fields npy": {"npy": npy(np.zeros((4, 5), np.uint8))},
    r"its field cls \(2 bytes\)": {"npy": npy(np.zeros((4, 5), np.uint8)), "cls": b"01"},
}


@pytest.mark.parametrize("found", list(REFUSED))
def test_npy_refuses_samples_that_are_not_like_the_first(tmp_path, found):
    out = writer("npy", tmp_path, Options(2), None)
    out.append(*EQUAL[0])
    with pytest.raises(DataError, match=found) as refused:
        out.append("other", REFUSED[found])
    assert not isinstance(refused.value, BadSample)
    assert "--to blob or --to hdf5" in str(refused.value)
    assert out.finish()["shards"][0]["samples"] == 1


@pytest.mark.parametrize("format", ALL)
def test_a_shard_that_is_missing_or_empty_costs_only_its_own_samples(tmp_path, format):
    folder = packed(tmp_path / "set", format, EQUAL, samples_per_shard=3)
    victim = sorted(files_of(folder))[0]
    for how in ("cut", "gone"):
        (folder / victim).write_bytes(b"") if how == "cut" else (folder / victim).unlink()
        reader, served = reader_of(folder), 0
        for i in range(len(EQUAL)):
            try:
                served += reader.fields(i) == EQUAL[i].fields
            except DamagedSample as damage:
                assert damage.index == i and damage.key == EQUAL[i].key
        assert served == (0 if format == "npy" else 4)
