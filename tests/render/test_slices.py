"""The parts of the bar sum to the wall time, and its cells to its width."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.render.cases import CASES, many_ranks, mostly_unrecorded
from whyidle.render.slices import Slice, cells, slices


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name]().devices])
@pytest.mark.parametrize("named", [0, 2, 9])
def test_all_parts_together_are_the_wall_time(name: str, named: int) -> None:
    found = CASES[name]()
    parts = slices(found, causes=named)
    wall_s = sum(d.wall_s for d in found.devices)
    assert sum(part.seconds for part in parts) == pytest.approx(wall_s)
    assert sum(part.share for part in parts) == pytest.approx(1.0)
    assert sum(part.part == "cause" for part in parts) <= named


def test_unrecorded_time_is_a_part_of_its_own_and_not_in_the_unexplained_one() -> None:
    parts = {part.part: part for part in slices(mostly_unrecorded(), causes=4)}
    assert parts["unrecorded"].seconds == pytest.approx(0.58)
    assert parts["unexplained"].seconds == pytest.approx(0.62 + 0.004 - 0.58)


def test_a_device_has_its_own_parts_under_the_same_marks() -> None:
    found = many_ranks()
    late = slices(found, causes=4, device=found.devices[5])
    lost = {part.mark: part.seconds for part in late if part.part == "cause"}
    assert lost == {"1": 0.0, "2": pytest.approx(0.2)}


def _part(share: float) -> Slice:
    return Slice("cause", "1", "a cause", share, share, "#000000")


def test_a_tiny_part_still_gets_a_cell() -> None:
    assert cells([_part(0.997), _part(0.001), _part(0.002)], 40) == [38, 1, 1]


@given(
    st.lists(st.floats(min_value=0, max_value=1), min_size=1, max_size=12),
    st.integers(min_value=0, max_value=120),
)
def test_cells_fill_the_width_exactly_and_never_lie_by_more_than_the_parts_allow(
    shares: list[float], width: int
) -> None:
    filled = cells([_part(share) for share in shares], width)
    total = sum(shares)
    assert sum(filled) == (width if total > 0 else 0)
    assert min(filled) >= 0
    if total > 0 and width >= len(shares):
        for share, cell in zip(shares, filled, strict=True):
            assert (cell > 0) == (share > 0)
            assert abs(cell - share / total * width) <= len(shares)
