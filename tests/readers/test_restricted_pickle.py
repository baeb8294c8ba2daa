"""A pickle is a program: what plain data needs is followed, and nothing else ever is."""

from __future__ import annotations

import datetime
import gzip
import os
import pickle
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whyidle.errors import UnreadableEvidence
from whyidle.readers.restricted_pickle import (
    PLAIN,
    Limits,
    Refused,
    loads,
    plain_of,
    read_whole,
)

KEYS = st.text(max_size=8) | st.integers(-(2**40), 2**40) | st.binary(max_size=4) | st.booleans()
PLAIN_DATA = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False)
    | st.text(max_size=20) | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(KEYS, inner, max_size=5)
    | st.lists(inner, max_size=4).map(tuple),
    max_leaves=30,
)  # fmt: skip


# Before protocol 3 bytes were written as a call, which is refused like any other.
@given(PLAIN_DATA, st.integers(3, 5))
def test_plain_data_comes_back_as_it_was(data: Any, protocol: int) -> None:
    assert loads(pickle.dumps(data, protocol)) == data


@given(st.integers(-(10**30), 10**30), st.text(max_size=30), st.floats(allow_nan=False))
def test_the_two_oldest_protocols_are_read_too(number: int, text: str, real: float) -> None:
    data = {"number": number, "text": text, "list": [real, True, None, (1, 2)], "again": text}
    for protocol in (0, 1):
        assert loads(pickle.dumps(data, protocol)) == data


def test_strings_of_python_2_are_text() -> None:
    assert loads(b"(dp0\nS'action'\np1\nS'al\\'loc'\np2\ns.") == {"action": "al'loc"}
    assert loads(b"U\x05alloc.") == "alloc"


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch never-made",)


class Slotted:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 1

    def __getstate__(self) -> Any:
        return (None, {"value": self.value})

    def __setstate__(self, state: Any) -> None:
        raise AssertionError("never called")


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    "value",
    [Evil(), Slotted(), OrderedDict(a=1), datetime.date(2026, 1, 1), len, Evil, 1j, range(3)],
    ids=lambda value: type(value).__name__,
)
def test_whatever_asks_for_code_is_refused_and_not_run(
    value: Any, protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for data in (value, {"segments": [value]}, [[value]]):
        with pytest.raises(Refused, match="asks for code"):
            loads(pickle.dumps(data, protocol))
    assert list(tmp_path.iterdir()) == []


HAND_MADE = {
    "global of os.system": (b"cos\nsystem\n(S'id'\ntR.", "GLOBAL os.system"),
    "instance": (b"(S'id'\nios\nsystem\n.", "INST"),
    "extension": (b"\x80\x02\x82\x01.", "EXT1"),
    "persistent id": (b"Pname\n.", "PERSID"),
    "binary persistent id": (b"\x80\x02X\x01\x00\x00\x00aQ.", "BINPERSID"),
    "set": (b"\x80\x04\x8f(K\x01\x90.", "EMPTY_SET"),
    "out-of-band buffer": (b"\x80\x05\x97.", "NEXT_BUFFER"),
    "array of bytes": (b"\x80\x05\x96" + struct.pack("<Q", 1 << 40), "BYTEARRAY8"),
    "no instruction": (b"\x80\x04\xff.", "0xff"),
    "huge memo number": (b"\x80\x02]r\xff\xff\xff\x7f.", "out of turn"),
    "huge memo number as text": (b"(lp99999999\n.", "out of turn"),
    "negative memo number": (b"(lp-1\n.", "cannot be read"),
    "recall of nothing": (b"\x80\x02h\x05.", "ends early"),
    "huge text": (b"\x80\x04\x8d" + struct.pack("<Q", 1 << 50) + b"a.", "text of"),
    "huge integer": (b"\x80\x02\x8b" + struct.pack("<I", 1 << 30) + b"a.", "an integer of"),
    "integer of 200 bytes": (b"\x80\x02\x8a\xc8" + b"\x01" * 200 + b".", "an integer of 200"),
    "number of many digits": (b"L" + b"9" * 5000 + b"L\n.", "40 digits"),
    "many marks": (b"\x80\x02" + b"(" * 500, "nests more than"),
    "tuple as key": (b"\x80\x02}(K\x01K\x02\x86K\x03u.", "container as a key"),
    "list as key": (b"\x80\x02}(]K\x03u.", "container as a key"),
    "huge number as key": (b"\x80\x02}(\x8a\x09" + b"\x7f" * 9 + b"K\x03u.", "huge number"),
    "key without value": (b"\x80\x02}(K\x01u.", "cannot be read"),
    "list into nothing": (b"\x80\x02(K\x01e.", "ends early|across"),
    "append to a number": (b"\x80\x02K\x01K\x02a.", "fills something"),
    "values across a mark": (b"\x80\x02](a.", "ends early|across"),
    "nothing": (b"", "ends early"),
    "no end": (b"\x80\x04}", "ends early"),
    "stop on an empty stack": (b"\x80\x04.", "ends early"),
    "bad text": (b"\x80\x02X\x02\x00\x00\x00\xff\xfe.", "cannot be read"),
}


@pytest.mark.parametrize("name", HAND_MADE)
def test_hand_made_attacks_are_refused_with_a_reason(name: str) -> None:
    data, said = HAND_MADE[name]
    with pytest.raises(Refused, match=said):
        loads(data)


def test_shared_tuples_stay_shared_and_a_tower_of_them_is_refused() -> None:
    laughs: Any = ()
    for _ in range(20):
        laughs = (laughs, laughs)
    found = loads(pickle.dumps(laughs))
    assert found[0] is found[1]
    for _ in range(100):
        laughs = (laughs, laughs)
    with pytest.raises(Refused, match="tuples"):
        loads(pickle.dumps(laughs))
    with pytest.raises(Refused, match="tuples"):
        loads(b"\x80\x02)" + b"\x85" * 1_000_000 + b".")


def test_a_list_that_holds_itself_is_kept_as_it_is() -> None:
    ring: list[Any] = []
    ring.append(ring)
    found = loads(pickle.dumps(ring))
    assert found[0] is found


def test_a_flood_of_values_ends_at_the_limit() -> None:
    flood = b"\x80\x02" + b"N" * 3_000_000
    with pytest.raises(Refused, match="at hand"):
        loads(flood, Limits(stack=1_000_000))
    memo = b"\x80\x04N" + b"\x94" * 3_000_000
    with pytest.raises(Refused, match="at hand"):
        loads(memo, Limits(memo=1_000_000))


def test_many_keys_that_are_not_text_are_refused() -> None:
    with pytest.raises(Refused, match="not text"):
        loads(pickle.dumps(dict.fromkeys(range(20_000))))


SOUND = pickle.dumps({"segments": [{"address": 7 << 40, "frames": [{"line": 3}] * 9}], "x": (1, 2)})


def test_every_cut_of_a_sound_pickle_is_refused() -> None:
    for length in range(len(SOUND)):
        with pytest.raises(Refused):
            loads(SOUND[:length])


@given(st.binary(max_size=300))
def test_noise_is_refused_or_plain(noise: bytes) -> None:
    for data in (noise, SOUND[:40] + noise):
        try:
            loads(data, PLAIN._replace(text_bytes=1 << 16))
        except Refused as refused:
            assert str(refused)


def test_a_file_with_code_in_it_is_an_error_of_two_sentences(tmp_path: Path) -> None:
    path = tmp_path / "evil.pickle"
    path.write_bytes(pickle.dumps({"segments": Evil()}))
    with pytest.raises(UnreadableEvidence, match="asks for code") as refused:
        plain_of(path, path.read_bytes(), "memory snapshot")
    assert "Nothing in it was run" in str(refused.value)
    assert not (tmp_path / "never-made").exists()


def test_a_gzip_bomb_ends_at_the_limit_of_bytes(tmp_path: Path) -> None:
    path = tmp_path / "bomb.pickle"
    with gzip.open(path, "wb") as bomb:
        for _ in range(40):
            bomb.write(b"N" * (1 << 20))
    with pytest.raises(UnreadableEvidence, match="more than 8 MiB"):
        read_whole(path, 8 << 20, None)


def test_what_is_absorbed_is_gone_from_the_result() -> None:
    seen: list[int] = []

    def absorb(entry: dict[str, int]) -> None:
        if "action" in entry:
            seen.append(entry["action"])
            entry.clear()

    entries = [{"action": number, "size": 2} for number in (1, 2)]
    found = loads(pickle.dumps({"trace": entries}), absorb=absorb)
    assert seen == [1, 2]
    assert found == {"trace": [{}, {}]}
