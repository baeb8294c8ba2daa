"""Device states and settled claims against deciding nanosecond by nanosecond."""

from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from whyidle.ledger import settle
from whyidle.model import CLAIMS, evidence_of, frame
from whyidle.views import Views

END = 40
NAMES = {
    "kernel": ["gemm", "ncclDevKernel_AllReduce", "triton_red_fused_all_reduce", "Memcpy_kernel"],
    "copy": ["Memcpy HtoD (Pageable -> Device)"],
    "set": ["Memset (Device)"],
}
STATE = {
    "gemm": "compute",
    "triton_red_fused_all_reduce": "compute",
    "ncclDevKernel_AllReduce": "communication",
    "Memcpy_kernel": "copy",
    "Memcpy HtoD (Pageable -> Device)": "copy",
    "Memset (Device)": "copy",
}
ORDER = ["compute", "communication", "copy"]
work = st.tuples(
    st.sampled_from(sorted(STATE)), st.integers(0, END), st.integers(0, 12), st.integers(0, 1)
)


def told(rows: list[tuple[str, int, int, int]]) -> list[dict[str, object]]:
    kinds = {name: kind for kind, names in NAMES.items() for name in names}
    return [
        {
            "kind": kinds[name],
            "name": name,
            "start_ns": start,
            "end_ns": min(start + length, END),
            "device": device,
            "lane": 7,
        }
        for name, start, length, device in rows
    ]


def state_at(rows: list[tuple[str, int, int, int]], device: int, instant: int) -> str:
    running = {
        STATE[name]
        for name, start, length, own in rows
        if own == device and start <= instant < min(start + length, END)
    }
    return next((state for state in ORDER if state in running), "empty")


# one kernel on each device at both ends gives every window the same known bounds
FRAME = [("gemm", 0, 1, d) for d in (0, 1)] + [("gemm", END - 1, 1, d) for d in (0, 1)]


@given(st.lists(work, max_size=12))
def test_states_follow_the_precedence_at_every_instant(
    rows: list[tuple[str, int, int, int]],
) -> None:
    rows = rows + FRAME
    views = Views(evidence_of(told(rows)))
    seconds = views.states.seconds()
    for device in (0, 1):
        counted = [state_at(rows, device, t) for t in range(END)]
        expected = [counted.count(state) / 1e9 for state in [*ORDER, "empty"]]
        assert seconds[device].tolist() == expected


claim = st.tuples(
    st.integers(0, END),
    st.integers(1, 15),
    st.sampled_from([0.25, 0.5, 1.0]),
    st.sampled_from(["seen", "deduced", "suspected"]),
    st.sampled_from(["a.one", "b.two", "c.three"]),
)


@given(st.lists(work, max_size=6), st.lists(claim, max_size=10))
def test_one_claim_wins_each_instant_by_weight_level_length_and_id(
    rows: list[tuple[str, int, int, int]], asked: list[tuple[int, int, float, str, str]]
) -> None:
    rows = rows + FRAME
    views = Views(evidence_of(told(rows)))
    claims: dict[str, list[dict[str, object]]] = {}
    for start, length, weight, level, cause in asked:
        claims.setdefault(cause, []).append(
            {
                "device": 0,
                "start_ns": start,
                "end_ns": start + length,
                "weight": weight,
                "level": level,
            }
        )
    ledger = settle({cause: frame(CLAIMS, found) for cause, found in claims.items()}, views.states)
    levels = ["seen", "deduced", "suspected"]
    expected: dict[tuple[str, str], float] = {}
    for instant in range(END):
        there = [c for c in asked if c[0] <= instant < c[0] + c[1]]
        if there:
            best = min(
                there,
                key=lambda c: (-c[2], levels.index(c[3]), min(c[0] + c[1], END) - c[0], c[4]),
            )
            key = (best[4], state_at(rows, 0, instant))
            expected[key] = expected.get(key, 0.0) + best[2]
    sums = ledger.won.group_by("cause", "state").agg(pl.col("lost_s").sum() * 1e9)
    found = {(cause, state): round(lost, 6) for cause, state, lost in sums.iter_rows()}
    assert found == {key: round(value, 6) for key, value in expected.items()}


def test_what_a_loser_wanted_is_contested() -> None:
    views = Views(evidence_of(told(FRAME)))
    claims = {
        "a.strong": [{"device": 0, "start_ns": 10, "end_ns": 20, "weight": 1.0, "level": "seen"}],
        "b.weak": [{"device": 0, "start_ns": 5, "end_ns": 15, "weight": 0.5, "level": "seen"}],
    }
    ledger = settle({k: frame(CLAIMS, v) for k, v in claims.items()}, views.states)
    assert round(ledger.contested_s("b.weak") * 1e9, 6) == 2.5
    assert ledger.contested_s("a.strong") == 0.0
