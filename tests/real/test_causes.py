"""On the real traces the product says what was found by hand, and does not say what is not so."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from tests.evidence_dir import WHY_ABSENT
from tests.real import corpus, raw_truth
from tests.real.expected_causes import DLRM, TABLE, Band

if TYPE_CHECKING:
    from whyidle.diagnosis import Diagnosis

BANDS = [
    pytest.param(name, band, id=f"{name[:48]}-{'+'.join(band.causes)}-{band.states[0]}")
    for name, expected in TABLE.items()
    for band in expected.bands
]


@pytest.mark.parametrize(("name", "band"), BANDS)
def test_a_cause_loses_what_was_found_by_hand(name: str, band: Band) -> None:
    share = share_of(corpus.diagnosis_of(name), band)
    assert band.low - 1e-9 <= share <= band.high + 1e-9, f"{band.why}; said {share:.4f}"


@pytest.mark.parametrize("name", [n for n, e in TABLE.items() if e.first])
def test_most_of_the_empty_time_goes_to_the_cause_found_by_hand(name: str) -> None:
    lost: dict[str, float] = defaultdict(float)
    for row in corpus.diagnosis_of(name).ledger:
        if row.state in ("empty", "copy"):
            lost[row.cause] += row.lost_s
    assert lost, "nothing was claimed"
    largest = max(lost, key=lambda cause: lost[cause])
    assert below(largest, TABLE[name].first), dict(lost)


@pytest.mark.parametrize("name", [n for n, e in TABLE.items() if e.named])
def test_a_loss_inside_busy_time_is_named(name: str) -> None:
    found = {finding.cause for finding in corpus.diagnosis_of(name).findings}
    assert set(TABLE[name].named) <= found


@pytest.mark.parametrize("name", list(TABLE))
def test_only_dropped_work_is_called_unrecorded(name: str) -> None:
    diagnosis = corpus.diagnosis_of(name)
    low, high = TABLE[name].unrecorded
    share = diagnosis.unrecorded_s / diagnosis.wall_s
    assert low <= share <= high + 1e-9


@pytest.mark.parametrize("name", [*TABLE, *corpus.HOST_ONLY])
def test_a_trace_is_called_a_sample_only_when_operators_are_missing(name: str) -> None:
    # by hand: the numbers that the profiler gave its events run 100 times further than the events
    # of the two sampled ranks, and have no hole where the file holds all of them
    said = any("sample" in note for note in corpus.diagnosis_of(name).notes)
    assert said == name.startswith("hta__trace_filter__sampled")


def test_a_run_on_the_cpu_counts_gloo_transfers_as_communication() -> None:
    name = "hta__cpu_only__rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz"
    # by hand: two side threads in gloo:all_reduce from 18.476 to 197.254 ms of a 210.109 ms step
    assert corpus.device_of(name).communication_s == pytest.approx(0.178778, rel=0.001)


def test_ranks_read_together_wait_for_the_rank_that_comes_late() -> None:
    import whyidle

    paths = [corpus.path_of(name) for name in DLRM.files]
    diagnosis = whyidle.diagnose(whyidle.read(*paths))
    exposed = {row.cause for row in diagnosis.ledger if row.state == "communication"}
    blamed: dict[int | None, float] = defaultdict(float)
    for finding in diagnosis.findings:
        if finding.cause in exposed:
            for place in finding.where:
                blamed[place.rank] += place.lost_s
    assert DLRM.low_s <= blamed[DLRM.late] <= DLRM.high_s, (DLRM.why, dict(blamed))
    known = {rank: lost for rank, lost in blamed.items() if rank is not None}
    assert max(known, key=lambda rank: known[rank]) == DLRM.late


def test_every_trace_with_device_events_has_been_looked_at_or_is_a_known_rest() -> None:
    names = set(corpus.with_device_events())
    if not names:
        pytest.skip(WHY_ABSENT)
    rest = names - set(TABLE)
    assert all(len(raw_truth.load(corpus.path_of(name))[0]) < 2000 for name in rest), rest


def share_of(diagnosis: Diagnosis, band: Band) -> float:
    """Seconds lost to the causes of the band in its states, as a share of wall."""
    lost = sum(
        row.lost_s
        for row in diagnosis.ledger
        if row.state in band.states
        and below(row.cause, band.causes)
        and not (band.but and below(row.cause, band.but))
    )
    return lost / diagnosis.wall_s


def below(cause: str, prefixes: tuple[str, ...]) -> bool:
    """Whether a cause is one of these, or in one of these folders; "" holds all."""
    return any(not p or cause == p or cause.startswith(p + ".") for p in prefixes)
