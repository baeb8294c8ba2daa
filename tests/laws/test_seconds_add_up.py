"""The law of the ledger, on whatever evidence there may be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contract.runs import other_ranks, relabelled, seconds, shifted
from tests.laws.random_runs import LONGEST_NS, STEP_NS, runs, split
from whyidle.diagnose import diagnose
from whyidle.diagnosis import Device, Diagnosis
from whyidle.model import Evidence

STATES = ("compute", "communication", "copy", "empty")
Times = tuple[float, float, float, float]


def times(device: Device) -> Times:
    return (device.compute_s, device.communication_s, device.copy_s, device.empty_s)


def joined_by(found: Diagnosis, device: Device) -> int:
    """Nanoseconds that were added to the clock of the device's rank."""
    return next(s.clock_offset_ns for s in found.sources if s.rank == device.rank)


def by_hand(evidence: Evidence, device: Device, origin_ns: int) -> Times:
    """Seconds per state, counted tick by tick; every instant is a multiple of a tick."""
    low, high = origin_ns + device.start_ns, origin_ns + device.end_ns
    ticks = {name: set[int]() for name in STATES[:3]}
    for row in evidence.table("spans").iter_rows(named=True):
        if row["device"] is None or (row["rank"], row["device"]) != (device.rank, device.device):
            continue
        kind = "communication" if "nccl" in row["name"] else "compute"
        kind = "copy" if row["kind"] in ("copy", "set") else kind
        ticks[kind] |= set(range(max(row["start_ns"], low), min(row["end_ns"], high), STEP_NS))
    compute = ticks["compute"]
    communication = ticks["communication"] - compute
    copy = ticks["copy"] - compute - communication
    empty = set(range(low, high, STEP_NS)) - compute - communication - copy
    a, b, c, d = (len(found) * STEP_NS / 1e9 for found in (compute, communication, copy, empty))
    return (a, b, c, d)


@given(runs())
def test_every_second_of_wall_is_useful_lost_or_unexplained(evidence: Evidence) -> None:
    found = diagnose(evidence)
    for device in found.devices:
        assert device.wall_s == pytest.approx((device.end_ns - device.start_ns) / 1e9, rel=1e-6)
        assert sum(times(device)) == pytest.approx(device.wall_s, rel=1e-6, abs=1e-15)
        whole = device.useful_s + device.lost_s + device.unexplained_s
        assert whole == pytest.approx(device.wall_s, rel=1e-6, abs=1e-15)
        own = [r for r in found.ledger if (r.rank, r.device) == (device.rank, device.device)]
        assert sum(r.lost_s for r in own) == pytest.approx(device.lost_s, rel=1e-6, abs=1e-15)
        assert min(*times(device), device.useful_s, device.lost_s, device.unexplained_s) >= 0
        assert 0 <= device.unrecorded_s <= device.unexplained_s + 1e-12
        assert device.unrecorded_s <= device.empty_s + 1e-12
        for row in own:
            state_s = times(device)[STATES.index(row.state)]
            assert 0 < row.lost_s <= state_s + 1e-12
    assert found.crashed == []


@given(runs())
def test_the_states_are_those_counted_tick_by_tick(evidence: Evidence) -> None:
    found = diagnose(evidence)
    origin_ns = int(found.window.origin_ns)
    for device in found.devices:
        expected = by_hand(evidence, device, origin_ns - joined_by(found, device))
        assert times(device) == pytest.approx(expected, rel=1e-9, abs=1e-15)


@given(runs(), st.sampled_from([-LONGEST_NS, 1, 1_700_000_000_000_000_001]))
def test_a_shifted_clock_changes_nothing(evidence: Evidence, by_ns: int) -> None:
    before, after = diagnose(evidence), diagnose(shifted(evidence, by_ns))
    assert seconds(after) == pytest.approx(seconds(before), rel=1e-9, abs=1e-15)
    assert [times(d) for d in after.devices] == [times(d) for d in before.devices]
    assert int(after.window.origin_ns) - int(before.window.origin_ns) == by_ns


@given(runs())
def test_other_rank_numbers_change_nothing(evidence: Evidence) -> None:
    ranks = other_ranks(evidence)
    before, after = diagnose(evidence), diagnose(relabelled(evidence, ranks))
    assert seconds(after) == pytest.approx(seconds(before, ranks), rel=1e-9, abs=1e-15)
    expected = {(ranks[d.rank], d.device): times(d) for d in before.devices}
    assert {(d.rank, d.device): times(d) for d in after.devices} == expected


@given(runs(), st.integers(1, LONGEST_NS // STEP_NS))
def test_work_written_as_two_spans_is_the_same_work(evidence: Evidence, at: int) -> None:
    before, after = diagnose(evidence), diagnose(split(evidence, at * STEP_NS))
    assert [times(d) for d in after.devices] == [times(d) for d in before.devices]


@given(runs())
def test_a_diagnosis_survives_json_exactly(evidence: Evidence) -> None:
    found = diagnose(evidence)
    assert type(found).from_json(found.to_json()) == found
