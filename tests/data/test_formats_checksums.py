"""CRC-32C without a package agrees with those that compute it in C."""

import random

import crc32c as other
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whyidle.data.formats import crc32c


@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 255, 256, 257, 4095, 4096, 4097, 8192, 100_003])
def test_numpy_agrees_at_every_kind_of_length(length):
    content = random.Random(length).randbytes(length)
    assert crc32c.crc32c_in_numpy(content) == other.crc32c(content) == crc32c.crc32c(content)


@given(st.binary(max_size=600))
@settings(deadline=None)
def test_numpy_agrees_on_anything(content):
    assert crc32c.crc32c_in_numpy(content) == other.crc32c(content)


def test_the_check_value_of_the_standard():
    assert crc32c.crc32c_in_numpy(b"123456789") == 0xE3069283


def test_without_the_package_numpy_is_used(monkeypatch):
    monkeypatch.setattr(crc32c, "_native", lambda: None)
    assert crc32c.crc32c(b"123456789") == 0xE3069283


def test_every_offset_at_once_agrees_with_one_after_another():
    content = random.Random(1).randbytes(300)
    every = crc32c.crc32c_of_every_8(content)
    assert every.tolist() == [crc32c.masked(content[i : i + 8]) for i in range(293)]
    assert len(crc32c.crc32c_of_every_8(content[:7])) == 0
