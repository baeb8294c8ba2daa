"""Whatever a valid diagnosis holds, every report can be drawn and stays sound."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from tests.render import building
from tests.render.building import diagnosis, finding, one_source, remedy, rows, where
from tests.render.page_reader import Page
from whyidle.diagnosis import (
    REASONS,
    Crashed,
    Diagnosis,
    EvidenceRow,
    Gain,
    NotJudged,
    Timeline,
    TimelineClaim,
    TimelineSpan,
)
from whyidle.render import html, markdown, terminal
from whyidle.render import json as json_report

TEXT = st.text(max_size=30)
SECONDS = st.floats(min_value=0, max_value=1e5) | st.just(0.0) | st.floats(0, 1e-9)
MAYBE_TEXT = st.none() | TEXT
STATES = st.sampled_from(["compute", "communication", "copy", "empty"])
CAUSES = st.builds(
    lambda folder, name: f"{folder}.{name}", st.sampled_from([*REASONS, "acme"]), TEXT
)
LEVELS = st.sampled_from(["seen", "deduced", "suspected"])
INSTANTS = st.integers(min_value=0, max_value=10**12)


@st.composite
def remedies(draw: st.DrawFn) -> Any:
    speedup = draw(st.floats(min_value=1, max_value=1e3))
    gain = Gain(
        step_s_low=1.0,
        step_s_mid=1.0,
        step_s_high=1.0,
        speedup_low=1.0,
        speedup_mid=1.0,
        speedup_high=speedup,
    )
    return remedy(
        draw(TEXT),
        draw(TEXT),
        patch=draw(MAYBE_TEXT),
        safe=draw(st.booleans()),
        why_safe=draw(TEXT),
        gain=draw(st.none() | st.just(gain)),
        prove=draw(TEXT),
    )


@st.composite
def findings(draw: st.DrawFn, wall_s: float) -> Any:
    place = st.builds(
        lambda lost_s, file, line, op, thread, rank: where(
            lost_s, file=file, line=line, op=op, thread=thread, rank=rank
        ),
        SECONDS,
        MAYBE_TEXT,
        st.none() | st.integers(0, 10**6),
        MAYBE_TEXT,
        MAYBE_TEXT,
        st.none() | st.integers(0, 99),
    )
    row = st.builds(
        lambda source, number, what: EvidenceRow(source=source, row=number, what=what),
        TEXT,
        st.none() | st.integers(0, 10**9),
        TEXT,
    )
    return finding(
        draw(CAUSES),
        draw(TEXT),
        draw(SECONDS),
        max(wall_s, 1e-9),  # a share must be a number
        draw(LEVELS),
        ledger=draw(st.sampled_from(["window", "job"])),
        job_cost_s=draw(st.none() | SECONDS),
        contested_s=draw(SECONDS),
        status=draw(st.sampled_from(["stable", "preview"])),
        where=draw(st.lists(place, max_size=4)),
        evidence=draw(st.lists(row, max_size=3)),
        remedies=draw(st.lists(remedies(), max_size=2)),
    )


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    start_ns, length_ns = draw(INSTANTS), draw(INSTANTS)

    def interval() -> tuple[int, int]:
        one, other = sorted((draw(st.integers(0, length_ns)), draw(st.integers(0, length_ns))))
        return start_ns + one, start_ns + other

    spans, claims = [], []
    for _ in range(draw(st.integers(0, 4))):
        start, end = interval()
        kind = draw(st.sampled_from(["kernel", "copy", "op", "python", "overhead"]))
        depth = draw(st.integers(0, 60))
        spans.append(
            TimelineSpan(
                lane=draw(TEXT), kind=kind, name=draw(TEXT), start_ns=start, end_ns=end, depth=depth
            )
        )
    for _ in range(draw(st.integers(0, 4))):
        start, end = interval()
        claims.append(
            TimelineClaim(
                cause=draw(st.none() | CAUSES),
                state=draw(STATES),
                weight=draw(st.floats(0, 1)),
                start_ns=start,
                end_ns=end,
                what=draw(MAYBE_TEXT),
            )
        )
    return Timeline(
        rank=None,
        device=0,
        step=draw(st.none() | st.integers(0, 99)),
        start_ns=start_ns,
        end_ns=start_ns + length_ns,
        spans=spans,
        claims=claims,
        capped=draw(MAYBE_TEXT),
    )


@st.composite
def diagnoses(draw: st.DrawFn) -> Diagnosis:
    devices, ledger = [], []
    for rank in range(draw(st.integers(0, 3))):
        losses = [
            (draw(CAUSES), draw(STATES), draw(SECONDS)) for _ in range(draw(st.integers(0, 4)))
        ]
        spent = {state: sum(s for _, at, s in losses if at == state) for _, state, _ in losses}
        unrecorded = draw(SECONDS)
        made = building.device(
            losses,
            compute_s=spent.get("compute", 0.0) + draw(SECONDS),
            communication_s=spent.get("communication", 0.0),
            copy_s=spent.get("copy", 0.0),
            empty_s=spent.get("empty", 0.0) + unrecorded,
            unrecorded_s=unrecorded,
            steps=draw(st.integers(0, 3)),
            rank=rank,
            name=draw(MAYBE_TEXT),
            index=draw(st.sampled_from([0, 3, "cpu"])),
        )
        devices.append(made)
        ledger += rows(made, losses) if made.wall_s > 0 else []
    wall_s = sum(d.wall_s for d in devices)
    gap = st.builds(
        lambda cause, missing, how: NotJudged(cause=cause, missing=missing, record_with=how),
        CAUSES,
        st.lists(TEXT, max_size=2),
        TEXT,
    )
    failure = st.builds(lambda cause, error: Crashed(cause=cause, error=error), CAUSES, TEXT)
    return diagnosis(
        devices,
        ledger,
        sources=[one_source(name, draw(TEXT)) for name in draw(st.lists(TEXT, max_size=2))],
        findings=draw(st.lists(findings(wall_s), max_size=3)),
        timeline=draw(st.none() | timelines()),
        not_judged=draw(st.lists(gap, max_size=3)),
        crashed=draw(st.lists(failure, max_size=2)),
        notes=draw(st.lists(TEXT, max_size=2)),
    )


quick = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@quick
@given(diagnoses(), st.integers(min_value=1, max_value=130))
def test_the_screen_is_printable_and_fits(found: Diagnosis, width: int) -> None:
    text = terminal.render(found, width=width, color=False)
    assert all(cell_len(line) <= max(width, terminal.NARROWEST) for line in text.split("\n"))
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202a-\u202e]", text)
    if found.wall_s > 0:
        assert width < 40 or ("unexplained" in text and "unrecorded" in text)


@quick
@given(diagnoses())
def test_markdown_tables_stay_tables(found: Diagnosis) -> None:
    columns = 0
    for line in markdown.render(found).split("\n"):
        bars = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        assert not columns or not bars or bars == columns
        columns = bars


@quick
@given(diagnoses())
def test_the_page_and_the_fragment_are_well_formed(found: Diagnosis) -> None:
    whole, small = Page(html.render(found)), Page(html.fragment(found))
    assert whole.wrong == small.wrong == whole.open == small.open == []
    assert len(whole.ids) == len(set(whole.ids))
    for attrs, text in whole.scripts:
        if attrs.get("type") == "application/json":
            assert json.loads(text)["length_ns"] > 0


@quick
@given(diagnoses())
def test_json_gives_back_the_same_diagnosis(found: Diagnosis) -> None:
    text = json_report.render(found)
    assert text == found.to_json()
    assert Diagnosis.from_json(text) == found
    assert msgspec.json.decode(text)["schema"] == "whyidle.diagnosis/1"
