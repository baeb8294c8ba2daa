"""Laws of the job ledger, on random readings and random claims."""

from __future__ import annotations

from fractions import Fraction

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whyidle.job import JobJudged, judged_job, settled
from whyidle.model import JOB_CLAIMS, SAMPLES, Evidence, SourceInfo, frame
from whyidle.views import Views
from whyidle.views.sampled import sampled

SECOND = 10**9
ORIGIN = 1_700_000_000_000_000_000

shares = st.one_of(st.none(), st.sampled_from([0.0, 1.0]), st.floats(0, 1))
steps = st.sampled_from([1, 1, 1, 1, 2, 3, 30, 4000])
series = st.lists(st.tuples(steps, shares), min_size=3, max_size=40)
runs = st.lists(series, min_size=1, max_size=3)


def evidence_of(gpus: list[list[tuple[int, float | None]]], by_ns: int = 0) -> Evidence:
    rows = []
    for gpu, readings in enumerate(gpus):
        t = ORIGIN + gpu + by_ns
        for step, value in readings:
            t += step * SECOND
            rows.append(
                {
                    "source": 0, "gpu": str(gpu), "device": gpu, "metric": "gpu_utilization",
                    "t_ns": t, "value": value, "unit": "ratio",
                    "reason": None if value is not None else "not available",
                }
            )  # fmt: skip
    info = SourceInfo("random", "example", None, len(rows), clock_error_ns=SECOND)
    return Evidence({"samples": frame(SAMPLES, rows)}, sources=(info,))


def judged(evidence: Evidence) -> JobJudged:
    return judged_job(Views(evidence))


@given(runs)
def test_wall_is_busy_idle_and_unknown_and_also_what_became_of_it(gpus) -> None:
    found = judged(evidence_of(gpus))
    assert found.crashed == ()
    assert found.ledger is not None
    for device in found.ledger.devices:
        assert min(device.busy_s, device.idle_s, device.unknown_s) >= 0
        assert min(device.useful_s, device.lost_s, device.unexplained_s) >= 0
        whole = pytest.approx(device.wall_s, rel=1e-9)
        assert device.busy_s + device.idle_s + device.unknown_s == whole
        parts = device.useful_s + device.lost_s + device.unexplained_s + device.unknown_s
        assert parts == whole
        assert (device.end_ns - device.start_ns) / 1e9 == device.wall_s
    won_s = sum(row.lost_s for row in found.ledger.ledger)
    assert won_s == pytest.approx(found.ledger.lost_s, rel=1e-9, abs=1e-9)


@given(runs)
def test_no_more_time_is_idle_than_known_readings_stand_for(gpus) -> None:
    # Independent of the code: a reading stands for at most three usual steps.
    found = judged(evidence_of(gpus))
    assert found.ledger is not None
    for device in found.ledger.devices:
        readings = gpus[device.device or 0]
        between = sorted(step for step, _ in readings[1:])
        middle = len(between) // 2
        usual = Fraction(between[middle] + between[-middle - 1], 2)
        known = [step for step, value in readings if value is not None]
        bound = sum(min(Fraction(step), 3 * usual) if step > 3 * usual else step for step in known)
        first = max(Fraction(readings[0][0]), usual, Fraction(readings[1][0]))
        assert device.busy_s + device.idle_s <= float(bound + first) + 1e-6


@given(runs, st.integers(-(10**15), 10**15))
def test_the_ledger_is_the_same_on_another_clock(gpus, by_ns: int) -> None:
    assert judged(evidence_of(gpus, by_ns)).ledger == judged(evidence_of(gpus)).ledger


@given(series)
def test_unknown_readings_never_make_a_gpu_idle(readings) -> None:
    blank = [(step, None) for step, _ in readings]
    found = judged(evidence_of([blank])).ledger
    assert found is not None
    assert (found.idle_s, found.busy_s, found.lost_s) == (0, 0, 0)
    assert found.unknown_s == found.wall_s


claims = st.lists(
    st.tuples(
        st.sampled_from(["a.one", "b.two", "c.three"]),
        st.integers(-10, 120),
        st.integers(1, 90),
        st.sampled_from(["busy", "idle"]),
        st.floats(0, 1),
        st.sampled_from(["seen", "deduced", "suspected"]),
    ),
    max_size=12,
)


@given(series, claims)
def test_claims_never_win_more_than_there_is(readings, asked) -> None:
    view = sampled(evidence_of([readings]))
    told: dict[str, list[dict[str, object]]] = {}
    for cause, start, length, part, weight, level in asked:
        low = ORIGIN + start * SECOND + 17
        told.setdefault(cause, []).append(
            {
                "number": 0, "start_ns": low, "end_ns": low + length * SECOND, "part": part,
                "weight": weight, "level": level,
            }
        )  # fmt: skip
    won = settled({cause: frame(JOB_CLAIMS, rows) for cause, rows in told.items()}, view).rows
    lasted = pl.col("end_ns") - pl.col("start_ns")
    idle = int(view.pieces.select((lasted - pl.col("busy_ns")).sum()).item())
    busy = int(view.pieces["busy_ns"].sum())
    for part, there in (("busy", busy), ("idle", idle)):
        assert int(won.filter(pl.col("part") == part)["lost_ns"].sum()) <= there


@given(series)
def test_one_claim_on_everything_wins_exactly_what_is_there(readings) -> None:
    view = sampled(evidence_of([readings]))
    low, high = view.gpus.select("start_ns", "end_ns").row(0)
    middle = (low + high) // 2 + 13
    halves = [
        {"number": 0, "start_ns": a, "end_ns": b, "part": "idle", "weight": 1.0, "level": "seen"}
        for a, b in ((low, middle), (middle, high))
    ]
    won = settled({"a.one": frame(JOB_CLAIMS, halves)}, view).rows
    lasted = pl.col("end_ns") - pl.col("start_ns")
    idle = int(view.pieces.select((lasted - pl.col("busy_ns")).sum()).item())
    assert int(won["lost_ns"].sum()) == idle
