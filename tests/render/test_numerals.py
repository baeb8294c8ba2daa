"""Figures keep three digits and never round a part to nothing or to all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whyidle.render.numerals import about, count, duration, percent, speedup


@pytest.mark.parametrize(
    ("value_s", "text"),
    [
        (0.0, "0 s"),
        (1.1731, "1.17 s"),
        (0.0651, "65.1 ms"),
        (0.0100, "10 ms"),
        (0.9996, "1 s"),
        (0.00085, "850 µs"),
        (3.2e-7, "320 ns"),
        (42.0, "42 s"),
        (1234.0, "20.6 min"),
        (36000.0, "10 h"),
        (1e-12, "<1 ns"),
        (-0.5, "-500 ms"),
    ],
)
def test_a_duration_reads_like_a_person_wrote_it(value_s: float, text: str) -> None:
    assert duration(value_s) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0%"),
        (1.0, "100%"),
        (0.3329, "33.3%"),
        (0.0001, "<0.1%"),
        (0.0005, "0.1%"),
        (0.9999, ">99.9%"),
        (1.25, "125%"),
    ],
)
def test_a_share_is_0_or_100_percent_only_when_it_is(share: float, text: str) -> None:
    assert percent(share) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0%"), (0.004, "less than 1%"), (0.47, "47%"), (0.995, "more than 99%")],
)
def test_a_sentence_gets_whole_percents(share: float, text: str) -> None:
    assert about(share) == text


def test_counts_and_speed_ups() -> None:
    assert count(1, "step") == "1 step"
    assert count(12345, "event") == "12,345 events"
    assert speedup(1.161, 1.444) == "1.16x to 1.44x"
    assert speedup(1.2, 1.2) == "1.20x"


@given(st.floats(min_value=1e-9, max_value=1e6))
def test_a_duration_is_never_more_than_half_a_percent_off(value_s: float) -> None:
    size = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}
    number, unit = duration(value_s).split(" ")
    assert float(number.replace(",", "")) * size[unit] == pytest.approx(value_s, rel=0.0051)
