"""Reports of a comparison: every one says the same, and nothing from the evidence is markup."""

from __future__ import annotations

import re

import msgspec
import pytest

from tests.compare.simulated import ORDINARY, gaussian, run
from tests.render.cases import HOSTILE as NAMES
from tests.render.page_reader import Page
from whyidle.compare import compare
from whyidle.comparison import Comparison, Difference
from whyidle.render import compare_markdown, compare_page, compare_terminal, compared

HOSTILE = " ".join(NAMES)
SLOWER = {**ORDINARY, "data_loading.loader_workers_too_few": gaussian(0.060, 0.05)}


def sides_of(kind: str) -> Comparison:
    names = ("before.json", "after.json")
    if kind == "same":
        return compare(run(1, 6), run(1, 6), names)
    if kind == "noise":
        return compare(run(1, 6), run(2, 6), names)
    if kind == "few":
        return compare(run(1, 1), run(2, 1, SLOWER), names)
    if kind == "hostile":
        return hostile()
    return compare(run(1, 6), run(2, 6, SLOWER), names)


def hostile() -> Comparison:
    found = compare(run(1, 6), run(2, 6, SLOWER), (HOSTILE, HOSTILE))
    assert found.kernels is not None
    rows = [
        msgspec.structs.replace(row, path=[HOSTILE] * 9, before_name=HOSTILE, after_name=HOSTILE,
                                verdict="more than noise", change=1.0)
        for row in found.kernels.rows[:3]
    ]  # fmt: skip
    return msgspec.structs.replace(
        found,
        causes=[msgspec.structs.replace(c, title=HOSTILE, note=HOSTILE) for c in found.causes],
        kernels=msgspec.structs.replace(found.kernels, rows=rows),
        differences=[Difference(what=HOSTILE, before=HOSTILE, after=None)],
        notes=[HOSTILE],
    )


KINDS = ("same", "noise", "few", "hostile", "slower")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [20, 40, 80, 110, 200])
def test_text_keeps_its_width(kind: str, width: int) -> None:
    text = compare_terminal.render(sides_of(kind), width=width, color=False)
    assert max(map(len, text.splitlines())) <= max(20, min(width, 110))
    assert "\x1b" not in text


@pytest.mark.parametrize("kind", KINDS)
def test_colour_adds_nothing_but_colour(kind: str) -> None:
    plain = compare_terminal.render(sides_of(kind), width=100, color=False)
    coloured = compare_terminal.render(sides_of(kind), width=100, color=True)
    stripped = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert [line.rstrip() for line in stripped.splitlines()] == plain.splitlines()


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_is_well_formed_small_and_asks_nothing_of_the_network(kind: str) -> None:
    text = compare_page.render(sides_of(kind))
    found = Page(text)
    assert found.wrong == [] and found.open == []
    assert len(found.ids) == len(set(found.ids))
    for _, attrs in found.tags:
        assert not [key for key in attrs if key.startswith("on") or key in ("src", "style")]
        assert attrs.get("href", "#").startswith("#")
    assert len(text) < 200_000


@pytest.mark.parametrize("kind", KINDS)
def test_markdown_tables_stay_tables(kind: str) -> None:
    text = compare_markdown.render(sides_of(kind))
    assert not re.search(r"(?<!\\)<(script|img)", re.sub(r"`+[^`]*`+", "", text))
    for block in text.split("\n\n"):
        lines = block.split("\n")
        if lines[0].startswith("| ") and len(lines) > 1 and lines[1].startswith("| ---"):
            bars = [len(re.findall(r"(?<!\\)\|", line)) for line in lines]
            assert len(set(bars)) == 1


def test_every_report_leads_with_the_same_sentence() -> None:
    found = sides_of("slower")
    said = "That is more than the noise between steps (6 before, 6 after)."
    assert said in " ".join(compare_terminal.render(found, width=110, color=False).split())
    assert said in Page(compare_page.render(found)).text
    assert "more than the noise between steps" in compare_markdown.render(found)


def test_what_is_within_noise_is_said_to_be_no_difference() -> None:
    text = " ".join(compare_terminal.render(sides_of("noise"), width=110, color=False).split())
    assert "no difference beyond the noise between steps (6 before, 6 after)" in text
    assert "No cause changed by more than noise." in text


def test_too_few_steps_are_said_to_be_too_few() -> None:
    text = " ".join(compare_terminal.render(sides_of("few"), width=110, color=False).split())
    assert "steps before and 3 after are too few to tell that from noise" in text


def test_a_trace_and_samples_are_not_set_side_by_side_in_the_headline() -> None:
    found = sides_of("slower")
    sampled = msgspec.structs.replace(found.after, seen_by="samples", step_s=None)
    apart = msgspec.structs.replace(found, unit="share", step=None, after=sampled)
    first = compared.sentences(apart)[0]
    assert first == (
        "The two cannot be set side by side: the run before was traced, the one after only sampled."
    )


def test_one_step_is_no_range_and_no_plural() -> None:
    found = sides_of("few")
    assert found.step is not None
    side = msgspec.structs.replace(found.before, steps=1)
    step = msgspec.structs.replace(found.step, before=found.step.before[:1])
    assert "1 interior step of " in compared.side(side)
    said = compared.sentences(msgspec.structs.replace(found, step=step))[0]
    assert "but 1 step before and 3 after are too few" in said


def test_causes_that_one_side_does_not_show_share_one_note() -> None:
    found = sides_of("slower")
    why = "not judged after: its recording does not show it"
    blind = [msgspec.structs.replace(line, note=why) for line in found.causes]
    told = compared.remarks(msgspec.structs.replace(found, causes=blind, notes=["n"]))
    assert told[0] == "n" and len(told) == 2 and told[1].endswith(why)
    assert all(line.title in told[1] for line in blind)


def test_a_phone_shows_the_change_and_the_verdict_beside_each_cause() -> None:
    page = Page(compare_page.render(sides_of("slower")))
    kinds = [found.get("class", "") for found in page.having("section")]
    assert {"compared causes", "compared states", "compared kernels"} <= set(kinds)
    assert ".compared tr" in page.styles[0]
